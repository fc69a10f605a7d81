"""Sampling: logits to token ids, for a batch whose rows each have their own parameters.

Logits are float32 ``[R, V]``, contiguous. Ragged per-row lists come as ``rows`` [P] int64 (which rows of the logits
have a list, each at most once), ``offsets`` [P + 1] int64 into the flat list, and the flat list itself. NaN counts as
-inf throughout. A row's result depends on that row alone, bit for bit.

:mod:`.reference` defines the results, :mod:`.noise` the noise. On a CPU the native version runs if there is a compiler,
on a GPU Triton's; they choose the same tokens. Log-probabilities agree to rounding. Rows, slots and ids outside their
tensors raise IndexError on a CPU and are not checked on a GPU.

A runner on a GPU keeps the parameters in :class:`SamplerTables` and calls :func:`step_` and :func:`verify_`.
"""

import torch

from ..guards import triton_unsupported_reason
from ..native import unavailable_reason
from ..variants import Choice, Variant, select_variant
from . import native, reference
from .slot_params import SlotParams
from .step import choose_step, processed_of, step_, verify_, write_params_
from .tables import SamplerTables, pack_mask, pack_params

__all__ = [
    "SamplerTables",
    "SlotParams",
    "add_bias_",
    "argmax",
    "choose",
    "choose_step",
    "draw",
    "logprobs",
    "mask_",
    "pack_mask",
    "pack_params",
    "penalise_",
    "processed",
    "processed_of",
    "restrict_",
    "step_",
    "verify_",
    "write_params_",
]

_MAX_TOP = 128
"""The most alternatives that Triton's log-probabilities can find."""


def choose(logits: torch.Tensor, variant: Choice = "auto") -> Variant:
    """Returns the variant that the operations of this module run on ``logits``. Raises ValueError as
    :func:`select_variant`."""
    no_native = None
    if not logits.is_cpu:  # first: whoever asks for the library waits until it is built
        no_native = f"it runs on the CPU, the logits are on {logits.device}"
    elif not native.usable(logits):
        no_native = unavailable_reason() or "it does not take them"
    return select_variant(variant, triton=triton_unsupported_reason(logits, variant), native=no_native)


def penalise_(
    logits: torch.Tensor,
    strengths: torch.Tensor,
    rows: torch.Tensor,
    offsets: torch.Tensor,
    ids: torch.Tensor,
    counts: torch.Tensor,
    *,
    variant: Choice = "auto",
) -> None:
    """Penalises, in place, the logits of tokens already seen.

    Args:
        logits: [R, V] float32, changed.
        strengths: [P, 3] float32: repetition, frequency, presence.
        rows, offsets: whose lists these are, see the module.
        ids: [N] int64, the tokens seen in prompt or output, each once per row.
        counts: [N] int64, how often the token is in the output; 0 if only the prompt has it.

    In this order, each step rounded to float32: ``l = l / repetition if l > 0 else l * repetition``, ``l -= frequency *
    count``, ``l -= presence * (count > 0)``.
    """
    _check_logits(logits)
    _check_lists(rows, offsets, ids, counts)
    if tuple(strengths.shape) != (rows.shape[0], 3) or strengths.dtype != torch.float32:
        raise ValueError(
            f"strengths must be float32 [{rows.shape[0]}, 3], got {strengths.dtype} {list(strengths.shape)}"
        )
    match choose(logits, variant):
        case "triton":
            from . import triton_edits

            triton_edits.penalise_(logits, strengths, rows, offsets, ids, counts)
        case "native":
            native.penalise_(logits, strengths, rows, offsets, ids, counts)
        case _:
            reference.penalise_(logits, strengths, rows, offsets, ids, counts)


def add_bias_(
    logits: torch.Tensor,
    rows: torch.Tensor,
    offsets: torch.Tensor,
    ids: torch.Tensor,
    values: torch.Tensor,
    *,
    variant: Choice = "auto",
) -> None:
    """Adds, in place, ``values`` [N] float32 to the logits of ``ids`` [N] int64, each once per row; -inf bans."""
    _check_logits(logits)
    _check_lists(rows, offsets, ids)
    if values.shape != ids.shape or values.dtype != torch.float32:
        raise ValueError(f"values must be float32 {list(ids.shape)}, got {values.dtype} {list(values.shape)}")
    match choose(logits, variant):
        case "triton":
            from . import triton_edits

            triton_edits.add_bias_(logits, rows, offsets, ids, values)
        case "native":
            native.add_bias_(logits, rows, offsets, ids, values)
        case _:
            reference.add_bias_(logits, rows, offsets, ids, values)


def restrict_(
    logits: torch.Tensor,
    rows: torch.Tensor,
    offsets: torch.Tensor,
    ids: torch.Tensor,
    *,
    variant: Choice = "auto",
) -> None:
    """Sets, in place, every logit of ``rows`` to -inf except those of ``ids`` [N] int64."""
    _check_logits(logits)
    _check_lists(rows, offsets, ids)
    match choose(logits, variant):
        case "triton":
            from . import triton_edits

            triton_edits.restrict_(logits, rows, offsets, ids)
        case "native":
            native.restrict_(logits, rows, offsets, ids)
        case _:
            reference.restrict_(logits, rows, offsets, ids)


