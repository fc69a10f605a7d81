"""Sampling in plain torch: the reference. Every other version must choose the same tokens, bit for bit.

Everything that decides a choice is computed by operations that round once, or summed as integers. So it does not depend
on the order of a reduction, and a row never depends on its neighbours.
"""

import math

import torch

from .noise import gumbel, noise_words, row_keys
from .slot_params import MASS_BITS, SlotParams

_LOG2_E = 1.4426950408889634
_LN2_HIGH = 0.693145751953125
_LN2_LOW = 1.42860682030941723e-6
_EXP_SERIES = (1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0, 1.0)
_NO_MASS_BELOW = -40.0


def penalise_(
    logits: torch.Tensor,
    strengths: torch.Tensor,
    rows: torch.Tensor,
    offsets: torch.Tensor,
    ids: torch.Tensor,
    counts: torch.Tensor,
) -> None:
    """See :func:`stentor.kernels.sampling.penalise_`."""
    lengths = offsets.diff()
    where = (rows.repeat_interleave(lengths), ids)
    repetition, frequency, presence = strengths.repeat_interleave(lengths, dim=0).unbind(1)
    times = counts.to(torch.float32)
    x = logits[where]
    x = torch.where(x > 0, x / repetition, x * repetition)
    x = x - frequency * times
    x = x - presence * (times > 0)
    logits[where] = x


def add_bias_(
    logits: torch.Tensor, rows: torch.Tensor, offsets: torch.Tensor, ids: torch.Tensor, values: torch.Tensor
) -> None:
    """See :func:`stentor.kernels.sampling.add_bias_`."""
    where = (rows.repeat_interleave(offsets.diff()), ids)
    logits[where] = logits[where] + values


def restrict_(logits: torch.Tensor, rows: torch.Tensor, offsets: torch.Tensor, ids: torch.Tensor) -> None:
    """See :func:`stentor.kernels.sampling.restrict_`."""
    where = (rows.repeat_interleave(offsets.diff()), ids)
    kept = logits[where]
    logits[rows] = -math.inf
    logits[where] = kept


def mask_(logits: torch.Tensor, rows: torch.Tensor, words: torch.Tensor) -> None:
    """See :func:`stentor.kernels.sampling.mask_`."""
    places = torch.arange(32, dtype=torch.int32, device=words.device)
    for row, own in zip(rows.tolist(), words, strict=True):
        allowed = (own[:, None] >> places & 1).flatten()[: logits.shape[1]]
        logits[row].masked_fill_(allowed == 0, -math.inf)


def argmax(logits: torch.Tensor) -> torch.Tensor:
    """See :func:`stentor.kernels.sampling.argmax`."""
    logits = _without_nan(logits)
    return torch.where(logits.amax(-1) == -math.inf, -1, logits.argmax(-1))


def draw(logits: torch.Tensor, slots: torch.Tensor, indices: torch.Tensor, slot_params: SlotParams) -> torch.Tensor:
    """See :func:`stentor.kernels.sampling.draw`."""
    logits = _without_nan(logits)
    possible, z = kept(logits, slots, slot_params)
    keys = row_keys(slot_params.seed[slots], indices)[:, None]
    tokens = torch.arange(logits.shape[1], device=logits.device)
    value = z.to(torch.float64) + gumbel(noise_words(keys, tokens))
    sampled_token_ids = torch.where(possible, value, -math.inf).argmax(-1)
    chosen = torch.where(slot_params.inverse_temperature[slots] > 0.0, sampled_token_ids, logits.argmax(-1))
    return torch.where(logits.amax(-1) == -math.inf, -1, chosen)


