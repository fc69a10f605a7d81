"""What the engine says that rows may draw, made ready for their logits."""

from collections import Counter
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
    """Those of a step whose rows draw one token each: cut or filled up to the vocabulary; tokens beyond it are not
    allowed. Raises ValueError for what is no mask."""
    return next(iter(position_masks(masks, vocab_size)), NO_MASKS)


def position_masks(masks: Masks, vocab_size: int) -> list[SlotMasks]:
    """The same for each position of a step: first of the rows' own tokens, then behind each of their drafts. A row that
    is left out at a position may draw anything there."""
    nbytes = mask_bytes(vocab_size)
    shared = [_fitted(np.frombuffer(bits, dtype=np.uint8), nbytes) for bits in masks.bits]
    found: list[dict[int, npt.NDArray[np.uint8]]] = []
    seen: Counter[int] = Counter()
    for row in masks.rows:
        if row.bits >= len(shared):
            raise ValueError(f"the masks of step {masks.step} have {len(shared)} sets; slot {row.slot} has {row.bits}")
        if seen[row.slot] == len(found):
            found.append({})
        if row.bits >= 0 or row.ids:
            found[seen[row.slot]][row.slot] = shared[row.bits] if row.bits >= 0 else _packed(row.ids, nbytes)
        seen[row.slot] += 1
    return list(found)


def mask_counts(masks: Masks) -> Counter[int]:
    """How many masks each slot has."""
    return Counter(row.slot for row in masks.rows)


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
