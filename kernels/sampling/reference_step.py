"""A step of the sampler over its tables in plain torch: the reference. See :mod:`.step` for arguments."""

import math

import torch

from . import reference
from .noise import row_keys
from .tables import (
    ACCEPT_NOISE,
    BIAS,
    BIAS_COUNT,
    EARLY_MASK,
    FALLBACK,
    FLAGS,
    FREQUENCY,
    IN_PROMPT,
    INDEX,
    INVERSE_TEMPERATURE,
    MASK,
    MAX_BIAS,
    MIN_TOKENS,
    PENALTIES,
    PRESENCE,
    REPETITION,
    RESIDUAL_NOISE,
    SEED,
    SamplerTables,
    float32_column,
    slot_params_of,
    unpack_mask,
)


def write_params_(tables: SamplerTables, rows: torch.Tensor, packed: torch.Tensor) -> None:
    """See :func:`stentor.kernels.sampling.write_params_`."""
    tables.params[rows[rows >= 0]] = packed[rows >= 0]


def step_(logits: torch.Tensor, slots: torch.Tensor, tables: SamplerTables, out: torch.Tensor) -> None:
    """See :func:`stentor.kernels.sampling.step_`."""
    tokens = _draw(logits[:, None], slots, tables, slots.new_empty((slots.shape[0], 0)))
    out.copy_(torch.where(slots >= 0, tokens[:, 0], 0))
    _take(tables, slots, tokens, (slots >= 0).long())


def processed_of(logits: torch.Tensor, slots: torch.Tensor, tables: SamplerTables) -> torch.Tensor:
    """See :func:`stentor.kernels.sampling.processed_of`."""
    x = edited(logits[:, None], slots, tables, slots.new_empty((slots.shape[0], 0)))[:, 0]
    return reference.processed(x, slot_params_of(tables.params[slots.clamp(min=0)]))


def verify_(
    logits: torch.Tensor,
    drafts: torch.Tensor,
    draft_probs: torch.Tensor | None,
    slots: torch.Tensor,
    tables: SamplerTables,
    tokens: torch.Tensor,
    accepted: torch.Tensor,
) -> None:
    """See :func:`stentor.kernels.sampling.verify_`."""
    sampled_token_ids = _draw(logits, slots, tables, drafts)
    if draft_probs is None:
        agrees = sampled_token_ids[:, :-1] == drafts
    else:
        agrees, corrections = _rejection_sample(logits, slots, tables, drafts, draft_probs)
        random = float32_column(tables.params[slots.clamp(min=0)], INVERSE_TEMPERATURE)[:, None] > 0.0
        agrees = torch.where(random, agrees, sampled_token_ids[:, :-1] == drafts)
        corrections = torch.where(random & (corrections >= 0), corrections, sampled_token_ids[:, :-1])
        sampled_token_ids = torch.cat((torch.where(agrees, drafts, corrections), sampled_token_ids[:, -1:]), 1)
    active = slots >= 0
    leading = agrees.long().cumprod(1).sum(1)
    accepted.copy_(torch.where(active, leading, 0))
    lengths = torch.where(active, leading + 1, 0)
    places = torch.arange(sampled_token_ids.shape[1], device=slots.device)
    tokens.copy_(torch.where(places < lengths[:, None], sampled_token_ids, torch.where(active, -1, 0)[:, None]))
    _take(tables, slots, sampled_token_ids, lengths)


