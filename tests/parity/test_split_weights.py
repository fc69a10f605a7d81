"""A quantised model split over ranks gives the logits of the whole, whatever its weights are stored in."""

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
from stentor.tests.engine.quantization import test_checkpoints as dense
from stentor.tests.engine.quantization import test_experts as experts
from stentor.tests.parity import tiny
from stentor.tests.parity.paged import PagedDecoder
from stentor.tests.parity.ranks import on_each_rank

WEIGHTS_ALONE = {
    **dense.WEIGHT_ONLY,
    **dense.FP4,
    **{name: maker for name, maker in dense.INT8_GROUPS.items() if name != "compressed-w8a16-zeros"},
}
"""Inputs are multiplied as they are. Left out is what has larger groups than a rank has heads."""
DENSE = {
    **WEIGHTS_ALONE,
    **{name: maker for name, maker in dense.EXPANDED_ONLY.items() if name != "fp8-blocks"},
}


def logits_of(ours: PagedDecoder) -> torch.Tensor:
    ours.add(0, make.TOKENS)
    (found,) = ours.run((0, 0, len(make.TOKENS)))
    return found


def split(path: Path, size: int = 2, **options: Any) -> list[torch.Tensor]:
    """The logits of each rank."""

    def run(ranks: RankGroup) -> list[torch.Tensor]:
        return [logits_of(PagedDecoder(path, ranks=ranks, **options))]

    return [found for (found,) in on_each_rank(size, run)]


def check_alike(found: list[torch.Tensor], expected: torch.Tensor) -> None:
    assert expected.std() > 0.05, "logits this flat would hide a mistake"
    for each in found:
        torch.testing.assert_close(each, expected, rtol=1e-4, atol=5e-4)
        assert torch.equal(each, found[0])


@pytest.mark.proof(each="name")
@pytest.mark.parametrize("name", DENSE)
def test_ranks_take_their_part_of_what_a_matrix_is_stored_as(name: str, tmp_path: Path) -> None:
    made = DENSE[name](tmp_path)
    check_alike(split(tmp_path, packed=False), made.logits)


@pytest.mark.proof(each="name")
@pytest.mark.parametrize("name", WEIGHTS_ALONE)
def test_kernels_multiply_by_a_ranks_part_as_it_is_stored(name: str, tmp_path: Path) -> None:
    made = WEIGHTS_ALONE[name](tmp_path)
    check_alike(split(tmp_path, packed=False, backend="kernels"), made.logits)


@pytest.mark.proof(each="name")
@pytest.mark.parametrize("name", ["gptq", "gptq8", "compressed-int8", "compressed-nvfp4"])
def test_a_ranks_part_is_packed_as_it_is_stored(name: str, tmp_path: Path) -> None:
    made = (DENSE | dense.QUANTISED_INPUTS)[name](tmp_path)
    whole, found = PagedDecoder(tmp_path, dtype=torch.bfloat16), split(tmp_path, dtype=torch.bfloat16)
    assert any("packed for this CPU" in line for line in whole.model.weights.note_lines())
    assert torch.equal(*found)
    for theirs in (logits_of(whole), made.logits):
        assert ((found[0] - theirs).abs() / theirs.std()).mean() < 0.05


@pytest.mark.proof(each="name")
@pytest.mark.parametrize("name", experts.FORMATS)
def test_ranks_take_their_part_of_experts(name: str, tmp_path: Path) -> None:
    expected = experts.made(tmp_path, *experts.FORMATS[name], inner=128)
    check_alike(split(tmp_path), expected)
    check_alike(split(tmp_path, packed=False, backend="kernels"), expected)


def test_experts_in_an_order_of_their_own_are_split(tmp_path: Path) -> None:
    description = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True}
    expected = experts.made(tmp_path, description, make.gptq(32, act_order=True))
    check_alike(split(tmp_path), expected)


@pytest.mark.parametrize("block", [0, 16])
def test_ranks_take_their_part_of_experts_whose_codes_are_one_tensor(block: int, tmp_path: Path) -> None:
    expected = experts.stacked_fp8(tmp_path, block)
    for whole in (False, True):
        check_alike(split(tmp_path, whole_experts=whole), expected)
        check_alike(split(tmp_path, packed=False, backend="kernels", whole_experts=whole), expected)


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_take_whole_blocks_of_gpt_oss(size: int, tmp_path: Path) -> None:
    """Five blocks: one rank has more than the others."""
    torch.manual_seed(0)
    model = experts.transformers.GptOssForCausalLM(
        experts.transformers.GptOssConfig(
            **{**tiny.SHAPE, "intermediate_size": 160, "vocab_size": make.VOCAB},
            head_dim=16,
            num_local_experts=4,
            num_experts_per_tok=2,
        )
    ).eval()
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.1)
    model.save_pretrained(tmp_path)
    make.mxfp4_experts(model, tmp_path)
    expected = make.logits_of(model)
    check_alike(split(tmp_path, size), expected)
    check_alike(split(tmp_path, size, packed=False, backend="kernels"), expected)


@pytest.mark.proof(each="kind")
@pytest.mark.parametrize("kind", ["F32", "Q8_0", "Q4_K", "IQ4_NL", "MXFP4"])
def test_ranks_take_their_part_of_the_experts_of_a_gguf_file(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    model = gguf_experts.made("qwen3moe", hidden_size=256, moe_intermediate_size=512, head_dim=128)
    write_gguf(path, model, "qwen3moe", gguf.GGMLQuantizationType[kind])
    expected = logits_of(PagedDecoder(path, packed=False))
    check_alike(split(path), expected)
    check_alike(split(path, packed=False, backend="kernels"), expected)


def test_blocks_that_would_be_cut_are_refused_in_one_line(tmp_path: Path) -> None:
    dense.EXPANDED_ONLY["fp8-blocks"](tmp_path)
    message = (
        r"--tensor-parallel-size 2: model\.layers\.0\.self_attn\.q_proj is stored in blocks of 128 outputs "
        r"\(fp8 by block\), which do not divide the 64 from 0 on that a worker takes"
    )
    with pytest.raises(SetupError, match=message) as refused:
        open_family(WorkerConfig(str(tmp_path), tensor_parallel_size=2), "cpu")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["bitnet", "bitnet-online"])
def test_ternary_weights_are_not_split_and_say_so(name: str, tmp_path: Path) -> None:
    dense.QUANTISED_INPUTS[name](tmp_path)
    with pytest.raises(SetupError, match="is stored in ternary by tensor form, which is not split"):
        open_family(WorkerConfig(str(tmp_path), tensor_parallel_size=2), "cpu")
