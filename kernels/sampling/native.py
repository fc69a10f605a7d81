"""The native version of sampling on a CPU. The package documents the shapes and checks the arguments."""

from ctypes import c_int64, c_void_p

import torch

from ..native import NativeFunction, pointers, threads
from .slot_params import SlotParams

_LISTS = (c_void_p, c_int64, c_int64, c_int64, c_void_p, c_void_p, c_int64, c_void_p)
_penalise = NativeFunction("stentor_sampling_penalise", *_LISTS, c_void_p, c_void_p, restype=c_int64)
_add_bias = NativeFunction("stentor_sampling_add_bias", *_LISTS, c_void_p, restype=c_int64)
_restrict = NativeFunction("stentor_sampling_restrict", *_LISTS, restype=c_int64)
_mask = NativeFunction(
    "stentor_sampling_mask", c_void_p, c_int64, c_int64, c_int64, c_void_p, c_void_p, c_int64, restype=c_int64
)
_argmax = NativeFunction("stentor_sampling_argmax", c_void_p, c_int64, c_int64, c_void_p, c_int64)
_draw = NativeFunction(
    "stentor_sampling_draw", c_void_p, c_int64, c_int64, c_void_p, c_void_p, c_int64, *[c_void_p] * 6, c_int64,
    restype=c_int64,
)  # fmt: skip
_logprobs = NativeFunction(
    "stentor_sampling_logprobs", c_void_p, c_int64, c_int64, c_int64, *[c_void_p] * 3, c_int64, c_int64,
    *[c_void_p] * 4, c_int64, restype=c_int64,
)  # fmt: skip


def usable(logits: torch.Tensor) -> bool:
    """Whether the native version can take these logits: they are on the CPU, and there is a library."""
    return logits.device.type == "cpu" and _argmax.bind() is not None


def penalise_(
    logits: torch.Tensor,
    strengths: torch.Tensor,
    rows: torch.Tensor,
    offsets: torch.Tensor,
    ids: torch.Tensor,
    counts: torch.Tensor,
) -> None:
    counts, strengths = counts.contiguous(), strengths.contiguous()
    _edit(_penalise, logits, rows, offsets, ids, counts.data_ptr(), strengths.data_ptr())


def add_bias_(
    logits: torch.Tensor, rows: torch.Tensor, offsets: torch.Tensor, ids: torch.Tensor, values: torch.Tensor
) -> None:
    values = values.contiguous()
    _edit(_add_bias, logits, rows, offsets, ids, values.data_ptr())


def restrict_(logits: torch.Tensor, rows: torch.Tensor, offsets: torch.Tensor, ids: torch.Tensor) -> None:
    _edit(_restrict, logits, rows, offsets, ids)


def mask_(logits: torch.Tensor, rows: torch.Tensor, words: torch.Tensor) -> None:
    rows, words = _int64(rows), words.contiguous()
    if _mask(logits.data_ptr(), *logits.shape, rows.shape[0], rows.data_ptr(), words.data_ptr(), threads()):
        raise IndexError(f"a row is outside logits of shape {list(logits.shape)}")


def argmax(logits: torch.Tensor) -> torch.Tensor:
    tokens = torch.empty(logits.shape[0], dtype=torch.int64)
    _argmax(logits.data_ptr(), *logits.shape, tokens.data_ptr(), threads())
    return tokens


def draw(logits: torch.Tensor, slots: torch.Tensor, indices: torch.Tensor, slot_params: SlotParams) -> torch.Tensor:
    slots, indices = _int64(slots), _int64(indices)
    tokens = torch.empty(logits.shape[0], dtype=torch.int64)
    status = _draw(
        logits.data_ptr(),
        *logits.shape,
        *pointers(slots, indices),
        slot_params.seed.shape[0],
        *pointers(slot_params.inverse_temperature, slot_params.top_k, slot_params.min_p_threshold),
        *pointers(slot_params.top_p, slot_params.seed, tokens),
        threads(),
    )
    if status:
        raise IndexError(f"a slot is outside the tables of {slot_params.seed.shape[0]} slots")
    return tokens


def logprobs(
    logits: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor, top: int, ids: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    rows, tokens, ids = _int64(rows), _int64(tokens), _int64(ids)
    wanted, given = ids.shape
    values = torch.empty(wanted, dtype=torch.float32)
    ranks = torch.empty(wanted, dtype=torch.int64)
    best = torch.empty((wanted, top + given), dtype=torch.int64)
    best_values = torch.empty((wanted, top + given), dtype=torch.float32)
    status = _logprobs(
        logits.data_ptr(),
        *logits.shape,
        wanted,
        *pointers(rows, tokens, ids),
        top,
        given,
        *pointers(values, ranks, best, best_values),
        threads(),
    )
    if status:
        raise IndexError(f"a row or token is outside logits of shape {list(logits.shape)}")
    return values, ranks, best, best_values


def _edit(
    function: NativeFunction,
    logits: torch.Tensor,
    rows: torch.Tensor,
    offsets: torch.Tensor,
    ids: torch.Tensor,
    *rest: int,
) -> None:
    rows, offsets, ids = _int64(rows), _int64(offsets), _int64(ids)
    status = function(
        logits.data_ptr(),
        *logits.shape,
        rows.shape[0],
        *pointers(rows, offsets),
        ids.shape[0],
        ids.data_ptr(),
        *rest,
    )
    if status:
        raise IndexError(f"a row, offset or id is outside logits of shape {list(logits.shape)}")


def _int64(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.int64).contiguous()
