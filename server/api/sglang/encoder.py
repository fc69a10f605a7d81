"""Deltas as answers of SGLang's ``/generate``: whole, and as events that each have the whole answer so far.

Lists and texts are encoded as they come, so that an event costs a copy of what stands, and the last event is the whole
answer.
"""

import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw

from stentor.protocols.common.encoding import encode
from stentor.protocols.ipc.deltas import Delta, Finish, PromptLogprobs, PromptProcessed, Text
from stentor.protocols.ipc.steps import TokenLogprobs
from stentor.protocols.sglang.objects import SglangAnswer, SglangFinish, SglangMeta, TokenScore

from ...common.errors import GenerationFailed, generation_error
from ...generation.completion import Prompt
from ...generation.logprobs import TokenNames, finite
from ...http.sse import DONE, frame_of
from ...http.whole_answer import AnswerBudget, JsonList, array

_SMALL: Final = 256 << 10
"""Bytes of an answer up to which each delta is sent at once."""
_GROWTH: Final = 256
"""A larger answer is sent again once it has grown by this part of it. Sent for each token, it would cost the square of
its length."""


class SglangShape(msgspec.Struct, frozen=True):
    """Facts about an answer before it is generated."""

    id: str
    own_id: bool
    """Whether the id is of one prompt; else answers to several have its number behind it."""
    n: int
    names: TokenNames
    weight_version: str
    arrival: float
    """By ``time.monotonic()``."""
    several: bool = False
    """Whether the answer is a list."""
    scores: bool = False
    top: int = 0
    """Alternatives at each position."""
    first_scored: int | None = None
    """First token of the prompt with a log-probability; None: none of it has one."""
    texts: bool = False
    """Whether log-probabilities have the texts of their tokens."""
    prompt_ids: bool = False
    probed: Sequence[int] = ()
    """Tokens whose log-probabilities are given at each generated position, in place of the likeliest."""

    def answer_id(self, place: int, index: int) -> str:
        """Of a choice of its prompt, which has a place among all answers."""
        if not self.several or (self.own_id and self.n == 1):
            return self.id
        return f"{self.id}_{index if self.own_id else place}"

    def score(self, token: int, logprob: float | None) -> TokenScore:
        value = None if logprob is None else finite(logprob)
        return [value, token, self.names.name(token) if self.texts else None]

    def alternatives(self, entry: TokenLogprobs) -> list[TokenScore]:
        if self.probed:
            values = dict(entry.top)
            return [self.score(token, values[token]) for token in self.probed]
        return [self.score(token, value) for token, value in entry.top[: self.top]]


ShapedPrompt = tuple[SglangShape, Prompt]
"""All of a request have as many choices."""


class _Choice:
    """One choice so far."""

    def __init__(self, shape: SglangShape, budget: AnswerBudget) -> None:
        self._shape = shape
        self._budget = budget
        self.text = bytearray()
        """The inside of its JSON string."""
        self.ids = JsonList(budget)
        self.scores = JsonList(budget)
        self.top_logprobs = JsonList(budget)
        self.count = 0
        self.finish: SglangFinish | None = None
        self._last = 0
        self._told = 0
        """Bytes when it was last sent."""

    def add(self, delta: Text) -> None:
        """Raises as :meth:`...http.whole_answer.AnswerBudget.add`."""
        shape = self._shape
        inside = encode(delta.text)[1:-1]
        self._budget.add(len(inside))
        self.text += inside
        self.ids.extend(delta.tokens)
        self.count += len(delta.tokens)
        if delta.tokens:
            self._last = delta.tokens[-1]
        if shape.scores:
            entries = delta.logprobs or ()
            self.scores.extend([shape.score(entry.token, entry.logprob) for entry in entries])
            if shape.top or shape.probed:
                self.top_logprobs.extend([shape.alternatives(entry) for entry in entries])

    def end(self, finish: Finish) -> None:
        """Raises as :func:`...common.errors.generation_error` says."""
        if finish.reason == "length":
            self.finish = SglangFinish("length", length=self.count)
        elif finish.reason == "stop":
            matched = finish.stop_reason
            self.finish = SglangFinish("stop", self._last if matched is None else matched)
        elif finish.reason == "abort":
            self.finish = SglangFinish("abort", message="The request was aborted.")
        else:
            raise generation_error(finish)

    def due(self) -> bool:
        """Whether it has grown by enough to be sent."""
        size = len(self.text) + len(self.ids.data) + len(self.scores.data) + len(self.top_logprobs.data)
        if size > _SMALL and size - self._told < size // _GROWTH:
            return False
        self._told = size
        return True