def kept(logits: torch.Tensor, slots: torch.Tensor, slot_params: SlotParams) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns what the filters keep, bool [R, V], and (logit - largest logit) / temperature, float32 [R, V]."""
    logits = _without_nan(logits)
    of_rows = slot_params.of(slots)
    random = of_rows.inverse_temperature > 0.0
    top_k, top_p = of_rows.top_k, of_rows.top_p
    possible, z = _scaled(logits, of_rows)
    limited = (random & (top_k > 0) & (top_k < logits.shape[1])).nonzero().flatten()
    descending = logits[limited].sort(descending=True).values
    possible[limited] &= logits[limited] >= descending.gather(1, top_k[limited, None] - 1)
    limited = (random & (top_p < 1.0)).nonzero().flatten()
    masses = torch.where(possible[limited], mass(z[limited]), 0)
    possible[limited] &= _nucleus(logits[limited], masses, top_p[limited, None])
    return possible, z


def processed(logits: torch.Tensor, slot_params: SlotParams) -> torch.Tensor:
    """See :func:`stentor.kernels.sampling.processed`."""
    logits = _without_nan(logits)
    possible, z = _scaled(logits, slot_params)
    ordered, order = logits.sort(descending=True, stable=True)
    width = logits.shape[1]
    last = torch.where(slot_params.top_k > 0, slot_params.top_k, width).clamp(max=width) - 1
    possible &= logits >= ordered.gather(1, last[:, None])
    masses = torch.where(possible, mass(z), 0)
    top_p = slot_params.top_p[:, None]
    possible &= _in_nucleus(order, masses, top_p) | (top_p >= 1.0)
    inverse = slot_params.inverse_temperature[:, None]
    return torch.where(inverse > 0.0, torch.where(possible, logits * inverse, -math.inf), logits)


def _scaled(logits: torch.Tensor, slot_params: SlotParams) -> tuple[torch.Tensor, torch.Tensor]:
    """What min-p keeps, bool [R, V], and (logit - largest logit) / temperature, float32 [R, V], of logits without
    NaN. Parameters are of rows."""
    peak = logits.amax(-1, keepdim=True)
    # The largest logit has distance 0 even if it is infinite.
    distance = torch.where(logits == peak, 0.0, logits - peak)
    possible = (logits > -math.inf) & (distance >= slot_params.min_p_threshold[:, None])
    return possible, distance * slot_params.inverse_temperature[:, None]


def gumbel_max(weights: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Draws a token [R] with probability proportional to ``weights`` [R, V] float64; -1 if all are 0."""
    tokens = torch.arange(weights.shape[1], device=weights.device)
    value = weights.log() + gumbel(noise_words(keys[:, None], tokens))
    return torch.where(weights.amax(-1) > 0.0, value.argmax(-1), -1)


def uniform(keys: torch.Tensor) -> torch.Tensor:
    """Returns a number in (0, 1) for each key, float64."""
    return (noise_words(keys, torch.zeros_like(keys)).to(torch.float64) + 0.5) * 2.0**-32


def mass(z: torch.Tensor) -> torch.Tensor:
    """Returns floor(2**40 * exp(z)) for z <= 0 (float32), as int64, from a float32 exponential that is the same
    everywhere."""
    x = z.clamp(min=_NO_MASS_BELOW)
    n = torch.round(x * _LOG2_E)
    r = x - n * _LN2_HIGH
    r = r - n * _LN2_LOW
    series = torch.full_like(r, _EXP_SERIES[0])
    for coefficient in _EXP_SERIES[1:]:
        series = series * r + coefficient
    scaled = series.view(torch.int32) + ((n.to(torch.int32) + MASS_BITS) << 23)
    return scaled.view(torch.float32).to(torch.int64)


def _nucleus(logits: torch.Tensor, masses: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Returns the smallest set of most likely tokens whose mass reaches top_p, lowest id first among equals: bool [R,
    V]."""
    return _in_nucleus(logits.sort(descending=True, stable=True).indices, masses, top_p)


def _in_nucleus(order: torch.Tensor, masses: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The same of tokens whose ids are in ``order``."""
    ordered = masses.gather(1, order)
    total = ordered.sum(1, keepdim=True)
    need = (top_p * total.to(torch.float64)).ceil().to(torch.int64).clamp(min=1).minimum(total)
    before = ordered.cumsum(1) - ordered
    return torch.zeros_like(masses, dtype=torch.bool).scatter(1, order, before < need)


def logprobs(
    logits: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor, top: int, ids: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """See :func:`stentor.kernels.sampling.logprobs`."""
    logits = _without_nan(logits[rows])
    every = torch.arange(logits.shape[1], device=logits.device)
    own = logits.gather(1, tokens[:, None])
    rank = 1 + ((logits > own) | ((logits == own) & (every < tokens[:, None]))).sum(-1)
    peak = logits.amax(-1, keepdim=True)
    distance = torch.where(logits == peak, 0.0, logits - peak)
    # A row of -inf only has no distribution: every token is impossible.
    values = distance.log_softmax(-1, dtype=torch.float64).to(torch.float32)
    values = torch.where(peak == -math.inf, -math.inf, values)
    best = torch.cat((_best(logits, min(top, logits.shape[1])), ids), dim=1)
    return values.gather(1, tokens[:, None])[:, 0], rank, best, values.gather(1, best)


def _best(logits: torch.Tensor, top: int) -> torch.Tensor:
    """Returns ids [R, top] of the largest logits, best first, lowest id first among equals."""
    if top == 0:
        return torch.empty((logits.shape[0], 0), dtype=torch.int64, device=logits.device)
    return logits.sort(descending=True, stable=True).indices[:, :top]


def _without_nan(logits: torch.Tensor) -> torch.Tensor:
    """Replaces NaN by -inf: a broken model must not crash the sampler, nor win."""
    return torch.where(logits.isnan(), -math.inf, logits)
