"""What the engine says that rows may draw, made ready for their logits."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from stentor.protocols.steps import Masks

from ..grammar.token_sets import WORD_BYTES

SlotMasks = Mapping[int, npt.NDArray[np.uint8]]
"""By slot: which tokens it may draw, bit t % 8 of byte t // 8, whole words of 32 bits."""

NO_MASKS: SlotMasks = {}

_BYTES: npt.NDArray[np.uint8] = np.arange(256, dtype=np.uint8)[:, None]
_LIMITS: npt.NDArray[np.float32] = np.where(
    np.unpackbits(_BYTES, axis=1, bitorder="little") == 1, np.inf, -np.inf
).astype(np.float32)
"""By a byte of a mask: what the logits of its eight tokens may be at most, [256, 8]."""


def slot_masks(masks: Masks, vocab_size: int) -> SlotMasks:
    """Cut or filled up to the vocabulary; tokens beyond it are not allowed. Raises ValueError for what is no mask."""
    nbytes = mask_bytes(vocab_size)
    shared = [_fitted(np.frombuffer(bits, dtype=np.uint8), nbytes) for bits in masks.bits]
    found: dict[int, npt.NDArray[np.uint8]] = {}
    for row in masks.rows:
        if row.bits >= len(shared):
            raise ValueError(f"the masks of step {masks.step} have {len(shared)} sets; slot {row.slot} has {row.bits}")
        found[row.slot] = shared[row.bits] if row.bits >= 0 else _packed(row.ids, nbytes)
    return found


def mask_bytes(vocab_size: int) -> int:
    return -(-vocab_size // (8 * WORD_BYTES)) * WORD_BYTES


def restrict_row_(logits: torch.Tensor, mask: npt.NDArray[np.uint8]) -> None:
    """Sets, in place, what may not be drawn to -inf, in logits [vocabulary].

    A look-up gives eight limits for a byte of the mask: that is ten times as fast as writing where bits say so, which
    no processor foresees. What is no number stays none, and is not drawn. Not by torch: it would share so little work
    among threads of its own, which fight for the cores with ours.
    """
    here = logits.cpu()  # the very same, where they lie in this process's memory
    values = here.numpy()
    whole = len(values) // 8
    limits = _LIMITS.take(mask, axis=0)
    np.minimum(values[: 8 * whole], limits[:whole].reshape(-1), out=values[: 8 * whole])
    if 8 * whole < len(values):
        rest = values[8 * whole :]
        np.minimum(rest, limits[whole][: len(rest)], out=rest)
    if here is not logits:
        logits.copy_(here)


def lowest(mask: npt.NDArray[np.uint8]) -> int:
    """The lowest token that may be drawn; 0 where there is none."""
    return int(np.unpackbits(mask, bitorder="little").argmax())


def _packed(ids: list[int], nbytes: int) -> npt.NDArray[np.uint8]:
    mask = np.zeros(nbytes, dtype=np.uint8)
    for token in ids:
        if 0 <= token < 8 * nbytes:
            mask[token >> 3] |= 1 << (token & 7)
    return mask


def _fitted(bits: npt.NDArray[np.uint8], nbytes: int) -> npt.NDArray[np.uint8]:
    if len(bits) >= nbytes:
        return bits[:nbytes]
    return np.pad(bits, (0, nbytes - len(bits)))