class _Prompt:
    """The choices of one prompt."""

    def __init__(self, shape: SglangShape, prompt: Prompt, number: int, budget: AnswerBudget) -> None:
        """``number`` is that of the prompt in its request."""
        self._shape = shape
        self._prompt = prompt
        self._first = number * shape.n
        self._cached = 0
        self._seen = 0
        self._scores = JsonList(budget)
        self._top_logprobs = JsonList(budget)
        self.choices = [_Choice(shape, budget) for _ in range(shape.n)]

    def take(self, batch: Sequence[Delta]) -> dict[int, bool]:
        """The choices that have grown, and whether each has ended. Raises as :meth:`_Choice.add` and ``end``."""
        grown: dict[int, bool] = {}
        for delta in batch:
            match delta:
                case Text():
                    self.choices[delta.index].add(delta)
                    grown.setdefault(delta.index, False)
                case Finish():
                    self.choices[delta.index].end(delta)
                    grown[delta.index] = True
                case PromptProcessed():
                    self._cached = delta.cached_tokens
                    self._score_prompt(delta.logprobs or ())
                case PromptLogprobs():
                    self._score_prompt(delta.logprobs)
                case _:
                    pass  # of a text nothing is thought or called
        return grown

    def _score_prompt(self, entries: Sequence[TokenLogprobs | None]) -> None:
        shape, first = self._shape, self._shape.first_scored
        if first is None:
            return
        scores: list[TokenScore] = []
        top_logprobs: list[list[TokenScore] | None] = []
        for entry in entries:
            place, self._seen = self._seen, self._seen + 1
            if place < first:
                continue
            if place == first or entry is None:
                scores.append(shape.score(self._prompt.tokens[place], None))
                top_logprobs.append(None)
            else:
                scores.append(shape.score(entry.token, entry.logprob))
                top_logprobs.append(shape.alternatives(entry))
        self._scores.extend(scores)
        if shape.top:
            self._top_logprobs.extend(top_logprobs)

    def answer(self, index: int, *, numbered: bool) -> SglangAnswer:
        """A choice as it stands."""
        shape, choice, prompt = self._shape, self.choices[index], self._prompt
        place = self._first + index
        scored: dict[str, Any] = {}
        if shape.scores:
            scored = {
                "input_token_logprobs": _written(self._scores),
                "output_token_logprobs": _written(choice.scores),
                "output_token_logprobs_length": choice.count,
            }
            if shape.top:
                scored["input_top_logprobs"] = _written(self._top_logprobs)
                scored["output_top_logprobs"] = _written(choice.top_logprobs)
            if shape.probed:
                scored["input_token_ids_logprobs"] = []
                scored["output_token_ids_logprobs"] = _written(choice.top_logprobs)
        text: Any = Raw(b'"' + choice.text + b'"')
        return SglangAnswer(
            text,
            _written(choice.ids),
            SglangMeta(
                shape.answer_id(place, index),
                choice.finish,
                len(prompt.tokens),
                shape.weight_version,
                choice.count,
                self._cached,
                **scored,
                e2e_latency=UNSET if choice.finish is None else time.monotonic() - shape.arrival,
            ),
            prompt.tokens if shape.prompt_ids else UNSET,
            place if numbered else UNSET,
        )


def _written(values: JsonList) -> Any:
    return Raw(b"".join(array(values)))


def _prompts(prompts: Sequence[ShapedPrompt], budget: AnswerBudget) -> list[_Prompt]:
    return [_Prompt(shape, prompt, number, budget) for number, (shape, prompt) in enumerate(prompts)]


class SglangCollector:
    """Collects a whole answer from batches that come with the number of their prompt."""

    def __init__(self, prompts: Sequence[ShapedPrompt], budget: AnswerBudget) -> None:
        self._several = prompts[0][0].several
        self._n = prompts[0][0].n
        self._prompts = _prompts(prompts, budget)

    def take(self, batches: Sequence[tuple[int, list[Delta]]]) -> None:
        """Raises as :meth:`...http.whole_answer.AnswerBudget.add`, and :func:`...common.errors.generation_error`."""
        for number, batch in batches:
            self._prompts[number].take(batch)

    def answer(self) -> bytes:
        """Raises GenerationFailed where a choice has not come to its end."""
        choices = [(prompt, index) for prompt in self._prompts for index in range(self._n)]
        if any(prompt.choices[index].finish is None for prompt, index in choices):
            raise GenerationFailed
        answers = [prompt.answer(index, numbered=False) for prompt, index in choices]
        return encode(answers if self._several else answers[0])


class SglangStream:
    """Encodes batches that come with the number of their prompt as events; one object per response. Raises what
    :class:`SglangCollector` raises."""

    failed = False

    def __init__(self, prompts: Sequence[ShapedPrompt], budget: AnswerBudget) -> None:
        self._several = prompts[0][0].several
        self._prompts = _prompts(prompts, budget)

    def encode(self, batches: Sequence[tuple[int, list[Delta]]]) -> bytes:
        """The events of these batches, joined: one for each choice and batch."""
        frames = []
        for number, batch in batches:
            prompt = self._prompts[number]
            for index, ended in prompt.take(batch).items():
                if ended or prompt.choices[index].due():
                    frames.append(frame_of(prompt.answer(index, numbered=self._several)))
        return b"".join(frames)

    def end(self) -> bytes:
        return DONE
