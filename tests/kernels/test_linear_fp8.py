from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

import pytest
import torch

from stentor.kernels.launching.copy_engine import COPY_ENGINE, is_aligned
from stentor.kernels.launching.repeated import prepare
from stentor.kernels.linear_fp8 import (
    choose,
    linear_fp8,
    selection_for,
    triton_gemv,
    triton_skinny,
    triton_tiles,
    triton_tma,
    workloads,
)
from stentor.kernels.quantize import Quantized, fp8, quantize_weight_fp8
from stentor.kernels.quantize.operands import InputScales, operands
from stentor.kernels.quantize.scheme import FP8
from stentor.kernels.quantize.weights import WeightGranularity
from stentor.kernels.tuning import Config, overridden
from stentor.kernels.variants import Choice
from stentor.tests.kernels.eight_bit import TOLERANCE, fp8_weight, quantized
from stentor.tests.kernels.gpu import DEVICE, TRITON_FLOATS
from stentor.tests.kernels.helpers import assert_close, assert_same_bits, normal

# [T, N, K], and what runs it
SHAPES = (
    (1, 40, 300, "gemv"),
    (1, 136, 1040, "gemv"),
    (2, 5, 7, "skinny"),
    (17, 130, 272, "skinny"),
    (33, 64, 128, "skinny"),
    (65, 66, 200, "tiles"),
    (70, 20, 90, "tiles"),
)
SCALES: tuple[tuple[InputScales, WeightGranularity], ...] = (
    ("tensor", "tensor"),
    ("token", "channel"),
    ("tensor", "channel"),
    ("token", "block"),
    ("group", "channel"),
    ("group", "block"),
)


