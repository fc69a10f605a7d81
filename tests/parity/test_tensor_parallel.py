"""A model split over ranks gives the logits of the whole, and what is not split is refused."""

import os
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from stentor.engine.layers.linear.rank_group import RankGroup
from stentor.engine.layers.linear.weights import WeightError, cut_tensor
from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.model_config.tensor_parallel.cuts import Cut
from stentor.engine.worker.errors import SetupError
from stentor.engine.worker.setup.setup import open_family
from stentor.protocols.ipc.config import WorkerConfig
from stentor.server.options.model_facts import CACHE_BYTES, GPU_SHARE, describe_model
from stentor.tests.engine.loading.tiny_gguf import write_gguf
from stentor.tests.engine.tiny_whisper import write_whisper
from stentor.tests.parity import tiny
from stentor.tests.parity.cuts import LENGTH, assert_close, expected_logits, prompt_of
from stentor.tests.parity.paged import PagedDecoder
from stentor.tests.parity.ranks import CPU, logits_of, on_each_rank
from stentor.tests.parity.tiny_adapters import ALL, merged, save_adapter, save_experts_apart, save_experts_together

ARCHITECTURES = {
    "falcon-h1": "FalconH1ForCausalLM",
    "stablelm-normed": "StableLmForCausalLM",
    "llama": "LlamaForCausalLM",
}
DENSE = (
    "apertus",
    "baichuan2-13b",
    "bitnet",
    "bloom",
    "chatglm",
    "codegen",
    "cohere",
    "domyn-edge",
    "gemma3-seeing",
    "gemma3n",
    "glm4",
    "gpt-neox-japanese",
    "granite-swa",
    "internlm2-biased",
    "jais",
    "llama-biased",
    "mistral-large4-shared",
    "nanbeige",
    "muse-glimmer",
    "nemotron",
    "nemotron-nas",
    "phi-normed",
    "phi3",
    "plamo3",
    "qwen3",
    "qwen3.5-attending",
    "solar",
    "starcoder2",
    "step1",
    "telechat",
)
"""Each has something that the others lack: names, biases, norms, fused or gated projections, sinks, layers side by
side."""

EXPERTS = (
    "afmoe",
    "arctic",
    "axk1",
    "axk2",
    "beam",
    "dbrx",
    "deepseek-v3",
    "dots3-note",
    "ernie-moe",
    "gemma4-moe",
    "flint",
    "glm4-moe",
    "gpt-oss",
    "granite-moe-shared",
    "grok2",
    "kolibri1",
    "k2-horizon",
    "k2-horizon-values",
    "lfm2-moe",
    "ling1",
    "ling2",
    "ling2.5",
    "ling3",
    "llama4",
    "longcat",
    "longcat-lite",
    "minimax-m3",
    "mistral-large4-seeing",
    "mimo-v2-fp8",
    "mistral4",
    "mixtral",
    "nemotron-h-latent",
    "nemotron-puzzle",
    "olmoe",
    "pangu-ultra",
    "phimoe",
    "qwen2-moe",
    "qwen3-moe",
    "step3",
    "step3.5",
    "step5",
    *(
        "deepseek-v3",
        "glm-moe-dsa",
        "qwen3-next-moe",
        "granite4-hybrid-moe",
        "nemotron-h-latent",
        "kimi-k3",
        "alice",
        "kimi-linear",
        "jamba",
    ),
)
"""The same of experts: stored apart or together, turned, gates and ups in turn, biases, weighted inputs, shared experts
with a gate, norms of their own; behind mixers of every kind."""


def test_a_group_ends_as_one_also_where_the_number_of_its_file_is_that_of_a_socket_now() -> None:
    meeting = os.memfd_create("ranks")
    with ThreadPoolExecutor(2) as threads:
        groups = list(threads.map(lambda rank: RankGroup(rank, 2, meeting, CPU), range(2)))
    with socket.socket() as other:
        os.dup2(other.fileno(), meeting)
        groups.clear()
        os.close(meeting)


@pytest.mark.proof(each="name")
@pytest.mark.parametrize("name", DENSE + EXPERTS)
def test_two_ranks_give_the_logits_of_transformers_and_the_same_on_each(name: str, tmp_path: Path) -> None:
    model = tiny.make(name, tmp_path)
    first, second = logits_of(tmp_path, 2)
    for seed, ours, theirs, length in zip((1, 2), first, second, (LENGTH, 40), strict=True):
        assert_close(ours, expected_logits(model, prompt_of(seed, length)))
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", ["gpt-oss", "qwen2-moe"])
def test_experts_of_ranks_are_added_up_between_stretches_of_a_program(name: str, tmp_path: Path) -> None:
    model = tiny.make(name, tmp_path)
    for found in logits_of(tmp_path, 2, packed=None):
        assert_close(found[0], expected_logits(model, prompt_of(1)))


