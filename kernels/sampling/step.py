"""The sampler's step over its tables, which a runner calls and may capture in a graph."""

import torch

from ..guards import FLOATS, describe, triton_unsupported_reason
from ..variants import Choice, Variant, select_variant
from . import reference_step
from .tables import PARAMS, SamplerTables


def choose_step(logits: torch.Tensor, variant: Choice = "auto") -> Variant:
    """Returns the variant that the operations over tables run on ``logits``."""
    return select_variant(variant, triton=triton_unsupported_reason(logits, variant))


def write_params_(tables: SamplerTables, rows: torch.Tensor, packed: torch.Tensor, *, variant: Choice = "auto") -> None:
    """Writes parameters of slots: ``tables.params[rows[i]] = packed[i]`` for every row that is not below 0.

    Args:
        rows: [n] int64, slots, all different except for padding, which is below 0.
        packed: [n, PARAMS] int64, made by :func:`.tables.pack_params`; its rows may be strided.
    """
    if rows.dim() != 1 or tuple(packed.shape) != (rows.shape[0], PARAMS) or packed.stride(1) != 1:
        raise ValueError(f"write_params_: packed {describe(packed)} must be [{rows.shape[0]}, {PARAMS}], rows adjacent")
    if rows.dtype != torch.int64 or packed.dtype != torch.int64:
        raise ValueError(f"write_params_: rows {describe(rows)} and packed {describe(packed)} must be int64")
    if choose_step(packed, variant) == "triton":
        from . import triton_step

        triton_step.write_params_(tables, rows, packed)
    else:
        reference_step.write_params_(tables, rows, packed)


def step_(
    logits: torch.Tensor, slots: torch.Tensor, tables: SamplerTables, out: torch.Tensor, *, variant: Choice = "auto"
) -> None:
    """Draws a token for each row by the parameters of its slot, and counts it as the slot's output.

    Applies penalties, bias and masks in this order, as ``penalise_``, ``add_bias_`` and ``restrict_`` do, and then
    draws what ``draw`` draws, bit for bit. The slot's ``index`` grows by one, and so does ``seen`` of the token if the
    slot has penalties. It can be captured in a graph: no allocation depends on values, and nothing waits for the
    device.

    Args:
        logits: [R, V], float32, bfloat16 or float16, rows may be strided; those of rows with penalties, bias or masks
            may be changed.
        slots: [R] int64, all different except for padding below 0: such rows write 0 and change nothing. Slots beyond
            the tables are not checked on a GPU.
        tables: of V tokens, on the device of ``logits``; changed.
        out: [R] int64, written. If nothing can be drawn, the slot's fallback.

    Raises:
        ValueError: shapes or dtypes that do not fit.
    """
    _check(logits, slots, tables, "step_", logits.dim() == 2 and logits.shape[0] == slots.shape[0])
    _check_out(out, slots.shape)
    if choose_step(logits, variant) == "triton":
        from . import triton_step

        triton_step.step_(logits, slots, tables, out)
    else:
        reference_step.step_(logits, slots, tables, out)


def processed_of(logits: torch.Tensor, slots: torch.Tensor, tables: SamplerTables) -> torch.Tensor:
    """Returns logits of the distributions that :func:`step_` would draw from: [R, V] float32.

    Args as there; nothing is changed. Plain torch on every device; nothing waits for it.
    """
    _check(logits, slots, tables, "processed_of", logits.dim() == 2 and logits.shape[0] == slots.shape[0])
    return reference_step.processed_of(logits, slots, tables)


def verify_(
    logits: torch.Tensor,
    drafts: torch.Tensor,
    draft_probs: torch.Tensor | None,
    slots: torch.Tensor,
    tables: SamplerTables,
    tokens: torch.Tensor,
    accepted: torch.Tensor,
    *,
    variant: Choice = "auto",
) -> None:
    """Verifies drafted tokens, and draws one more for each sequence, by the parameters of its slot.

    Without ``draft_probs`` a draft counts as certain: at each position the token is drawn as ``step_`` would, with the
    noise of its own output index, and drafts are accepted as long as they equal the drawn tokens. So the output is,
    token for token, that of drawing without drafts. With ``draft_probs`` the rule is that of arXiv:2211.17192: accept
    with probability min(1, p / q), where p is the distribution after the slot's parameters; at a rejected draft, draw
    from max(p - q, 0). Both decisions have noise of their own, keyed by seed and output index. Greedy slots accept the
    drafts that equal their argmax.

    Args:
        logits: [S, k + 1, V], float32, bfloat16 or float16, positions one after the other in memory; may be changed.
            Position i follows the drafts before i.
        drafts: [S, k] int64; a token below 0 is never accepted.
        draft_probs: [S, k, V] float32, contiguous, the distribution that each draft was drawn from; None for certain
            drafts.
        slots: [S] int64, as for :func:`step_`.
        tables: changed: index and ``seen`` grow by the accepted drafts and the token after them.
        tokens: [S, k + 1] int64, written: the accepted drafts, the token after them, then -1. Padding writes 0.
        accepted: [S] int64, written: how many drafts were accepted.

    Raises:
        ValueError: shapes or dtypes that do not fit.
    """
    fits = logits.dim() == 3 and (logits.shape[0], logits.shape[1] - 1) == tuple(drafts.shape)
    _check(logits, slots, tables, "verify_", fits and logits.stride(0) == logits.shape[1] * logits.stride(1))
    if drafts.dtype != torch.int64 or not drafts.is_contiguous():
        raise ValueError(f"verify_: drafts must be contiguous int64, got {describe(drafts)}")
    if draft_probs is not None:
        expected = (*drafts.shape, logits.shape[2])
        if tuple(draft_probs.shape) != expected or draft_probs.dtype != torch.float32:
            raise ValueError(f"verify_: draft_probs must be float32 {expected}, got {describe(draft_probs)}")
        if not draft_probs.is_contiguous():
            raise ValueError(f"verify_: draft_probs must be contiguous, its strides are {draft_probs.stride()}")
    _check_out(tokens, logits.shape[:2])
    _check_out(accepted, slots.shape)
    if choose_step(logits, variant) == "triton":
        from . import triton_rejection

        triton_rejection.verify_(logits, drafts, draft_probs, slots, tables, tokens, accepted)
    else:
        reference_step.verify_(logits, drafts, draft_probs, slots, tables, tokens, accepted)


def _check(logits: torch.Tensor, slots: torch.Tensor, tables: SamplerTables, name: str, fits: bool) -> None:
    if not fits or logits.dtype not in FLOATS or logits.stride(-1) != 1:
        raise ValueError(f"{name}: logits {describe(logits)}, strides {logits.stride()}, do not fit the rest")
    if logits.shape[-1] != tables.vocab_size:
        raise ValueError(f"{name}: logits have {logits.shape[-1]} tokens, the tables {tables.vocab_size}")
    if slots.dim() != 1 or slots.dtype != torch.int64:
        raise ValueError(f"{name}: slots must be int64 of one dimension, got {describe(slots)}")


def _check_out(out: torch.Tensor, shape: torch.Size) -> None:
    if out.shape != shape or out.dtype != torch.int64 or not out.is_contiguous():
        raise ValueError(f"what is written must be contiguous int64 {tuple(shape)}, got {describe(out)}")
