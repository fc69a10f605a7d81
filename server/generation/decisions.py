"""Answers questions about a conversation by the probabilities of the labels of their options.

A question is put at the end of the conversation, with its options behind labels, and asks for a label alone. The
model's distribution of the next token is read: each question is a generation of one token. The first is read before the
others, which then find the conversation in the prefix cache.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from functools import lru_cache, partial
from itertools import product
from string import ascii_uppercase, digits
from typing import Any, Final, Literal

import msgspec

from stentor.protocols.common.bounds import LIST_TOO_LONG, message_chars_at_most
from stentor.protocols.common.errors import wrong
from stentor.protocols.openai.chat import chat_of

from ..common.keys import Caller
from ..common.task_scope import run_together
from ..overload.request_context import RequestContext
from ..text.tokenizers.tokenizer import Tokenizer
from .admission import GenerationOptions
from .chat_model import ChatModel
from .next_token import NextToken, next_token
from .prepare import PreparedGeneration, prepare_generation

Message = dict[str, Any]
LabelKind = Literal["letters", "levels", "yes or no"]
_LETTERS: Final = tuple(ascii_uppercase)
_MORE_LETTERS: Final = (*_LETTERS, *("".join(pair) for pair in product(ascii_uppercase, repeat=2)))
_SPELLINGS: Final = {"yes": ("yes", "Yes"), "no": ("no", "No")}
"""What means a label besides itself."""
_WISHES: Final[Mapping[LabelKind, str]] = {
    "letters": "the letter of one option",
    "levels": "the number of one level",
    "yes or no": "yes or no",
}
_MAX_MEDIA: Final = 64
"""Pictures of all prompts of a request together: each is loaded for each question."""


class Option(msgspec.Struct, frozen=True):
    name: str
    description: str = ""


class Question(msgspec.Struct, frozen=True):
    field: str
    """The request's name of it."""
    text: str
    """What is asked; may be empty."""
    options: Sequence[Option]
    kind: LabelKind = "letters"
    """Of the labels that are preferred; letters take their place where the tokenizer has no single tokens for them."""


class _Label(msgspec.Struct, frozen=True):
    name: str
    tokens: tuple[int, ...]
    """Each writes it as the first word of an answer."""


class Reading(msgspec.Struct, frozen=True):
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


async def read_answers(
    chat: ChatModel,
    messages: Sequence[Message],
    questions: Sequence[Question],
    fields: Mapping[str, Any],
    caller: Caller,
    context: RequestContext,
) -> tuple[str, list[Reading]]:
    """The model's name in the request, and its readings of ``questions`` about ``messages``, in order.

    ``fields`` are those of chat completions that the request has beside them. Thinking is off, and where the prompt
    opens it, it is closed. Raises BadRequest for a question with more options than the tokenizer has labels, and as
    :func:`.prepare.prepare_generation`, in whose names its errors are.
    """
    written = [_written(question, *_labels(chat.pool.tokenizer, question)) for question in questions]
    _check_sizes(messages, [text for text, _ in written], chat)
    async with AsyncExitStack() as opened:
        prepared: list[PreparedGeneration] = []
        for text, labels in written:
            body = chat_of(
                {
                    "reasoning_effort": "none",
                    **fields,
                    "messages": _asked(messages, text),
                    "max_completion_tokens": 1,
                    "temperature": 0,
                    "ignore_eos": True,
                    "logprobs": True,
                    "post_sampling_probs": False,
                    "seed": 0,
                }
            )
            body.logprob_token_ids = [token for label in labels for token in label.tokens]
            generation = await prepare_generation(chat, body, caller, context, GenerationOptions(begins_answer=True))
            await opened.enter_async_context(aclosing(generation.batches))
            prepared.append(generation)
        found: list[NextToken] = [NextToken() for _ in prepared]

        async def read(place: int, generation: PreparedGeneration) -> None:
            found[place] = await next_token(generation.batches)

        await read(0, prepared[0])
        await run_together(partial(read, *each) for each in enumerate(prepared[1:], 1))
    readings = [
        _reading(labels, token, len(generation.prompt))
        for (_, labels), token, generation in zip(written, found, prepared, strict=True)
    ]
    return prepared[0].model, readings