@pytest.mark.proof(each="name")
@pytest.mark.parametrize("name", ["mixtral", "granite-moe-shared", "glm4-moe"])
def test_experts_that_are_stored_as_transformers_holds_them_are_split(name: str, tmp_path: Path) -> None:
    model = tiny.make(name, tmp_path)
    model.save_pretrained(tmp_path, save_original_format=False)
    for found in logits_of(tmp_path, 2):
        assert_close(found[0], expected_logits(model, prompt_of(1)))


def test_ranks_share_key_value_heads_where_there_are_fewer(tmp_path: Path) -> None:
    model = tiny.make("llama", tmp_path)
    assert model.config.num_key_value_heads == 2
    found = logits_of(tmp_path, 4)
    for ours in found:
        assert_close(ours[0], expected_logits(model, prompt_of(1)))
        assert all(map(torch.equal, ours, found[0]))


@pytest.mark.parametrize("name", ["llama", "phi3"])
def test_ranks_add_their_parts_of_an_adapter_to_what_they_have_of_the_weights(name: str, tmp_path: Path) -> None:
    model = tiny.make(name, tmp_path)
    targets = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj") if name == "phi3" else ALL
    check_adapted(model, tmp_path, save_adapter(model, tmp_path / "adapter", targets=(*targets, "lm_head"), rank=2))


@pytest.mark.parametrize("name", ["gpt-oss", "granite-moe-shared", "mixtral"])
def test_ranks_add_their_parts_of_an_adapter_to_experts(name: str, tmp_path: Path) -> None:
    model = tiny.make(name, tmp_path)
    if name == "mixtral":
        added = save_experts_apart(model, tmp_path / "adapter", "block_sparse_moe.experts", ("w1", "w3", "w2"))
    else:
        added = save_experts_together(model, tmp_path / "adapter")
    check_adapted(model, tmp_path, added)


def check_adapted(model: Any, folder: Path, added: Mapping[str, torch.Tensor], *, whole_experts: bool = False) -> None:
    """Two ranks serve a row with the adapter beside one without."""

    def run(ranks: RankGroup) -> list[torch.Tensor]:
        ours = PagedDecoder(folder, packed=False, ranks=ranks, whole_experts=whole_experts, max_lora_rank=2)
        ours.load(0, folder / "adapter")
        for slot, adapter in ((0, 0), (1, -1)):
            ours.add(slot, prompt_of(1), adapter=adapter)
        return ours.run((0, 0, LENGTH), (1, 0, LENGTH))

    first, second = on_each_rank(2, run)
    for number, theirs in enumerate((merged(model, added), model)):
        assert_close(first[number], expected_logits(theirs, prompt_of(1)))
        assert torch.equal(first[number], second[number])


def write_q8_0(path: Path, inner: int) -> None:
    """A Llama whose matrices are stored in blocks of 32 values."""
    torch.manual_seed(0)
    model = tiny.transformers.LlamaForCausalLM(
        tiny.transformers.LlamaConfig(**{**tiny.SHAPE, "intermediate_size": inner})
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    write_gguf(path, model, "llama", gguf.GGMLQuantizationType.Q8_0)


@pytest.mark.parametrize("inner", [128, 96])
def test_a_quantised_gguf_file_is_split_between_its_blocks(inner: int, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_q8_0(path, inner)
    whole = PagedDecoder(path, packed=False)
    whole.add(0, prompt_of(1))
    (expected,) = whole.run((0, 0, LENGTH))
    first, second = logits_of(path, 2)
    assert_close(first[0], expected)
    assert torch.equal(first[0], second[0])


def test_fewer_blocks_than_workers_are_refused(tmp_path: Path) -> None:
    write_q8_0(tmp_path / "m.gguf", inner=32)
    message = "--tensor-parallel-size 2: 32 inner units in blocks of 32 do not divide among 2 workers"
    with pytest.raises(SetupError, match=message):
        open_family(WorkerConfig(str(tmp_path), tensor_parallel_size=2), "cpu")


def test_a_rank_holds_its_part_of_the_layers_and_no_more(tmp_path: Path) -> None:
    tiny.make("llama", tmp_path)
    whole = PagedDecoder(tmp_path, packed=False)

    def run(ranks: RankGroup) -> list[torch.Tensor]:
        ours = PagedDecoder(tmp_path, packed=False, ranks=ranks)
        return [torch.tensor([ours.model.weights.total_bytes, ours.caches[0].k.nbytes])]

    spec = whole.config
    norms = (2 * len(spec.layers) + 1) * spec.hidden_size * 4
    outside = 2 * spec.vocab_size * spec.hidden_size * 4 + norms
    (own, cache) = (int(each) for each in on_each_rank(2, run)[0][0])
    assert own - outside == (whole.model.weights.total_bytes - outside) // 2
    assert cache == whole.caches[0].k.nbytes // 2


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        ("stablelm-normed", 2, "attention whose heads have norms that are stored one by one is not split"),
        ("falcon-h1", 4, "6 heads of a state space do not divide among 4 workers"),
        ("llama", 3, "--tensor-parallel-size 3: 4 query heads do not divide among 3 workers"),
    ],
)
def test_what_is_not_split_is_refused_in_one_line(name: str, size: int, message: str, tmp_path: Path) -> None:
    config = tiny.ARCHITECTURES[name]()
    config.architectures = [ARCHITECTURES[name]]
    config.save_pretrained(tmp_path)
    with pytest.raises(SetupError, match=message) as refused:
        open_family(WorkerConfig(str(tmp_path), load_format="dummy", tensor_parallel_size=size), "cpu")
    assert "\n" not in str(refused.value)


