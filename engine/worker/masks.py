"""What the engine says that rows may draw, made ready for their logits."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from stentor.kernels import sampling
from stentor.protocols.ipc.steps import Masks

from ..core.grammar.token_sets import WORD_BYTES

SlotMasks = Mapping[int, npt.NDArray[np.uint8]]
"""By slot: which tokens it may draw, bit t % 8 of byte t // 8, whole words of 32 bits."""

NO_MASKS: SlotMasks = {}


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


def restrict_rows_(logits: torch.Tensor, rows: Sequence[int], masks: Sequence[npt.NDArray[np.uint8]]) -> None:
    """Sets, in place, what may not be drawn to -inf, in ``rows`` of logits [R, vocabulary]; a mask for each."""
    words = torch.from_numpy(np.concatenate(masks)).view(torch.int32).view(len(masks), -1)
    sampling.mask_(logits, torch.tensor(rows, device=logits.device), words.to(logits.device))


def lowest(mask: npt.NDArray[np.uint8]) -> int:
    """The lowest token that may be drawn; 0 where there is none."""
    return int(np.unpackbits(mask, bitorder="little").argmax())


def _packed(ids: list[int], nbytes: int) -> npt.NDArray[np.uint8]:
    mask = bytearray(nbytes)
    for token in ids:
        if 0 <= token < 8 * nbytes:
            mask[token >> 3] |= 1 << (token & 7)
    return np.frombuffer(mask, dtype=np.uint8)


def _fitted(bits: npt.NDArray[np.uint8], nbytes: int) -> npt.NDArray[np.uint8]:
    if len(bits) >= nbytes:
        return bits[:nbytes]
    padded = np.zeros(nbytes, dtype=np.uint8)
    padded[: len(bits)] = bits
    return padded
