"""Beam search as requests ask for it, by vLLM's names."""

from typing import Final

import msgspec

from ..common.errors import BadRequest, wrong
from ..common.limits import Limits
from ..ipc.sampling import MAX_LOGPROBS
from .sampling import SamplingFields, not_served
from .structured import wanted_answer

MAX_BEAMS: Final = MAX_LOGPROBS // 2
"""A step ranks twice this number of tokens of each beam, so that enough can continue if half of them end it."""


class Beams(msgspec.Struct, frozen=True):
    """A beam search: how many beams it keeps, and how their results are compared."""

    width: int
    length_penalty: float
    """Scores are log-probabilities divided by the length, with the prompt, to this power."""


def wanted_beams(request: SamplingFields) -> Beams | None:
    """The search that a checked request asks for; None: none."""
    if not request.use_beam_search:
        return None
    return Beams(request.beam_width[0], 1.0 if request.length_penalty is None else request.length_penalty)


def check_beams(request: SamplingFields, limits: Limits) -> None:
    """Raises BadRequest for a search that is too wide, for fields that exclude it, and for a ``best_of`` without it."""
    if not request.use_beam_search:
        if request.best_of is not None and request.best_of != request.choices:
            raise not_served("best_of", "`best_of` other than `n`, without `use_beam_search`,")
        return
    width, field = request.beam_width
    if width < request.choices:
        raise wrong(field, f"({width}) must be at least `n` ({request.choices})")
    if width > MAX_BEAMS:
        raise wrong(field, f"({width}) must be at most {MAX_BEAMS} with `use_beam_search`")
    answer = wanted_answer(request, limits)
    given = {
        "stop": bool(request.stop),
        "stop_regex": bool(request.stop_regex),
        "min_tokens": request.min_tokens > 0,
        "logit_bias": bool(request.logit_bias),
        "allowed_token_ids": request.allowed_token_ids is not None,
        "bad_words": bool(request.bad_words),
        "vllm_xargs.ngram_size": request.vllm_xargs is not None and request.vllm_xargs.ngram_size is not None,
        "logprob_token_ids": request.logprob_token_ids is not None,
        "presence_penalty": bool(request.presence_penalty),
        "frequency_penalty": bool(request.frequency_penalty),
        "repetition_penalty": request.repetition_penalty not in (None, 1),
        "repetition_detection": request.repetition_detection is not None,
        "return_routed_experts": bool(request.return_routed_experts),
        "" if answer is None else answer.field: answer is not None,
    }
    for name, is_given in given.items():
        if is_given:
            raise excluded(name)


def excluded(field: str) -> BadRequest:
    """The refusal of a field that beams would not obey."""
    return BadRequest(f"`{field}` has no effect on beams; leave it out, or `use_beam_search`.", field, "unsupported")