def test_experts_whose_inner_units_do_not_divide_are_refused(tmp_path: Path) -> None:
    config = tiny.ARCHITECTURES["qwen3-moe"]()
    config.update({"architectures": ["Qwen3MoeForCausalLM"], "moe_intermediate_size": 33})
    config.save_pretrained(tmp_path)
    with pytest.raises(SetupError, match="33 inner units of an expert do not divide among 2 workers"):
        open_family(WorkerConfig(str(tmp_path), load_format="dummy", tensor_parallel_size=2), "cpu")


def test_what_fits_gpus_between_which_a_model_is_split_is_told_beforehand(tmp_path: Path) -> None:
    tiny.make("qwen2-moe", tmp_path)
    spec, free = open_checkpoint(tmp_path).decoder, 1 << 20
    gpu = "GPU", int((spec.parameters * 4 // 2 + free) / GPU_SHARE)
    told = describe_model(tmp_path, [gpu] * 2).splitlines()
    (split,) = (line for line in told if line.startswith("fits 2 workers"))
    outside = 2 * spec.vocab_size * spec.hidden_size * 4
    tokens = int(split.removeprefix("fits 2 workers").split()[0].replace(",", ""))
    per_token = sum(group.token_bytes(CACHE_BYTES) for group in spec.cache_groups) // 2
    assert tokens * per_token == pytest.approx(free - outside // 2, rel=0.1), "embeddings and head are whole in each"
    assert split.endswith("of KV cache on each GPU, by --tensor-parallel-size 2")
    assert "fits 3 workers  no: 4 query heads do not divide among 3 workers" in describe_model(tmp_path, [gpu] * 3)
    told = describe_model(tmp_path, [("GPU", 1 << 16)] * 2).splitlines()
    assert any(line.startswith("fits 2 workers  no: the weights of one are") for line in told)


def test_what_reads_no_text_and_modules_of_transformers_are_refused(tmp_path: Path) -> None:
    write_whisper(tmp_path)
    message = "WhisperForConditionalGeneration transcribes, and models of text alone are split; leave it out"
    with pytest.raises(SetupError, match=message):
        open_family(WorkerConfig(str(tmp_path), tensor_parallel_size=2), "cpu")
    folder = tmp_path / "text"
    tiny.make("qwen3", folder)
    with pytest.raises(SetupError, match="Qwen3ForCausalLM runs on transformers' modules, which are not split"):
        open_family(WorkerConfig(str(folder), tensor_parallel_size=2, model_impl="transformers"), "cpu")


def test_a_tensor_of_another_size_is_refused_before_it_is_cut() -> None:
    with pytest.raises(WeightError, match=r"a has shape \(6, 4\) in the checkpoint, expected 8 in dimension 1"):
        cut_tensor("a", torch.zeros(6, 4), Cut(1, 8, ((4, 4),)))
    assert not cut_tensor("b", torch.ones(3), Cut(0, 3, ((0, 3),), zero=True)).any()


def test_a_scale_of_all_is_taken_whole_and_one_between_dimensions_that_say_nothing_is_cut() -> None:
    scale, cut = torch.arange(6.0).view(2, 1, 3, 1), Cut(1, 3, ((1, 2),), scale=True)
    assert cut_tensor("a", scale, cut).tolist() == [[1, 2], [4, 5]]
    assert cut_tensor("b", torch.ones(1), cut).tolist() == [1]


def test_experts_that_are_stored_the_other_way_round_are_turned_before_they_are_cut() -> None:
    usual, cut = torch.arange(24).view(2, 3, 4), Cut(2, 4, ((2, 2),), transposed=True)
    for stored in (usual, usual.transpose(1, 2)):
        assert torch.equal(cut_tensor("a", stored, cut), usual[:, :, 2:])
