"""What the compiler makes of products with weights in codes at the shapes of real models."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from stentor.kernels import CodeKind, empty_coded, linear_coded
from stentor.kernels.launching.dry_run import dry_run

pytestmark = pytest.mark.compiles


@pytest.mark.parametrize("capability", [90, 100])
@pytest.mark.parametrize("tokens", [1, 64, 512])
@pytest.mark.parametrize(("kind", "group"), [("mxfp4", 32), ("nvfp4", 16), ("iq4nl", 32), ("int8", 128)])
def test_codes_are_expanded_in_registers(kind: CodeKind, group: int, tokens: int, capability: int) -> None:
    with FakeTensorMode(), dry_run(capability) as kernels:
        device = torch.device("cuda")
        weight = empty_coded(kind, 1, 28672, 4096, group=group, zeros=kind == "int8", device=device)
        linear_coded(torch.empty(tokens, 4096, dtype=torch.bfloat16, device=device), weight)
    (kernel,) = kernels
    assert kernel.uses_tensor_cores
    assert kernel.stack_bytes == 0
    assert kernel.shared_bytes <= 227 * 1024
