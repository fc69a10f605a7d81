"""The sampler's state on the device: one entry per slot, in tensors that persist, so that a captured graph can use
them.

The small numbers of a slot are one row of ``params``, so that the rows which enter in a step fit in the step's single
copy to the device: :func:`pack_params` makes a row, and ``write_params_`` writes rows to their slots. Large and rare
data (masks, bias, the tokens seen) have tensors of their own, of fixed size. The host fills them outside graphs, before
the step that needs them.
"""

import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from .noise import signed
from .slot_params import SlotParams, inverse_of, min_p_threshold_of

# The columns of `params`, int64. float32 and float64 are stored as bit patterns.
SEED = 0
INDEX = 1
"""How many tokens the slot has drawn; keys the noise of the next draw."""
INVERSE_TEMPERATURE = 2
"""float32; 0 is greedy."""
MIN_P_THRESHOLD = 3
"""float32, see :class:`SlotParams`."""
TOP_P = 4
"""float64"""
TOP_K = 5
MIN_TOKENS = 6
"""While the index is below it, ``early_mask``, if there is one, replaces ``mask``."""
REPETITION = 7
"""float32, like the next two."""
FREQUENCY = 8
PRESENCE = 9
FLAGS = 10
FALLBACK = 11
"""The token if nothing can be drawn; below 0: the lowest id that ``mask`` allows."""
BIAS_COUNT = 12
PARAMS = 16
"""The number of columns; those without a name are free."""

PENALTIES = 1
"""The bits of FLAGS."""
BIAS = 2
MASK = 4
EARLY_MASK = 8

RESIDUAL_NOISE, ACCEPT_NOISE = 1 << 62, 3 << 61
"""XORed with the seed for the two further decisions about a draft, so that their noise is their own."""

IN_PROMPT = 1 << 30
"""The flag in an entry of ``seen``; the lower bits count how often the token is in the output."""
MAX_BIAS = 4096
"""The most entries of one slot's bias."""
WORD = 32
"""Tokens per word of a mask; token t is bit t % 32 of word t // 32."""


def pack_params(
    *,
    seed: int,
    index: int = 0,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    min_tokens: int = 0,
    repetition: float = 1.0,
    frequency: float = 0.0,
    presence: float = 0.0,
    bias_count: int = 0,
    mask: bool = False,
    early_mask: bool = False,
    fallback: int = 0,
) -> list[int]:
    """Returns a slot's row of ``params``: PARAMS signed 64-bit numbers.

    Args:
        seed: unsigned 64 bits.
        index: tokens already drawn.
        temperature, top_k, top_p, min_p: as :meth:`SlotParams.set`.
        repetition, frequency, presence: if any of them is not neutral, ``seen`` counts.
        bias_count, mask, early_mask: what the slot has in the tables' tensors.
        fallback: the token if nothing can be drawn; -1 for the lowest that the mask allows.
    """
    inverse = inverse_of(temperature)
    flags = PENALTIES if (repetition, frequency, presence) != (1.0, 0.0, 0.0) else 0
    flags |= (BIAS if bias_count else 0) | (MASK if mask else 0) | (EARLY_MASK if early_mask else 0)
    row = [0] * PARAMS
    row[SEED] = signed(seed)
    row[INDEX] = index
    row[INVERSE_TEMPERATURE] = _float32_bits(inverse)
    row[MIN_P_THRESHOLD] = _float32_bits(min_p_threshold_of(min_p, inverse))
    row[TOP_P] = struct.unpack("<q", struct.pack("<d", top_p))[0]
    row[TOP_K] = top_k
    row[MIN_TOKENS] = min_tokens
    row[REPETITION], row[FREQUENCY], row[PRESENCE] = map(_float32_bits, (repetition, frequency, presence))
    row[FLAGS] = flags
    row[FALLBACK] = fallback
    row[BIAS_COUNT] = bias_count
    return row


