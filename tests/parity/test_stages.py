"""A model whose layers are given out to ranks, some to each, gives the logits of the whole model."""

from pathlib import Path

import gguf
import pytest
import torch

from stentor.engine.layers.linear.rank_group import RankGroup
from stentor.engine.worker.errors import SetupError
from stentor.engine.worker.setup.setup import open_family
from stentor.protocols.ipc.config import WorkerConfig
from stentor.tests.engine.loading.tiny_gguf import write_gguf
from stentor.tests.engine.quantization import test_experts as experts
from stentor.tests.engine.tiny_whisper import write_whisper
from stentor.tests.parity import test_split_weights as split_weights
from stentor.tests.parity import tiny
from stentor.tests.parity.cuts import LENGTH, assert_close, expected_logits, prompt_of
from stentor.tests.parity.paged import PagedDecoder
from stentor.tests.parity.ranks import logits_of, on_each_rank

ARCHITECTURES = {"llama": "LlamaForCausalLM", "gemma3n": "Gemma3nForCausalLM", "qwen2-moe": "Qwen2MoeForCausalLM"}


@pytest.mark.proof(each="name")
@pytest.mark.parametrize("packed", [False, None])
@pytest.mark.parametrize(
    "name", ["llama", "gpt-oss", "phi-normed", "glm4", "k2-horizon-dense", "starcoder2", "deepseek-v3"]
)
def test_two_ranks_with_some_layers_each_give_the_logits_of_transformers_and_the_same(
    name: str, packed: bool | None, tmp_path: Path
) -> None:
    model = tiny.make(name, tmp_path)
    first, second = logits_of(tmp_path, 2, staged=True, packed=packed)
    for seed, ours, theirs, length in zip((1, 2), first, second, (LENGTH, 40), strict=True):
        assert_close(ours, expected_logits(model, prompt_of(seed, length)))
        assert torch.equal(ours, theirs)


def test_of_five_layers_three_ranks_have_two_and_two_and_one(tmp_path: Path) -> None:
    model = tiny.make("llama", tmp_path, layers=5)
    held: dict[int, tuple[list[int], int]] = {}

    def run(ranks: RankGroup) -> list[torch.Tensor]:
        ours = PagedDecoder(tmp_path, packed=False, ranks=ranks, staged=True)
        own = [number for number, layer in enumerate(ours.config.layers) if layer.mixer is not None]
        held[ranks.rank] = own, len(ours.caches)
        ours.add(0, prompt_of(1))
        return ours.run((0, 0, LENGTH))

    for (found,) in on_each_rank(3, run):
        assert_close(found, expected_logits(model, prompt_of(1)))
    assert held == {0: ([0, 1], 2), 1: ([2, 3], 2), 2: ([4], 1)}


def test_ranks_have_layers_whatever_they_are_stored_in(tmp_path: Path) -> None:
    expected = experts.made(tmp_path, *experts.FORMATS["gptq"])
    split_weights.check_alike(split_weights.split(tmp_path, staged=True), expected)
    path = tmp_path / "m.gguf"
    write_gguf(path, tiny.make("llama", tmp_path / "llama"), "llama", gguf.GGMLQuantizationType["Q8_0"])
    expected = split_weights.logits_of(PagedDecoder(path, packed=False))
    split_weights.check_alike(split_weights.split(path, packed=False, staged=True), expected)


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        ("llama", 4, "--pipeline-parallel-size 4: 3 layers are fewer than 4 workers"),
        ("gemma3n", 2, "--pipeline-parallel-size 2: layers with embeddings of their own are not given out"),
        ("qwen2-moe", 2, "the layers of worker 1 keep something else of a token than those of worker 0"),
    ],
)
def test_layers_that_are_not_given_out_are_refused_in_one_line(
    name: str, size: int, message: str, tmp_path: Path
) -> None:
    config = tiny.ARCHITECTURES[name]()
    config.architectures = [ARCHITECTURES[name]]
    config.save_pretrained(tmp_path)
    with pytest.raises(SetupError, match=message) as refused:
        open_family(WorkerConfig(str(tmp_path), load_format="dummy", pipeline_parallel_size=size), "cpu")
    assert "\n" not in str(refused.value)


def test_what_does_not_go_with_stages_is_refused_by_name(tmp_path: Path) -> None:
    tiny.make("llama", tmp_path)
    for option, changes in {
        "--tensor-parallel-size": {"tensor_parallel_size": 2},
        "--enable-lora": {"enable_lora": True},
        "--enable-return-routed-experts": {"return_routed_experts": True},
    }.items():
        config = WorkerConfig(str(tmp_path), pipeline_parallel_size=2, **changes)  # type: ignore[arg-type]
        with pytest.raises(SetupError, match=f"--pipeline-parallel-size 2: not together with {option}"):
            open_family(config, "cpu")
    write_whisper(tmp_path / "whisper")
    with pytest.raises(SetupError, match="only models that are a decoder alone are split by layers, and Whisper"):
        open_family(WorkerConfig(str(tmp_path / "whisper"), pipeline_parallel_size=2), "cpu")
