"""Every kernel that a test of this folder compiles is checked for offsets that are too narrow."""

from typing import Any, Final

import pytest

from stentor.kernels.launching import dry_run
from stentor.tests.compile.offsets import narrow_offsets

_OF_GROUPS: Final = (
    *(f"addptr %{name}," for name in ("scales", "sub_scales", "mins", "sub_mins", "zeros")),
    "x1x!tt.ptr<",
)
"""Numbers that 16 weights or more share, of which there are fewer than 2^35."""
BOUNDED: Final = {
    "decode_kernel": ("ptr<i32>",),  # a counter for each sequence and kv head
    "_prefill_kernel": ("ptr<i32>",),  # a sequence's blocks, by the first of a part's keys
    "latent_kernel": ("ptr<i32>",),  # likewise
    "normed_skinny_kernel": ("ptr<f32>",),  # a square for each of 64 tokens and each tile of outputs
    "skinny_kernel": ("ptr<f32>",),  # likewise
    "add_parts_kernel": ("ptr<f32>",),  # likewise, of each block of outputs
    "linear_skinny": _OF_GROUPS,
    "linear_general": _OF_GROUPS,
    "make_floats": _OF_GROUPS,
    "choose_tokens": (", %ids_",),  # a token of the vocabulary
}
"""Kernels with offsets that only look large, and how these are added."""
_passed: set[int] = set()


@pytest.fixture(autouse=True)
def _offsets_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    make = dry_run.CompiledKernel

    def checked(**fields: Any) -> dry_run.CompiledKernel:
        made = make(**fields)
        if (key := hash(made.ttir)) not in _passed:
            bounded = BOUNDED.get(made.name, ())
            narrow = [each for each in narrow_offsets(made.ttir) if not any(known in each for known in bounded)]
            assert not narrow, made.name
            _passed.add(key)
        return made

    monkeypatch.setattr(dry_run, "CompiledKernel", checked)
