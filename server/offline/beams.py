"""Beam search for programs, by vLLM's names."""

from typing import Any

import msgspec


class BeamSearchParams(msgspec.Struct, kw_only=True):
    """A search that keeps ``beam_width`` sequences; all other fields are those of ``/v1/completions``."""

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    """Without effect, as over HTTP."""
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    """Without effect: tokens and text of a sequence include the token that ended it."""

    def fields(self) -> dict[str, Any]:
        """Its fields of a request's body."""
        return {
            "use_beam_search": True,
            "n": self.beam_width,
            "max_tokens": self.max_tokens,
            "ignore_eos": self.ignore_eos,
            "length_penalty": self.length_penalty,
            "include_stop_str_in_output": True,
            "skip_special_tokens": False,
            "echo": True,
            "logprobs": 0,
            "return_token_ids": True,
        }


class BeamSearchSequence(msgspec.Struct, frozen=True, kw_only=True):
    """One result, with the prompt."""

    text: str
    tokens: list[int]
    cum_logprob: float
    """Sum of the log-probabilities of the tokens behind the prompt."""
    finish_reason: str
    stop_reason: int | str | None = None


class BeamSearchOutput(msgspec.Struct, frozen=True):
    """The results for one prompt, the best first."""

    sequences: list[BeamSearchSequence]


def from_beams(body: dict[str, Any]) -> BeamSearchOutput:
    """From a response of ``/v1/completions`` to one prompt, asked with :meth:`BeamSearchParams.fields`."""
    return BeamSearchOutput([_sequence(choice) for choice in body["choices"]])


def _sequence(choice: dict[str, Any]) -> BeamSearchSequence:
    prompt = choice["prompt_token_ids"]
    return BeamSearchSequence(
        text=choice["text"],
        tokens=[*prompt, *choice["token_ids"]],
        cum_logprob=sum(choice["logprobs"]["token_logprobs"][len(prompt) :]),
        finish_reason=choice["finish_reason"],
        stop_reason=choice["stop_reason"],
    )
