"""The operations that keep a state, on the GPU or interpreted."""

from types import ModuleType

import pytest
import torch

from stentor.kernels import StateRows
from stentor.kernels.gated_delta import triton as delta_triton
from stentor.kernels.gated_delta import triton_chunks as delta_chunks
from stentor.kernels.launching.launch import interpreted
from stentor.kernels.mamba2 import triton as mamba_triton
from stentor.kernels.tuning import Config, overridden
from stentor.tests.kernels.gpu import DEVICE, TRITON_FLOATS
from stentor.tests.kernels.helpers import assert_close
from stentor.tests.kernels.mixers import Conv, Delta, Mamba, Mixer, Scan

pytestmark = pytest.mark.triton

MIXERS = [
    pytest.param(Conv(70, 4), id="conv"),
    pytest.param(Conv(40, 3, bias=False, activation="none"), id="conv of LFM2"),
    pytest.param(Delta(1, 2, 16, 48), id="delta"),
    pytest.param(Delta(2, 2, 20, 33, l2norm=False), id="delta of odd sizes"),
    pytest.param(Delta(1, 2, 20, 48, by_channel=True), id="delta by channel"),
    pytest.param(Delta(2, 2, 16, 33, l2norm=False, by_channel=True), id="delta by channel, not normed"),
    pytest.param(Mamba(2, 1, 16, 32), id="mamba"),
    pytest.param(Mamba(4, 2, 7, 20), id="mamba of odd sizes"),
    pytest.param(Mamba(2, 2, 16, 16), id="mamba of as many groups as heads"),
    pytest.param(Mamba(8, 1, 1, 1), id="mamba of single numbers"),
    pytest.param(Scan(160, 16), id="scan"),
    pytest.param(Scan(41, 5), id="scan of odd sizes"),
]
BATCHES = {
    "a token each": ([1, 1, 1, 1], [3, -1, 5, 3], [0, 1, 5, -1]),
    "a few tokens each": ([2, 5, 0, 1], [3, -1, 3, 5], [0, 1, 2, 5]),
    "filled up for a graph": ([1, 1, 33, 0, 0, 30], [3, -1, 2, -1, -1, -1], [0, -1, 2, -1, -1, -1]),
    "prompts": ([2, 71, 0, 1, 64], [3, -1, 3, 5, 2], [0, 1, -1, 5, 2]),
}


@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("mixer", MIXERS)
def test_rows_are_the_references(mixer: Mixer, batch: str, dtype: torch.dtype) -> None:
    lengths, reads, writes = BATCHES[batch]
    rows = StateRows.of(lengths, reads, writes, DEVICE)
    tokens = mixer.tokens(sum(lengths), seed=1, dtype=dtype, device=DEVICE)
    mine, expected = (mixer.state(6, seed=5, dtype=dtype, device=DEVICE) for _ in range(2))
    assert mixer.choose(tokens, "triton") == "triton"
    found = mixer.run(tokens, mine, rows, "triton")
    tolerance = 1e-5 if dtype == torch.float32 else 1.6e-2
    assert_close(found, mixer.run(tokens, expected, rows, "reference"), tolerance)
    # inputs are kept as they are; a GPU multiplies the chunks of 16-bit inputs in TF32
    exact = dtype == torch.float32 or interpreted() or rows.longest <= mamba_triton.FEW
    assert_close(mine, expected, 0.0 if mine.dtype != torch.float32 else 1e-5 if exact else 2e-3)
    assert torch.equal(mine[4], expected[4])  # nobody's
    assert torch.equal(mine[3], expected[3])  # read by two rows


@pytest.mark.parametrize("kept", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("mixer", MIXERS)
def test_states_of_16_bits_are_the_references(mixer: Mixer, batch: str, kept: torch.dtype) -> None:
    """Long rows are rounded once, at their end, where the reference rounds after every token."""
    lengths, reads, writes = BATCHES[batch]
    rows = StateRows.of(lengths, reads, writes, DEVICE)
    tokens = mixer.tokens(sum(lengths), seed=1, dtype=torch.float32, device=DEVICE)
    mine, expected = (mixer.state(6, seed=5, dtype=torch.float32, device=DEVICE).to(kept) for _ in range(2))
    found = mixer.run(tokens, mine, rows, "triton")
    tolerance = 4e-2 if kept == torch.bfloat16 else 5e-3
    assert_close(found, mixer.run(tokens, expected, rows, "reference"), tolerance)
    assert_close(mine, expected, tolerance)
    assert torch.equal(mine[4], expected[4])  # nobody's
    assert torch.equal(mine[3], expected[3])  # read by two rows


@pytest.mark.parametrize(("batch", "chunks"), [("a few tokens each", False), ("prompts", True)])
@pytest.mark.parametrize(
    ("module", "mixer"),
    [
        (delta_triton, Delta(1, 2, 16, 48)),
        (delta_triton, Delta(1, 2, 16, 48, by_channel=True)),
        (mamba_triton, Mamba(2, 1, 16, 32)),
    ],
)
def test_long_rows_are_cut_into_chunks(
    module: ModuleType, mixer: Mixer, batch: str, chunks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[str] = []
    for where in (module, delta_chunks):
        monkeypatch.setattr(where, "launch", lambda kernel, *_, **__: launched.append(kernel.fn.__name__))
    lengths, reads, writes = BATCHES[batch]
    tokens = mixer.tokens(sum(lengths), seed=1, dtype=torch.float32, device=DEVICE)
    state = mixer.state(6, seed=5, dtype=torch.float32, device=DEVICE)
    mixer.run(tokens, state, StateRows.of(lengths, reads, writes, DEVICE), "triton")
    assert ("chunks_kernel" in launched) == chunks
    assert len(launched) == (2 if chunks and module is delta_triton else 1)


def test_channels_that_forget_all_at_once_overflow_nothing() -> None:
    """A factor of a chunk's first token that undid such a decay would be past the largest float32."""
    delta, rows = Delta(1, 1, 16, 16, by_channel=True), StateRows.of([40], [0], [0], DEVICE)
    tokens = delta.tokens(40, seed=1, dtype=torch.float32, device=DEVICE)
    tokens["decay"][::3, :, ::2] = -500.0
    mine, expected = (delta.state(1, seed=5, dtype=torch.float32, device=DEVICE) for _ in range(2))
    found = delta.run(tokens, mine, rows, "triton")
    assert_close(found, delta.run(tokens, expected, rows, "reference"), 1e-4)  # sums of such decays have few bits left
    assert_close(mine, expected, 1e-4)


def test_a_prompt_of_one_key_over_and_over_loses_no_precision() -> None:
    """The powers of its triangular system are huge: an inverse that summed them would be of noise."""
    delta, rows = Delta(1, 1, 16, 16), StateRows.of([64], [0], [0], DEVICE)
    tokens = delta.tokens(64, seed=1, dtype=torch.float32, device=DEVICE)
    tokens["k"] = tokens["k"][:1].expand(64, -1, -1).contiguous()
    tokens["decay"], tokens["beta"] = torch.zeros(64, 1, device=DEVICE), torch.ones(64, 1, device=DEVICE)
    mine, expected = (delta.state(1, seed=5, dtype=torch.float32, device=DEVICE) for _ in range(2))
    with overridden("gated_delta_chunks", Config.of(CHUNK=64, BLOCK_V=16, num_warps=4, num_stages=1)):
        found = delta.run(tokens, mine, rows, "triton")
    assert_close(found, delta.run(tokens, expected, rows, "reference"), 1e-5)
    assert_close(mine, expected, 1e-5)
