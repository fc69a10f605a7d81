"""What a worker imports before it is forked."""

import subprocess
import sys

PROGRAM = """
import sys
from stentor.engine.worker import process

process.preload()
import torch

assert "stentor.engine.worker.service" in sys.modules
assert "torch._prims" not in sys.modules, "the rules for shapes were imported"
for module in list(sys.modules.values()):
    getattr(module, "__file__", None)  # as inspect does
assert "torch._prims" not in sys.modules, "somebody who looked at all modules has had them imported"
import torch._decomp

assert torch.empty(2, 3, device="meta").cummax(0).values.shape == (2, 3)
assert torch._meta_registrations is sys.modules["torch._meta_registrations"]
assert torch._meta_registrations.meta_index_Tensor
"""


def test_torch_s_rules_for_shapes_are_imported_with_what_asks_for_them_and_not_before() -> None:
    subprocess.run([sys.executable, "-P", "-c", PROGRAM], check=True)