@dataclass(frozen=True)
class SamplerTables:
    """Tables over slots, all on one device and contiguous. No tensor is ever replaced."""

    vocab_size: int
    params: torch.Tensor
    """[slots, PARAMS] int64, see the columns above."""
    seen: torch.Tensor
    """[slots, V] int32: 0 or IN_PROMPT, plus how often the token is in the output; [slots, 0] without penalties."""
    mask: torch.Tensor
    """[slots, ceil(V / 32)] int32: the tokens allowed."""
    early_mask: torch.Tensor
    """[slots, ceil(V / 32)] int32: the tokens allowed while fewer than ``min_tokens`` are drawn."""
    bias_ids: torch.Tensor
    """[slots, MAX_BIAS] int32, each id once per slot."""
    bias_values: torch.Tensor
    """[slots, MAX_BIAS] float32"""

    @classmethod
    def empty(cls, slots: int, vocab_size: int, device: torch.device, *, penalties: bool = True) -> "SamplerTables":
        """Returns tables whose every slot is greedy. ``penalties`` allocates ``seen``: 4 bytes per slot and token."""
        words = -(-vocab_size // WORD)
        int32 = torch.int32
        tables = cls(
            vocab_size=vocab_size,
            params=torch.zeros((slots, PARAMS), dtype=torch.int64, device=device),
            seen=torch.zeros((slots, vocab_size if penalties else 0), dtype=int32, device=device),
            mask=torch.full((slots, words), -1, dtype=int32, device=device),
            early_mask=torch.full((slots, words), -1, dtype=int32, device=device),
            bias_ids=torch.zeros((slots, MAX_BIAS), dtype=int32, device=device),
            bias_values=torch.zeros((slots, MAX_BIAS), dtype=torch.float32, device=device),
        )
        for column, value in zip(tables.params.T, pack_params(seed=0, temperature=0.0), strict=True):
            column.fill_(value)
        return tables

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        return (self.params, self.seen, self.mask, self.early_mask, self.bias_ids, self.bias_values)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def set_params(self, slot: int, row: list[int]) -> None:
        """Writes one slot's row from the host."""
        self.params[slot] = torch.tensor(row, dtype=torch.int64)


def pack_mask(vocab_size: int, allowed: Iterable[int] | None, banned: Iterable[int] = ()) -> torch.Tensor:
    """Returns a mask [ceil(V / 32)] int32 on the host. Ids outside the vocabulary are ignored."""
    bits = torch.zeros(-(-vocab_size // WORD) * WORD, dtype=torch.int32)
    if allowed is None:
        bits[:vocab_size] = 1
    else:
        bits[[token for token in allowed if 0 <= token < vocab_size]] = 1
    bits[[token for token in banned if 0 <= token < vocab_size]] = 0
    places = torch.arange(WORD, dtype=torch.int32)
    return torch.bitwise_left_shift(bits.view(-1, WORD), places).sum(1, dtype=torch.int32)


def unpack_mask(words: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Returns which tokens masks [..., ceil(V / 32)] int32 allow: bool [..., V]."""
    bits = (words[..., None] >> torch.arange(WORD, dtype=torch.int32, device=words.device)) & 1
    return bits.flatten(-2)[..., :vocab_size].bool()


def params_of(slot_params: SlotParams, slots: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Returns the rows of ``params`` [R, PARAMS] that hold the ``slot_params`` of ``slots`` [R], on their device."""
    rows = torch.zeros((slots.shape[0], PARAMS), dtype=torch.int64, device=slot_params.seed.device)
    rows[:, SEED] = slot_params.seed[slots]
    rows[:, INDEX] = indices
    rows[:, INVERSE_TEMPERATURE] = slot_params.inverse_temperature[slots].view(torch.int32).long()
    rows[:, MIN_P_THRESHOLD] = slot_params.min_p_threshold[slots].view(torch.int32).long()
    rows[:, TOP_P] = slot_params.top_p[slots].view(torch.int64)
    rows[:, TOP_K] = slot_params.top_k[slots]
    rows[:, FALLBACK] = -1
    return rows


def slot_params_of(params: torch.Tensor) -> SlotParams:
    """Returns the parameters in rows of ``params`` [R, PARAMS], with the row as the slot."""
    return SlotParams(
        inverse_temperature=float32_column(params, INVERSE_TEMPERATURE),
        top_k=params[:, TOP_K].contiguous(),
        min_p_threshold=float32_column(params, MIN_P_THRESHOLD),
        top_p=params[:, TOP_P].contiguous().view(torch.float64),
        seed=params[:, SEED].contiguous(),
    )


def float32_column(params: torch.Tensor, column: int) -> torch.Tensor:
    """Returns a column as [R] float32."""
    return params[:, column].to(torch.int32).view(torch.float32)


def _float32_bits(value: float) -> int:
    if math.isfinite(value):  # as torch rounds: too large a value becomes infinite
        value = torch.tensor(value, dtype=torch.float32).item()
    return int(struct.unpack("<i", struct.pack("<f", value))[0])
