"""A model whose experts are given out whole to ranks gives the logits of the whole model."""

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from stentor.engine.layers.linear.rank_group import RankGroup
from stentor.engine.worker.errors import SetupError
from stentor.engine.worker.setup.setup import open_family
from stentor.protocols.ipc.config import WorkerConfig
from stentor.tests.engine.loading import test_gguf_experts as gguf_experts
from stentor.tests.engine.loading.tiny_gguf import write_gguf
from stentor.tests.engine.quantization import checkpoints as make
from stentor.tests.engine.quantization import test_experts as experts
from stentor.tests.parity import test_split_weights as split_weights
from stentor.tests.parity import tiny
from stentor.tests.parity.cuts import LENGTH, assert_close, expected_logits, prompt_of
from stentor.tests.parity.paged import PagedDecoder
from stentor.tests.parity.ranks import logits_of, on_each_rank
from stentor.tests.parity.test_tensor_parallel import EXPERTS, check_adapted
from stentor.tests.parity.tiny_adapters import save_experts_apart, save_experts_together


def split(path: Path, size: int = 2, **options: Any) -> list[torch.Tensor]:
    return split_weights.split(path, size, whole_experts=True, **options)


@pytest.mark.proof(each="name")
@pytest.mark.parametrize("name", dict.fromkeys(EXPERTS))
def test_two_ranks_with_half_of_the_experts_give_the_logits_of_transformers(name: str, tmp_path: Path) -> None:
    model = tiny.make(name, tmp_path)
    first, second = logits_of(tmp_path, 2, whole_experts=True)
    for seed, ours, theirs, length in zip((1, 2), first, second, (LENGTH, 40), strict=True):
        assert_close(ours, expected_logits(model, prompt_of(seed, length)))
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("packed", [False, None])
@pytest.mark.parametrize("name", ["gpt-oss", "qwen3-moe"])
def test_of_four_experts_three_ranks_have_two_and_one_and_one(name: str, packed: bool | None, tmp_path: Path) -> None:
    config = tiny.ARCHITECTURES[name]()
    count = "num_local_experts" if name == "gpt-oss" else "num_experts"
    config.update({count: 4, "num_attention_heads": 6, "num_key_value_heads": 3, "intermediate_size": 96})
    model = tiny.make_of(config, name, tmp_path)
    held: dict[int, range] = {}

    def run(ranks: RankGroup) -> list[torch.Tensor]:
        ours = PagedDecoder(tmp_path, packed=packed, ranks=ranks, whole_experts=True)
        held[ranks.rank] = ours.config.layers[0].mlp.own_experts  # type: ignore[union-attr]
        ours.add(0, prompt_of(1))
        return ours.run((0, 0, LENGTH))

    for (found,) in on_each_rank(3, run):
        assert_close(found, expected_logits(model, prompt_of(1)))
    assert held == {0: range(2), 1: range(2, 3), 2: range(3, 4)}


@pytest.mark.parametrize("name", ["gpt-oss", "qwen2-moe", "nemotron-h-latent"])
def test_experts_are_called_between_stretches_of_a_program(name: str, tmp_path: Path) -> None:
    model = tiny.make(name, tmp_path)
    for found in logits_of(tmp_path, 2, packed=None, whole_experts=True):
        assert_close(found[0], expected_logits(model, prompt_of(1)))


@pytest.mark.parametrize("name", ["mixtral", "granite-moe-shared", "dbrx"])
def test_experts_that_are_stored_together_are_given_out(name: str, tmp_path: Path) -> None:
    model = tiny.make(name, tmp_path)
    model.save_pretrained(tmp_path, save_original_format=False)
    for found in logits_of(tmp_path, 2, whole_experts=True):
        assert_close(found[0], expected_logits(model, prompt_of(1)))