def edited(logits: torch.Tensor, slots: torch.Tensor, tables: SamplerTables, drafts: torch.Tensor) -> torch.Tensor:
    """Returns logits [S, P, V] as float32 after the edits of each position; the drafts before it count as output."""
    sequences, positions, vocabulary = logits.shape
    x = logits.to(torch.float32)
    slot = slots.clamp(min=0)
    params = tables.params[slot]
    flags = params[:, FLAGS, None, None]
    if tables.seen.shape[1]:
        seen = tables.seen[slot][:, None].repeat(1, positions, 1)
        for position in range(1, positions):
            before = drafts[:, :position]
            real = ((before >= 0) & (before < vocabulary)).to(torch.int32)
            seen[:, position].scatter_add_(1, before.clamp(0, vocabulary - 1), real)
        strengths = [float32_column(params, c)[:, None, None] for c in (REPETITION, FREQUENCY, PRESENCE)]
        repetition, frequency, presence = strengths
        times = (seen & (IN_PROMPT - 1)).to(torch.float32)
        lowered = torch.where(x > 0, x / repetition, x * repetition)
        lowered = lowered - frequency * times
        lowered = lowered - presence * (times > 0)
        x = torch.where((flags & PENALTIES != 0) & (seen != 0), lowered, x)
    entries = torch.arange(MAX_BIAS, device=x.device)
    biased = (flags[:, 0] & BIAS != 0) & (entries < params[:, BIAS_COUNT, None])
    bias = torch.where(biased, tables.bias_values[slot], 0.0)
    ids = torch.where(biased, tables.bias_ids[slot].long(), 0)
    added = torch.zeros((sequences, vocabulary), device=x.device).scatter_add_(1, ids, bias)
    hit = torch.zeros((sequences, vocabulary), dtype=torch.int32, device=x.device)
    hit.scatter_add_(1, ids, biased.to(torch.int32))
    x = torch.where((hit > 0)[:, None], x + added[:, None], x)

    places = torch.arange(positions, device=x.device)
    early = params[:, INDEX, None] + places < params[:, MIN_TOKENS, None]  # [S, P]
    use_early = (early[:, :, None]) & (flags & EARLY_MASK != 0)
    use_mask = ~use_early & (flags & MASK != 0)
    allowed = unpack_mask(tables.mask[slot], vocabulary)[:, None]
    early_allowed = unpack_mask(tables.early_mask[slot], vocabulary)[:, None]
    x = torch.where((use_mask & ~allowed) | (use_early & ~early_allowed), -math.inf, x)
    return torch.where((slots >= 0)[:, None, None], x, 0.0)


def _draw(logits: torch.Tensor, slots: torch.Tensor, tables: SamplerTables, drafts: torch.Tensor) -> torch.Tensor:
    """Draws tokens [S, P], each with the noise of its own output index."""
    sequences, positions, vocabulary = logits.shape
    x = edited(logits, slots, tables, drafts).flatten(0, 1)
    slot = slots.clamp(min=0)
    params = tables.params[slot]
    indices = params[:, INDEX, None] + torch.arange(positions, device=x.device)
    rows = torch.arange(sequences, device=x.device).repeat_interleave(positions)
    tokens = reference.draw(x, rows, indices.flatten(), slot_params_of(params)).view(sequences, positions)
    allowed = unpack_mask(tables.mask[slot], vocabulary) | (params[:, FLAGS, None] & MASK == 0)
    lowest = torch.where(params[:, FALLBACK] >= 0, params[:, FALLBACK], allowed.long().argmax(1))
    return torch.where(tokens < 0, lowest[:, None], tokens)


def _take(tables: SamplerTables, slots: torch.Tensor, tokens: torch.Tensor, lengths: torch.Tensor) -> None:
    """Counts the first ``lengths`` of ``tokens`` [S, P] as output of their slots."""
    active = slots >= 0
    slots, tokens, lengths = slots[active], tokens[active], lengths[active]
    penalised = tables.params[slots, FLAGS] & PENALTIES != 0
    tables.params[slots, INDEX] += lengths
    for position in range(tokens.shape[1]):
        counted = penalised & (lengths > position)
        tables.seen[slots[counted], tokens[counted, position]] += 1


def _rejection_sample(
    logits: torch.Tensor, slots: torch.Tensor, tables: SamplerTables, drafts: torch.Tensor, draft_probs: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns whether each draft is accepted [S, k], and the token that replaces it if it is the first rejected one [S,
    k].

    arXiv:2211.17192: accept with probability min(1, p / q); otherwise draw from max(p - q, 0).
    """
    sequences, drafted, _ = draft_probs.shape
    x = edited(logits, slots, tables, drafts)[:, :-1].flatten(0, 1)
    params = tables.params[slots.clamp(min=0)].repeat_interleave(drafted, 0)
    indices = params[:, INDEX] + torch.arange(drafted, device=x.device).repeat(sequences)
    kept, z = reference.kept(x, torch.arange(x.shape[0], device=x.device), slot_params_of(params))
    weights = torch.where(kept, z.to(torch.float64).exp(), 0.0)
    p = weights / weights.sum(1, keepdim=True)
    q = draft_probs.flatten(0, 1).to(torch.float64)
    token = drafts.flatten().clamp(0, q.shape[1] - 1)[:, None]
    real = token[:, 0] == drafts.flatten()

    # One uniform number per index, from the noise of a token that does not exist.
    u = reference.uniform(row_keys(params[:, SEED] ^ ACCEPT_NOISE, indices))
    agrees = real & (u * q.gather(1, token)[:, 0] < p.gather(1, token)[:, 0])
    residual = (p - q).clamp(min=0.0)
    keys = row_keys(params[:, SEED] ^ RESIDUAL_NOISE, indices)
    corrections = reference.gumbel_max(residual, keys)
    return agrees.view(sequences, drafted), corrections.view(sequences, drafted)