def _labels(tokenizer: Tokenizer, question: Question) -> tuple[LabelKind, list[_Label]]:
    """One for each option, and their kind. Raises BadRequest."""
    wanted = len(question.options)
    kinds: dict[LabelKind, tuple[str, ...]] = {
        "levels": tuple(digits),
        "yes or no": tuple(_SPELLINGS),
        "letters": _LETTERS if wanted <= len(_LETTERS) else _MORE_LETTERS,
    }
    found: list[_Label] = []
    for kind in dict.fromkeys((question.kind, "letters")):
        found = _single_tokens(tokenizer, kinds[kind])
        if len(found) >= wanted:
            return kind, found[:wanted]
    raise wrong(
        question.field,
        f"has {wanted} options; this model's tokenizer has single tokens for {len(found)} labels",
        "unsupported",
    )


@lru_cache(maxsize=16)
def _single_tokens(tokenizer: Tokenizer, names: tuple[str, ...]) -> list[_Label]:
    """Those of the labels that a single token writes, with a space before it or without: tokenizers differ in how an
    answer begins."""
    spelt = [(name, text) for name in names for text in _SPELLINGS.get(name, (name,))]
    texts = [f"{space}{text}" for _, text in spelt for space in ("", " ")]
    tokens: dict[str, set[int]] = {name: set() for name in names}
    for place, ids in enumerate(tokenizer.encode_batch(texts, add_special_tokens=False)):
        name, text = spelt[place // 2]
        alone = tokenizer.backend.token_to_id(text)  # of a tokenizer that encodes no word without a space before it
        for id in {*(ids if len(ids) == 1 else ()), *(() if alone is None else (alone,))}:
            if tokenizer.token_bytes(id).strip() == text.encode():
                tokens[name].add(id)
    return [_Label(name, tuple(sorted(own))) for name, own in tokens.items() if own]


def _written(question: Question, kind: LabelKind, labels: list[_Label]) -> tuple[str, list[_Label]]:
    """The question as the model reads it, and its labels."""
    lines = []
    for label, option in zip(labels, question.options, strict=True):
        told = [text for text in (option.name, option.description) if text and text != label.name]
        lines.append(": ".join([label.name, *told]))
    asked = [*filter(None, [question.text]), *lines, f"Answer with {_WISHES[kind]}, and nothing else."]
    return "\n".join(asked), labels


def _check_sizes(messages: Sequence[Message], texts: Sequence[str], chat: ChatModel) -> None:
    """Raises BadRequest for prompts that are too much together: the conversation is written for each question."""
    count = len(texts)
    message_chars_at_most(messages, (chat.limits.max_prompt_chars - sum(map(len, texts))) // count)
    parts = [part for message in messages if isinstance(message.get("content"), list) for part in message["content"]]
    media = count * sum(part.get("type") != "text" for part in parts)
    if media > _MAX_MEDIA:
        raise wrong(
            "messages",
            f"has pictures that {count} questions load {media} times together; this server allows {_MAX_MEDIA}",
            LIST_TOO_LONG,
        )


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


def _reading(labels: Sequence[_Label], token: NextToken, prompt_tokens: int) -> Reading:
    logprobs = [[token.logprobs.get(one, -math.inf) for one in label.tokens] for label in labels]
    top = max(map(max, logprobs))
    weights = [sum(math.exp(one - top) for one in own) if top > -math.inf else 1.0 for own in logprobs]
    total = sum(weights)
    return Reading(
        [weight / total for weight in weights],
        min(1.0, total * math.exp(top)),
        any(token.drawn in label.tokens for label in labels),
        prompt_tokens,
        token.cached_tokens,
    )
