"""Converts the engine's masks for use on logits."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from stentor.kernels import sampling
from stentor.protocols.ipc.steps import Masks

from ...core.grammar.token_sets import WORD_BYTES

SlotMasks = Mapping[int, npt.NDArray[np.uint8]]
"""Allowed tokens by slot: bit t % 8 of byte t // 8, in whole words of 32 bits."""

NO_MASKS: SlotMasks = {}


def slot_masks(masks: Masks, vocab_size: int) -> SlotMasks:
    """The masks of a step whose rows sample one token each, cut or padded to the vocabulary.

    Padding is not allowed. Raises ValueError for an invalid mask.
    """
    return next(iter(position_masks(masks, vocab_size)), NO_MASKS)


def position_masks(masks: Masks, vocab_size: int) -> list[SlotMasks]:
    """The masks of each position of a step: the rows' own tokens first, then behind each draft.

    A row without a mask at a position is not restricted there.
    """
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
    """Number of masks by slot."""
    return Counter(row.slot for row in masks.rows)


def mask_bytes(vocab_size: int) -> int:
    return -(-vocab_size // (8 * WORD_BYTES)) * WORD_BYTES


def restrict_rows_(logits: torch.Tensor, rows: Sequence[int], masks: Sequence[npt.NDArray[np.uint8]]) -> None:
    """Set the logits of tokens that are not allowed to -inf, in ``rows`` of [R, vocabulary]; one mask a row."""
    words = torch.from_numpy(np.concatenate(masks)).view(torch.int32).view(len(masks), -1)
    sampling.mask_(logits, torch.tensor(rows, device=logits.device), words.to(logits.device))


def lowest(mask: npt.NDArray[np.uint8]) -> int:
    """The lowest allowed token; 0 if there is none."""
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
