"""Reads an adapter from its files."""

from collections.abc import Sequence

import torch

from stentor.kernels.low_rank import LowRank, LowRankSum
from stentor.kernels.native.memory import HugeArena
from stentor.protocols.ipc.adapters import AdapterRef

from ...layers.linear.adapters import AdaptedLinear, Adapter, AdapterPlaces
from ...loading.adapter_files import open_adapter
from ...loading.errors import CheckpointError
from ...loading.gguf.adapter import GGUFAdapterFile
from .addition import Addition, check_once
from .gguf import gguf_additions
from .peft import peft_additions


def read_adapter(adapter: AdapterRef, places: AdapterPlaces, max_rank: int, device: torch.device) -> Adapter:
    """Read a whole adapter, in the form that products take. Checks that it fits the model before reading its matrices.

    Raises :class:`...loading.errors.CheckpointError`.
    """
    with open_adapter(adapter.root, adapter.path) as files:
        if adapter.identity and files.identity != adapter.identity:
            raise CheckpointError(
                f"the files of the adapter {adapter.name!r} have changed since it was loaded: unload it and load it "
                "again"
            )
        if isinstance(files, GGUFAdapterFile):
            additions = gguf_additions(files, places, max_rank)
        else:
            additions = peft_additions(files, places, max_rank)
        check_once(additions)
        room = HugeArena()
        found: dict[AdaptedLinear, LowRankSum] = {}
        for group in _by_product(additions):  # only one product, or one layer's experts, is in memory twice
            parts: dict[AdaptedLinear, list[LowRank]] = {}
            for addition in group:
                for place, of_place in zip(addition.places, addition.read(), strict=True):
                    for linear, (down, up) in zip(place.linears, of_place, strict=True):
                        _check_numbers(addition.module, (down, up), linear.dtype)
                        if linear.elsewhere:
                            continue
                        parts.setdefault(linear, []).append(LowRank(down, up, addition.scale, place.column))
            for linear, added in parts.items():
                before = found[linear].parts if linear in found else ()
                found[linear] = linear.kept([*before, *added], room.take, device)
        return found


def _check_numbers(module: str, matrices: Sequence[torch.Tensor], dtype: torch.dtype) -> None:
    """Raise :class:`...loading.errors.CheckpointError` for values that are NaN or outside of ``dtype``."""
    for which, matrix in zip("AB", matrices, strict=True):
        if not bool(matrix.abs().amax() <= torch.finfo(dtype).max):  # false for NaN too
            raise CheckpointError(f"lora_{which} of {module[:200]} has numbers that are none of {dtype}")


def _by_product(additions: Sequence[Addition]) -> list[list[Addition]]:
    """Group the additions by product."""
    found: dict[AdaptedLinear, list[Addition]] = {}
    for addition in additions:
        found.setdefault(addition.places[0].linears[0], []).append(addition)
    return list(found.values())
