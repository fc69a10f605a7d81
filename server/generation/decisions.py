"""Answers questions about a conversation by the probabilities of the labels of their options.

A question is put at the end of the conversation, with its options behind labels, and asks for a label alone. The
model's distribution of the next token is read: each question is a generation of one token. The first is read before the
others, which then find the conversation in the prefix cache.
"""

import math
import string
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from stentor.protocols.common.errors import refused, wrong
from stentor.protocols.openai.chat import chat_of

from ..common.keys import Caller
from ..common.task_scope import run_together
from ..overload.request_context import RequestContext
from .chat_model import ChatModel
from .next_token import NextToken, next_token
from .prepare import PreparedGeneration, prepare_generation

Message = dict[str, Any]
LETTERS: Final = tuple(string.ascii_uppercase)
"""Labels of options, in order: of each, tokenizers have a token."""
_TAIL: Final = 32
"""Tokens at a prompt's end that show whether the answer begins with thoughts."""


@dataclass(frozen=True)
class Option:
    name: str
    description: str = ""


@dataclass(frozen=True)
class Question:
    field: str
    """The request's name of it."""
    text: str
    """What is asked; may be empty."""
    options: Sequence[Option]
    labels: Sequence[str]
    """One for each option, in order."""
    asks_for: str = "the letter of one option"

    def __str__(self) -> str:
        """The question as the model reads it."""
        of_each = zip(self.labels, self.options, strict=True)
        lines = [": ".join(filter(None, (label, option.name, option.description))) for label, option in of_each]
        return "\n".join([*filter(None, [self.text]), *lines, f"Answer with {self.asks_for}, and nothing else."])


@dataclass(frozen=True)
class Reading:
    """What the model says to one question."""

    probabilities: list[float]
    """Of each option, among the options."""
    label_mass: float
    """The probability that the answer is a label at all."""
    is_label: bool
    """Whether a label is the likeliest token."""
    prompt_tokens: int
    cached_tokens: int

    @property
    def best(self) -> int:
        """The place of the likeliest option."""
        return max(range(len(self.probabilities)), key=self.probabilities.__getitem__)

    @property
    def confidence(self) -> float:
        """The probability of the best option's label among all tokens."""
        return self.probabilities[self.best] * self.label_mass

    @property
    def mean(self) -> float:
        """The mean of the options' places, from 0 on, by their probabilities."""
        return sum(place * each for place, each in enumerate(self.probabilities))


def check_options(question: Question, at_most: int = len(LETTERS)) -> None:
    """Raises BadRequest."""
    if len(question.options) > at_most:
        raise wrong(question.field, f"has {len(question.options)} options; this server asks about at most {at_most}")


async def read_answers(
    chat: ChatModel,
    messages: Sequence[Message],
    questions: Sequence[Question],
    fields: Mapping[str, Any],
    caller: Caller,
    context: RequestContext,
) -> tuple[str, list[Reading]]:
    """The model's name in the request, and its readings of ``questions`` about ``messages``, in order.

    ``fields`` are those of chat completions that the request has beside them. The model must not think before it
    answers. Raises as :func:`.prepare.prepare_generation`, in whose names its errors are.
    """
    tokens = await _label_tokens(chat, questions)
    async with AsyncExitStack() as opened:
        prepared: list[PreparedGeneration] = []
        for question in questions:
            wanted = dict.fromkeys(token for label in question.labels for token in tokens[label])
            body = chat_of(
                {
                    "reasoning_effort": "none",
                    **fields,
                    "messages": _asked(messages, str(question)),
                    "max_completion_tokens": 1,
                    "temperature": 0,
                    "ignore_eos": True,
                    "logprobs": True,
                    "top_logprobs": 1,
                    "logprob_token_ids": list(wanted),
                    "seed": 0,
                }
            )
            generation = await prepare_generation(chat, body, caller, context)
            await opened.enter_async_context(aclosing(generation.batches))
            _check_thinking(chat, generation.prompt)
            prepared.append(generation)
        found: list[NextToken] = [NextToken() for _ in prepared]

        async def read(place: int, generation: PreparedGeneration) -> None:
            found[place] = await next_token(generation.batches)

        await read(0, prepared[0])
        await run_together(partial(read, *each) for each in enumerate(prepared[1:], 1))
    readings = [
        _reading([tokens[label] for label in question.labels], token, len(generation.prompt))
        for question, token, generation in zip(questions, found, prepared, strict=True)
    ]
    return prepared[0].model, readings


async def _label_tokens(chat: ChatModel, questions: Sequence[Question]) -> dict[str, list[int]]:
    """The tokens that are each label: alone, and behind a space, as tokenizers differ in how an answer begins."""
    labels = list(dict.fromkeys(label for question in questions for label in question.labels))
    spelled = [*labels, *(f" {label}" for label in labels)]
    encoded = await chat.pool.encode_batch(spelled, False, field="questions")
    tokens: dict[str, list[int]] = {}
    for label, *forms in zip(labels, encoded[: len(labels)], encoded[len(labels) :], strict=True):
        tokens[label] = list(dict.fromkeys(form[0] for form in forms if len(form) == 1))
        if not tokens[label]:
            raise refused("questions", f"the model has no token for the label `{label}` of an option", "unsupported")
    return tokens


def _asked(messages: Sequence[Message], question: str) -> list[Message]:
    """The conversation with a question at its end: in the last message if that is the user's, since many templates
    want roles in turn."""
    if not messages or messages[-1]["role"] != "user":
        return [*messages, {"role": "user", "content": question}]
    content = messages[-1]["content"]
    if isinstance(content, str):
        joined: Any = f"{content}\n\n{question}"
    else:
        joined = [*content, {"type": "text", "text": question}]
    return [*messages[:-1], {**messages[-1], "content": joined}]


def _check_thinking(chat: ChatModel, prompt: Sequence[int]) -> None:
    """Raises BadRequest if the next token is the first of the model's thoughts."""
    tail = chat.pool.tokenizer.decode(list(prompt[-_TAIL:]), skip_special_tokens=False)
    if chat.output.harmony or chat.output.thinking_opened(tail, wanted=False):
        raise refused(
            "model",
            "it thinks before it answers, and an option is read from the first token of an answer; ask a model that "
            "does not think, or whose chat template can switch thinking off, and leave it off",
            "unsupported",
        )


def _reading(groups: Sequence[Sequence[int]], token: NextToken, prompt_tokens: int) -> Reading:
    """``groups`` are the tokens of each label."""
    logprobs = [[token.logprobs.get(one, -math.inf) for one in group] for group in groups]
    top = max(map(max, logprobs))
    weights = [sum(math.exp(one - top) for one in group) if top > -math.inf else 1.0 for group in logprobs]
    total = sum(weights)
    return Reading(
        [weight / total for weight in weights],
        min(1.0, total * math.exp(top)),
        any(token.drawn in group for group in groups),
        prompt_tokens,
        token.cached_tokens,
    )
