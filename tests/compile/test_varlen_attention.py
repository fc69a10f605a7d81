import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from stentor.kernels.launching.dry_run import dry_run
from stentor.kernels.varlen_attention import choose, triton, varlen_attention
from stentor.kernels.varlen_attention.tunables import tunables
from stentor.tests.compile.tuned import check_looked_up

pytestmark = pytest.mark.compiles


def empty(*shape: int, dtype: torch.dtype = torch.float16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="cuda")


@pytest.mark.parametrize(
    ("heads", "dim", "length", "causal", "window"),
    [(20, 64, 1500, False, (-1, -1)), (16, 80, 4096, False, (-1, -1)), (12, 64, 40, True, (64, 64))],
    ids=["whisper", "qwen-vision", "short"],
)
@pytest.mark.parametrize("capability", [80, 90])
def test_encoders_use_tensor_cores_and_spill_nothing(
    heads: int, dim: int, length: int, causal: bool, window: tuple[int, int], capability: int
) -> None:
    with FakeTensorMode(), dry_run(capability) as compiled:
        q, k, v = empty(8 * length, 3, heads, dim).unbind(1)
        starts = empty(9, dtype=torch.int32)
        assert choose(q) == "triton"
        varlen_attention(q, k, v, starts, starts, length, length, scale=0.1, causal=causal, window=window)
    (kernel,) = compiled
    assert kernel.name == "_varlen_kernel"
    assert kernel.stack_bytes == 0
    assert kernel.shared_bytes <= (227 if capability == 90 else 163) * 1024
    assert ("wgmma.mma_async" if capability == 90 else "mma.sync") in kernel.ptx
    assert kernel.count("HGMMA" if capability == 90 else "HMMA") > 0
    assert kernel.count(r"LDGSTS.*\.128") > 0
    assert kernel.warnings == []


def test_the_tuner_times_what_launches_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    check_looked_up(triton, (triton,), tunables(), monkeypatch)
