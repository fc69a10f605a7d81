"""Every kernel that a test of this folder compiles is checked for offsets that are too narrow."""

from typing import Any, Final

import pytest

from stentor.kernels import dry_run
from stentor.tests.compile.offsets import narrow_offsets

BOUNDED: Final = {
    "decode_kernel": "ptr<i32>",  # a counter for each sequence and kv head
    "_prefill_kernel": "ptr<i32>",  # a sequence's blocks, by the first of a part's keys
    "latent_kernel": "ptr<i32>",  # likewise
    "normed_skinny_kernel": "ptr<f32>",  # a square for each of 64 tokens and each tile of outputs
    "skinny_kernel": "ptr<f32>",  # likewise
    "add_parts_kernel": "ptr<f32>",  # likewise, of each block of outputs
}
"""Kernels with offsets that only look large, and the pointers that they are added to."""
_passed: set[int] = set()


@pytest.fixture(autouse=True)
def _offsets_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    make = dry_run.CompiledKernel

    def checked(**fields: Any) -> dry_run.CompiledKernel:
        made = make(**fields)
        if (key := hash(made.ttir)) not in _passed:
            bounded = BOUNDED.get(made.name)
            narrow = [each for each in narrow_offsets(made.ttir) if bounded is None or bounded not in each]
            assert not narrow, made.name
            _passed.add(key)
        return made

    monkeypatch.setattr(dry_run, "CompiledKernel", checked)