@pytest.fixture(params=[80, 90], ids=["decoded", "tensor_cores"])
def in_hardware(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether kernels see fp8 or its bytes; a card with the type runs both, and so does the interpreter."""
    capability: int = request.param
    monkeypatch.setattr(fp8, "capability", lambda: capability)
    return capability >= 89


@pytest.mark.triton
@pytest.mark.parametrize(("input_scales", "weight_scales"), SCALES)
@pytest.mark.parametrize(("tokens", "rows", "width", "implementation"), SHAPES)
def test_the_product_of_fp8_is_the_reference(
    in_hardware: bool,
    tokens: int,
    rows: int,
    width: int,
    implementation: str,
    input_scales: InputScales,
    weight_scales: WeightGranularity,
) -> None:
    x = quantized(tokens, width, FP8, input_scales)
    weight, scale = fp8_weight(rows, width, weight_scales)
    bias = normal(rows, seed=3).to(DEVICE)
    assert choose(x, weight, scale, "triton") == "triton"
    assert selection_for(x, weight, scale, out_dtype=torch.float32, variant="triton").implementation == implementation
    made = linear_fp8(x, weight, scale, bias, out_dtype=torch.float32, variant="triton")
    expected = linear_fp8(x, weight, scale, bias, out_dtype=torch.float32, variant="reference")
    # tensor cores add fp8 products with fewer bits than float32 has
    assert_close(made, expected, 1e-3 if in_hardware and DEVICE == "cuda" else TOLERANCE[torch.float32])


@pytest.mark.triton
@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize("weight_scales", ["tensor", "channel", "block"])
@pytest.mark.parametrize(("tokens", "rows", "width", "implementation"), SHAPES)
def test_inputs_that_are_not_quantised_are_multiplied_as_they_are(
    in_hardware: bool,
    dtype: torch.dtype,
    tokens: int,
    rows: int,
    width: int,
    implementation: str,
    weight_scales: WeightGranularity,
) -> None:
    x = normal(tokens, width + 16, seed=5, dtype=dtype).to(DEVICE)[:, 16:]
    weight, scale = fp8_weight(rows, width, weight_scales)
    assert selection_for(x, weight, scale, variant="triton").implementation == implementation
    made = linear_fp8(x, weight, scale, variant="triton")
    assert_close(made, linear_fp8(x, weight, scale, variant="reference"), TOLERANCE[dtype])


@pytest.mark.triton
@pytest.mark.parametrize("splits", [1, 2, 3, 8])
@pytest.mark.parametrize(("input_scales", "weight_scales"), [("token", "channel"), ("group", "block")])
def test_however_k_is_split_the_parts_are_all_added(
    splits: int, input_scales: InputScales, weight_scales: WeightGranularity
) -> None:
    x = quantized(5, 600, FP8, input_scales)
    weight, scale = fp8_weight(70, 600, weight_scales)
    bias = normal(70, seed=3).to(DEVICE)
    config = Config.of(BLOCK_T=16, BLOCK_N=64, BLOCK_K=128, SPLITS=splits)
    with overridden(triton_skinny.OPERATION, config):
        made = linear_fp8(x, weight, scale, bias, out_dtype=torch.float32, variant="triton")
        again = linear_fp8(x, weight, scale, bias, out_dtype=torch.float32, variant="triton")
    assert_same_bits(made, again)
    expected = linear_fp8(x, weight, scale, bias, out_dtype=torch.float32, variant="reference")
    assert_close(made, expected, 1e-3 if DEVICE == "cuda" else TOLERANCE[torch.float32])


@pytest.mark.triton
@pytest.mark.parametrize("out_dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("tokens", [1, 3, 65])
def test_the_result_is_of_the_dtype_that_was_asked_for(out_dtype: torch.dtype, tokens: int) -> None:
    x = quantized(tokens, 64, FP8, "token")
    weight, scale = fp8_weight(24, 64, "channel")
    for bias in (None, normal(24, seed=1, dtype=torch.float16).to(DEVICE)):
        made = linear_fp8(x, weight, scale, bias, out_dtype=out_dtype, variant="triton")
        assert made.dtype == out_dtype
        expected = linear_fp8(x, weight, scale, bias, out_dtype=out_dtype, variant="reference")
        assert_close(made, expected, max(TOLERANCE[out_dtype], 1e-3 if DEVICE == "cuda" else 0))


@pytest.mark.triton
@pytest.mark.parametrize("x_dtype", [FP8, torch.float32])
def test_no_tokens_give_no_rows(x_dtype: torch.dtype) -> None:
    weight, scale = fp8_weight(24, 64, "channel")
    x = torch.empty(0, 64, device=DEVICE).to(x_dtype)
    given = Quantized(x, torch.empty(0, 1, device=DEVICE)) if x_dtype == FP8 else x
    variants: tuple[Choice, ...] = ("triton", "reference")
    for variant in variants:
        assert linear_fp8(given, weight, scale, out_dtype=torch.float32, variant=variant).shape == (0, 24)


def test_the_reference_is_the_product_of_what_the_numbers_stand_for() -> None:
    x, (weight, scale) = normal(3, 300, seed=1), quantize_weight_fp8(normal(200, 300, seed=2), "block")
    spread = scale.repeat_interleave(128, 0)[:200].repeat_interleave(128, 1)[:, :300]
    expected = (x.double() @ (weight.double() * spread.double()).T).float()
    assert selection_for(x, weight, scale).implementation == "reference"
    assert_close(linear_fp8(x, weight, scale), expected, 1e-6)


@pytest.mark.triton
def test_every_fp8_number_is_widened_exactly(in_hardware: bool) -> None:
    numbers = torch.arange(256, dtype=torch.uint8)
    numbers = numbers[(numbers & 0x7F) != 0x7F]  # without the two NaNs
    weight = numbers.view(FP8).view(-1, 1).repeat(1, 16)
    weight[:, 1:] = 0
    for tokens in (1, 2, 65):
        for dtype in (torch.float32, torch.float16):
            x = torch.ones(tokens, 16, dtype=dtype, device=DEVICE)
            made = linear_fp8(x, weight.to(DEVICE), torch.ones(1, device=DEVICE), variant="triton")
            assert torch.equal(made.float().cpu(), numbers.view(FP8).float().expand(tokens, -1))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("input_scales", "weight_scales"),
    [("tensor", "tensor"), ("token", "channel"), ("token", "tensor"), ("tensor", "channel")],
)
@pytest.mark.parametrize("bias_dtype", [None, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("tokens", [65, 128, 1000])
def test_torch_multiplies_many_rows(
    tokens: int, bias_dtype: torch.dtype | None, input_scales: InputScales, weight_scales: WeightGranularity
) -> None:
    x = quantized(tokens, 512, FP8, input_scales)
    weight, scale = fp8_weight(272, 512, weight_scales)
    bias = None if bias_dtype is None else normal(272, seed=3, dtype=bias_dtype).to(DEVICE)
    assert selection_for(x, weight, scale, out_dtype=torch.bfloat16).implementation == "scaled_mm"
    made = linear_fp8(x, weight, scale, bias, out_dtype=torch.bfloat16)
    assert_close(made, linear_fp8(x, weight, scale, bias, out_dtype=torch.bfloat16, variant="reference"), 1.6e-2)


def by_copy_engine(ahead: bool = False, **sizes: int) -> AbstractContextManager[None]:
    loads = {"LOADS": COPY_ENGINE + ahead, "PROGRAMS_PER_SM": 1}
    return overridden(
        triton_tiles.OPERATION, Config.of(**{"BLOCK_T": 64, "BLOCK_N": 64, "BLOCK_K": 128, **sizes, **loads})
    )


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that tiles were multiplied by."""
    names: list[str] = []

    def noting(kernel: Any, *args: Any, **options: Any) -> Any:
        start = prepare(kernel, *args, **options)

        def note(*tensors: torch.Tensor | None) -> None:
            names.append(kernel.__name__)
            start(*tensors)

        return note

    for module in (triton_tiles, triton_tma):
        monkeypatch.setattr(module, "prepare", noting)
    return names


@pytest.mark.triton
@pytest.mark.parametrize("ahead", [False, True], ids=["", "ahead"])
@pytest.mark.parametrize("sizes", [{}, {"BLOCK_N": 128}, {"BLOCK_T": 32, "BLOCK_K": 64}], ids=str)
@pytest.mark.parametrize(("tokens", "rows", "width"), [(65, 66, 208), (70, 300, 272), (130, 20, 256)])
def test_tiles_that_the_copy_engine_brings_give_the_reference(
    in_hardware: bool,
    tokens: int,
    rows: int,
    width: int,
    sizes: dict[str, int],
    ahead: bool,
    launched: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(triton_tma, "multiprocessors", lambda device: 2)  # a program has several tiles
    monkeypatch.setattr(triton_tma, "capability", lambda: 0 if DEVICE == "cpu" else 90)
    x, (weight, scale) = quantized(tokens, width, FP8, "group"), fp8_weight(rows, width, "block")
    bias = normal(rows, seed=3).to(DEVICE)
    with by_copy_engine(ahead, **sizes):
        made = linear_fp8(x, weight, scale, bias, out_dtype=torch.float32, variant="triton")
    assert launched == ["tma_kernel"]
    expected = linear_fp8(x, weight, scale, bias, out_dtype=torch.float32, variant="reference")
    assert_close(made, expected, 1e-3 if in_hardware and DEVICE == "cuda" else TOLERANCE[torch.float32])


@pytest.mark.triton
def test_the_copy_engine_is_given_only_what_it_can_take(
    in_hardware: bool, launched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def reason(x: Quantized, weight: torch.Tensor, scale: torch.Tensor) -> str:
        return triton_tma.unsupported_reason(operands("", x, weight, scale, None, torch.float32, FP8)) or ""

    monkeypatch.setattr(triton_tma, "capability", lambda: 90)
    x, (weight, scale) = quantized(66, 256, FP8, "group"), fp8_weight(40, 256, "block")
    assert reason(x, weight, scale) == ""
    assert reason(quantized(66, 256, FP8, "token"), weight, scale).startswith("it multiplies fp8 inputs in groups")
    assert reason(quantized(66, 200, FP8, "group"), *fp8_weight(40, 200, "block")).startswith("rows must begin")
    monkeypatch.setattr(triton_tma, "capability", lambda: 80)
    assert reason(x, weight, scale) == "copies of whole tiles came with compute capability 9.0, this is 8.0"
    with by_copy_engine():
        linear_fp8(x, weight, scale, out_dtype=torch.float32, variant="triton")
    assert launched == ["tiles_kernel"]


@pytest.mark.triton
def test_a_matrix_at_an_odd_address_is_brought_by_threads(launched: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_tma, "capability", lambda: 0 if DEVICE == "cpu" else 90)
    x, (weight, scale) = quantized(66, 256, FP8, "group"), fp8_weight(40, 256, "block")
    values = torch.empty(66 * 256 + 8, dtype=FP8, device=DEVICE)[8:].view(66, 256)
    assert is_aligned(x.values)
    assert not is_aligned(values)
    values.copy_(x.values)
    with by_copy_engine():
        made = linear_fp8(Quantized(values, x.scales), weight, scale, out_dtype=torch.float32, variant="triton")
    assert launched == ["tiles_kernel"]
    with overridden(triton_tiles.OPERATION, Config.of(BLOCK_T=64, BLOCK_N=64, BLOCK_K=128)):
        expected = linear_fp8(x, weight, scale, out_dtype=torch.float32, variant="triton")
    assert_same_bits(made, expected)


@pytest.mark.triton
def test_tiles_that_would_cross_a_scale_are_refused() -> None:
    x, (weight, scale) = quantized(66, 512, FP8, "group"), fp8_weight(300, 512, "block")
    with by_copy_engine(BLOCK_N=256), pytest.raises(ValueError, match="must divide 128, they are 256 and 128"):
        linear_fp8(x, weight, scale, out_dtype=torch.float32, variant="triton")


MODULES = (triton_gemv, triton_skinny, triton_tiles)


@pytest.mark.parametrize("module", MODULES)
def test_what_is_tuned_has_candidates_and_a_key_of_its_own(module: ModuleType) -> None:
    tunables = module.tunables()
    assert {tunable.operation for tunable in tunables} == {module.OPERATION}
    keys = [tunable.key for tunable in tunables]
    assert len(set(keys)) == len(keys)
    assert any(key.startswith("4096x14336 ") and "float8_e4m3fn float8_e4m3fn" in key for key in keys)
    assert all(len(tunable.candidates) > 1 for tunable in tunables)


@pytest.mark.triton
@pytest.mark.parametrize("module", MODULES)
def test_a_workload_launches_what_its_key_names(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workloads, "LLAMA_8B", ((32, 128),))
    monkeypatch.setattr(workloads, "QWEN3_32B", ())
    looked_up: list[tuple[str, str]] = []

    def pick(operation: str, key: str, default: Config) -> Config:
        looked_up.append((operation, key))
        return default

    monkeypatch.setattr(module, "pick", pick)
    # the interpreter multiplies bfloat16 wrongly, which is no matter here
    tunable = module.tunables()[1]
    assert isinstance(tunable.workload(torch.device(DEVICE))(), torch.Tensor)
    assert looked_up == [(tunable.operation, tunable.key)]


def test_what_does_not_fit_is_refused() -> None:
    x, (weight, scale) = torch.ones(2, 256), quantize_weight_fp8(torch.ones(200, 256), "channel")
    token = Quantized(torch.ones(2, 256).to(FP8), torch.ones(2, 1))
    with pytest.raises(ValueError, match="contiguous weight"):
        linear_fp8(x, weight.float(), scale)
    with pytest.raises(ValueError, match="does not fit weight"):
        linear_fp8(torch.ones(2, 255), weight, scale)
    with pytest.raises(ValueError, match="want x Quantized"):
        linear_fp8(token.values, weight, scale)
    with pytest.raises(ValueError, match="last dim of x"):
        linear_fp8(torch.ones(256, 2).T, weight, scale)
    with pytest.raises(ValueError, match=r"want weight_scale float32 \[1\] or \[200\] or, for blocks"):
        linear_fp8(x, weight, torch.ones(3, 2))
    with pytest.raises(ValueError, match="want scales of x"):
        linear_fp8(Quantized(token.values, torch.ones(2, 4)), weight, scale, out_dtype=torch.float32)
    with pytest.raises(ValueError, match="x is quantised to"):
        linear_fp8(
            Quantized(torch.ones(2, 256, dtype=torch.int8), token.scales), weight, scale, out_dtype=torch.float32
        )
    with pytest.raises(ValueError, match="out_dtype must be given"):
        linear_fp8(token, weight, scale)
    with pytest.raises(ValueError, match="out_dtype must be float32"):
        linear_fp8(token, weight, scale, out_dtype=torch.int8)
    with pytest.raises(ValueError, match=r"want bias \[200\]"):
        linear_fp8(x, weight, scale, torch.ones(3))
    with pytest.raises(ValueError, match="native variant cannot run"):
        linear_fp8(x, weight, scale, variant="native")


def test_a_refusal_says_why() -> None:
    x, (weight, scale) = torch.ones(2, 256), quantize_weight_fp8(torch.ones(200, 256), "channel")
    selection = selection_for(x, weight, scale)
    assert str(selection).startswith("reference; not gemv: it runs on CUDA, the tensors are on cpu")
    assert [name for name, _ in selection.refused] == ["gemv", "skinny", "scaled_mm", "tiles"]


@pytest.mark.triton
def test_a_tuned_size_that_would_leave_tokens_out_is_refused() -> None:
    x = quantized(9, 64, FP8, "token")
    weight, scale = fp8_weight(32, 64, "channel")
    small = Config.of(num_warps=4, num_stages=2, BLOCK_T=8, BLOCK_N=16, BLOCK_K=32, SPLITS=1)
    with overridden("linear_8bit_skinny", small), pytest.raises(ValueError, match="BLOCK_T must hold all 9 tokens"):
        linear_fp8(x, weight, scale, out_dtype=torch.float32, variant="triton")
