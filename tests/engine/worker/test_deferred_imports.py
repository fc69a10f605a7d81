"""What a worker does not import until something needs it."""

import subprocess
import sys

PROGRAM = """
import sys
from stentor.engine.worker import deferred_imports, process
process.preload()
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
def are_modules():
    return all(type(sys.modules[name]) is type(sys) for name in deferred_imports.DEFERRED)
assert "torch._refs" not in sys.modules and not are_modules(), "a worker's own imports need them"
assert torch.empty(3, 4, device="meta").T.reshape(2, 6).shape == (2, 6)
assert not are_modules(), "a tensor without values needs them"
with FakeTensorMode():
    tensor = torch.empty(1, 2, 3, 8)
    assert torch.nn.functional.scaled_dot_product_attention(tensor, tensor, tensor).shape == tensor.shape
assert are_modules(), "fake tensors call what is not defined"
assert callable(torch.export.export)
"""


def test_what_torch_defines_for_tensors_without_values_is_imported_when_an_operation_needs_it() -> None:
    done = subprocess.run([sys.executable, "-P", "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