@pytest.mark.parametrize("name", ["gpt-oss", "granite-moe-shared", "mixtral"])
def test_a_rank_adds_an_adapter_to_its_own_experts(name: str, tmp_path: Path) -> None:
    model = tiny.make(name, tmp_path)
    if name == "mixtral":
        added = save_experts_apart(model, tmp_path / "adapter", "block_sparse_moe.experts", ("w1", "w3", "w2"))
    else:
        added = save_experts_together(model, tmp_path / "adapter")
    check_adapted(model, tmp_path, added, whole_experts=True)


@pytest.mark.proof(each="name")
@pytest.mark.parametrize("name", experts.FORMATS)
def test_ranks_have_experts_whatever_they_are_stored_in(name: str, tmp_path: Path) -> None:
    expected = experts.made(tmp_path, *experts.FORMATS[name])
    split_weights.check_alike(split(tmp_path), expected)
    split_weights.check_alike(split(tmp_path, packed=False, backend="kernels"), expected)


@pytest.mark.proof(each="kind")
@pytest.mark.parametrize("kind", ["F32", "Q8_0", "Q4_K", "MXFP4"])
def test_ranks_have_experts_of_a_gguf_file(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    model = gguf_experts.made("qwen3moe", hidden_size=256, moe_intermediate_size=256, head_dim=128)
    write_gguf(path, model, "qwen3moe", gguf.GGMLQuantizationType[kind])
    expected = split_weights.logits_of(PagedDecoder(path, packed=False))
    split_weights.check_alike(split(path), expected)
    split_weights.check_alike(split(path, packed=False, backend="kernels"), expected)


def test_ranks_have_experts_of_gpt_oss_in_a_single_block(tmp_path: Path) -> None:
    """Which could not be cut."""
    torch.manual_seed(0)
    sizes = {**tiny.SHAPE, "intermediate_size": 32, "vocab_size": make.VOCAB}
    config = experts.transformers.GptOssConfig(**sizes, head_dim=16, num_local_experts=4, num_experts_per_tok=2)
    model = experts.transformers.GptOssForCausalLM(config).eval()
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.1)
    model.save_pretrained(tmp_path)
    make.mxfp4_experts(model, tmp_path)
    expected = make.logits_of(model)
    split_weights.check_alike(split(tmp_path), expected)
    split_weights.check_alike(split(tmp_path, packed=False, backend="kernels"), expected)


def test_a_rank_holds_its_experts_and_no_more(tmp_path: Path) -> None:
    tiny.make("gpt-oss", tmp_path)

    def experts_bytes(ours: PagedDecoder) -> int:
        return sum(layer._gate_up.nbytes + layer._down.nbytes for layer in experts.experts_in(ours))  # type: ignore[attr-defined]

    def run(ranks: RankGroup) -> list[torch.Tensor]:
        return [torch.tensor(experts_bytes(PagedDecoder(tmp_path, packed=False, ranks=ranks, whole_experts=True)))]

    whole = experts_bytes(PagedDecoder(tmp_path, packed=False))
    assert [int(found) for (found,) in on_each_rank(2, run)] == [whole // 2, whole // 2]


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        ("llama", 2, "--tensor-parallel-size 2: LlamaForCausalLM has no experts to give out"),
        ("mixtral", 8, "experts are fewer than 8 workers"),
        ("mixtral", 1, "--tensor-parallel-size is 1: raise it, or leave this out"),
    ],
)
def test_what_has_no_expert_for_each_rank_is_refused_in_one_line(
    name: str, size: int, message: str, tmp_path: Path
) -> None:
    config = tiny.ARCHITECTURES[name]()
    architecture = "LlamaForCausalLM" if name == "llama" else "MixtralForCausalLM"
    config.update({"architectures": [architecture], "num_attention_heads": 8})
    config.save_pretrained(tmp_path)
    asked = WorkerConfig(str(tmp_path), load_format="dummy", tensor_parallel_size=size, enable_expert_parallel=True)
    with pytest.raises(SetupError, match=message) as refused:
        open_family(asked, "cpu")
    assert "\n" not in str(refused.value)