def mask_(logits: torch.Tensor, rows: torch.Tensor, words: torch.Tensor, *, variant: Choice = "auto") -> None:
    """Sets, in place, logits of ``rows`` [P] int64, each at most once, to -inf if their token's bit is not set.

    ``words`` are int32 [P, ceil(V / 32)]: token t is bit t % 32 of word t // 32. On a GPU the reference runs, row by
    row: runners there use :func:`step_`.
    """
    _check_logits(logits)
    expected = (rows.shape[0], -(-logits.shape[1] // 32))
    if tuple(words.shape) != expected or words.dtype != torch.int32:
        raise ValueError(f"words must be int32 {list(expected)}, got {words.dtype} {list(words.shape)}")
    if choose(logits, variant) == "native":
        native.mask_(logits, rows, words)
    else:
        reference.mask_(logits, rows, words)


def argmax(logits: torch.Tensor, *, variant: Choice = "auto") -> torch.Tensor:
    """Returns the most likely token of each row, lowest id first among equals: [R] int64; -1 if all are -inf."""
    _check_logits(logits)
    match choose(logits, variant):
        case "triton":
            from . import triton_step

            return triton_step.argmax(logits)
        case "native":
            return native.argmax(logits)
        case _:
            return reference.argmax(logits)


def draw(
    logits: torch.Tensor,
    slots: torch.Tensor,
    indices: torch.Tensor,
    slot_params: SlotParams,
    *,
    variant: Choice = "auto",
) -> torch.Tensor:
    """Draws a token for each row: [R] int64; -1 if every logit is -inf.

    Args:
        logits: [R, V] float32, not changed.
        slots: [R] int64, the row's entry in ``slot_params``.
        indices: [R] int64, how many tokens the row has drawn before: the noise is keyed by (seed, index, id).
        slot_params: the tables.

    Greedy rows take their argmax, as :func:`argmax`. The others apply these filters in order:

    1. top-k: keeps the k most likely tokens, and every token equal to the k-th;
    2. min-p: keeps tokens whose probability is at least ``min_p`` times the largest;
    3. top-p: keeps, of what is left, the smallest set of most likely tokens (lowest id first among equals) whose share
       of the mass reaches ``top_p``, at least one token.

    Then they take the argmax of ``(l - max l) / temperature + gumbel(seed, index, id)`` over the kept tokens, which is
    a sample of their softmax (lowest id first among equals). Top-p measures masses in units of 2**-40 of the largest
    probability, so a ``top_p`` below 1 drops tokens under that.
    """
    _check_logits(logits)
    if slots.shape != logits.shape[:1] or indices.shape != slots.shape:
        raise ValueError(
            f"slots and indices must have one entry per row of logits ({logits.shape[0]}), "
            f"got {list(slots.shape)} and {list(indices.shape)}"
        )
    match choose(logits, variant):
        case "triton":
            from . import triton_step

            return triton_step.draw(logits, slots, indices, slot_params)
        case "native":
            return native.draw(logits, slots, indices, slot_params)
        case _:
            return reference.draw(logits, slots, indices, slot_params)


def processed(logits: torch.Tensor, slot_params: SlotParams) -> torch.Tensor:
    """Returns logits of the distribution that :func:`draw` samples from: [R, V] float32.

    Args:
        logits: [R, V] float32, not changed.
        slot_params: of each row; ``seed`` is not read.

    Rows are scaled by their temperature, and what the filters drop is -inf. Greedy rows stay as they are. Plain torch
    on every device; nothing waits for it.
    """
    _check_logits(logits)
    return reference.processed(logits, slot_params)


def logprobs(
    logits: torch.Tensor,
    rows: torch.Tensor,
    tokens: torch.Tensor,
    top: int,
    ids: torch.Tensor | None = None,
    *,
    variant: Choice = "auto",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns log-probabilities (natural logarithm of the softmax) of chosen tokens, of the best alternatives, and
    of given ones.

    Args:
        logits: [R, V] float32, not changed.
        rows: [P] int64, the rows wanted.
        tokens: [P] int64, a token for each.
        top: how many of the best alternatives; more than V gives V.
        ids: [P, N] int64, further alternatives of each row; None: none.

    Returns:
        the token's log-probability [P] float32; its rank [P] int64, 1 for the most likely, lowest id first among
        equals; the alternatives' ids [P, top + N] int64, first the best in the order of rank, then those of ``ids`` as
        given; and their log-probabilities [P, top + N] float32. If every logit is -inf, so is every log-probability.
    """
    _check_logits(logits)
    if rows.dim() != 1 or tokens.shape != rows.shape:
        raise ValueError(f"rows and tokens must be of one length, got {list(rows.shape)} and {list(tokens.shape)}")
    if ids is None:
        ids = rows.new_empty((len(rows), 0))
    if ids.dim() != 2 or len(ids) != len(rows):
        raise ValueError(f"ids must have a line for each of {len(rows)} rows, got {list(ids.shape)}")
    top = min(top, logits.shape[1])
    chosen = choose(logits, variant)
    if chosen == "triton" and top <= _MAX_TOP:
        from . import triton_logprobs

        return triton_logprobs.logprobs(logits, rows, tokens, top, ids)
    if chosen == "native":
        return native.logprobs(logits, rows, tokens, top, ids)
    return reference.logprobs(logits, rows, tokens, top, ids)


def _check_logits(logits: torch.Tensor) -> None:
    if logits.dim() != 2 or logits.dtype != torch.float32 or not logits.is_contiguous() or logits.shape[1] == 0:
        raise ValueError(
            f"logits must be contiguous float32 [rows, vocabulary], got {logits.dtype} {list(logits.shape)} "
            f"with strides {logits.stride()}"
        )


def _check_lists(rows: torch.Tensor, offsets: torch.Tensor, *flat: torch.Tensor) -> None:
    if offsets.shape[0] != rows.shape[0] + 1:
        raise ValueError(f"offsets must have {rows.shape[0] + 1} entries for {rows.shape[0]} rows, got {len(offsets)}")
    for list_ in flat:
        if list_.dtype != torch.int64 or list_.shape != flat[0].shape:
            raise ValueError(f"ids and counts must be int64 of one length, got {list_.dtype} {list(list_.shape)}")
