"""Shared by all requests for vectors and scores: how texts and conversations are read."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ..common import limits
from ..common.bounds import items_at_most
from ..common.decoding import converted
from ..common.errors import BadRequest, missing, refused, wrong
from ..common.limits import Limits
from ..openai.chat import check_template
from ..openai.messages import check_messages
from ..openai.sampling import Name, TokenId, not_served
from .contents import MAX_TEXTS, Content, ContentObject, Text, check_contents, check_texts, content_of, plain_text

Side = Literal["left", "right"]
Message = dict[str, Any]
Conversation = Annotated[list[Message], Meta(min_length=1)]
Conversations = Annotated[list[Message | Conversation], Meta(min_length=1)]
"""One, or a list of several."""
Given = str | Annotated[list[str | TokenId | list[TokenId | Message] | Message], Meta(min_length=1)]
"""Texts, token ids, or conversations; an object is one of a conversation's messages, or a
:class:`.contents.ContentObject`."""


class PoolingFields(msgspec.Struct, kw_only=True):
    """None means that the field is absent: the model's default applies."""

    model: Name | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=limits.INT64_MAX)] | None = None
    """Truncates texts to this number of tokens; -1: to the model's limit; None: long texts are refused."""
    truncation_side: Side | None = None
    """The side that is cut off; None: the right."""
    use_activation: bool | None = None
    priority: limits.Priority = 0
    cache_salt: Annotated[str, Meta(min_length=1, max_length=limits.MAX_NAME_LENGTH)] | None = None
    request_id: Annotated[str, Meta(max_length=limits.MAX_REQUEST_ID)] | None = None
    padding: str | None = None
    """``max_length`` is for models that always pad texts (SigLIP)."""
    mm_processor_kwargs: dict[str, Any] | None = None
    media_io_kwargs: dict[str, Any] | None = None

    def check_reading(self) -> None:
        """Raises BadRequest."""
        if self.truncate_prompt_tokens == 0:
            raise wrong("truncate_prompt_tokens", "must be -1, or 1 and more")
        if self.padding not in (None, "do_not_pad", "max_length"):
            raise not_served("padding", "`padding` other than `do_not_pad` and `max_length`")


class InputFields(PoolingFields, kw_only=True):
    """Texts, their token ids, or conversations: each makes one vector or score."""

    input: Given | Message | None = None
    """An object alone is a list of one."""
    messages: Conversations | None = None
    add_special_tokens: bool | None = None
    """None: for texts, but not for conversations, whose template adds them."""
    add_generation_prompt: bool = False
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    truncate: bool | None = None
    """Jina's: as :attr:`truncate_prompt_tokens` -1."""

    @property
    def given(self) -> Given | None:
        return [self.input] if isinstance(self.input, dict) else self.input

    @property
    def texts(self) -> list[Text]:
        """One entry for each. Raises BadRequest for a list of mixed kinds."""
        given = self.given
        if given is None:
            raise missing("input")
        return texts_of(given)

    @property
    def objects(self) -> list[Content]:
        """Inputs that are all objects; empty for others, and for conversations. Raises BadRequest."""
        given = self.given
        if not isinstance(given, list) or not all(isinstance(item, dict) for item in given) or _converses(given):
            return []
        return [_object(item, f"input[{index}]") for index, item in enumerate(given)]

    @property
    def conversations(self) -> list[tuple[list[Message], str]]:
        """Conversations, each with its field; empty for texts. Raises BadRequest for a list of mixed kinds."""
        if self.messages is not None:
            return _conversations(self.messages, "messages")
        given = self.given
        return (
            [] if given is None or isinstance(given, str) or not _converses(given) else _conversations(given, "input")
        )

    def check(self, limits: Limits) -> None:
        """Checks what the types do not. Raises BadRequest."""
        self.check_reading()
        if (self.input is None) == (self.messages is None):
            raise wrong(
                "input",
                "is required, or `messages` in its place",
                "missing_required_parameter" if self.input is None else None,
            )
        if self.truncate and self.truncate_prompt_tokens is None:
            self.truncate_prompt_tokens = -1
        conversations = self.conversations
        where = "input" if self.messages is None else "messages"
        check_template(self, [messages for messages, _ in conversations], limits, where)
        if conversations:
            items_at_most(conversations, MAX_TEXTS, where)
            for messages, field in conversations:
                check_messages(messages, field)
        elif objects := self.objects:
            check_contents(objects, limits, "input")
        else:
            check_texts(self.texts, limits, "input")


def _converses(given: Sequence[object]) -> bool:
    first = given[0]
    if isinstance(first, list):
        return bool(first) and isinstance(first[0], dict)
    return isinstance(first, dict) and "role" in first


def _conversations(given: Sequence[object], field: str) -> list[tuple[list[Message], str]]:
    several = isinstance(given[0], list)
    found: list[tuple[list[Message], str]] = []
    for index, item in enumerate(given):
        messages = item if several else [item]
        if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
            raise refused(f"{field}[{index}]", "a list holds either the messages of one conversation, or conversations")
        if not messages:
            raise wrong(f"{field}[{index}]", "must hold at least one message")
        found.append((messages, f"{field}[{index}]"))
    return found if several else [([each for messages, _ in found for each in messages], field)]


def texts_of(given: str | Sequence[str | int | list[int | Message] | Message]) -> list[Text]:
    """Texts, also in objects, and lists of token ids, each for itself, or the token ids of one text.

    Raises BadRequest for a list of token ids and other items, and for items that are not texts."""
    if isinstance(given, str):
        return [given]
    tokens: list[int] = []
    many: list[Text] = []
    for index, item in enumerate(given):
        if isinstance(item, int) != isinstance(given[0], int):
            raise _mixed(f"input[{index}]")
        if isinstance(item, int):
            tokens.append(item)
        elif isinstance(item, dict):
            text = plain_text(_object(item, f"input[{index}]"))
            if text is None:
                raise refused(f"input[{index}]", "it has media, and stands beside texts; send objects alone")
            many.append(text)
        elif isinstance(item, str):
            many.append(item)
        else:
            ids = [each for each in item if isinstance(each, int)]
            if len(ids) < len(item):
                raise refused(f"input[{index}]", "a list of token ids holds nothing but them")
            many.append(ids)
    return [tokens] if tokens else many


def _object(item: object, field: str) -> Content:
    if not isinstance(item, dict):
        raise _mixed(field)
    if "role" in item:
        raise wrong(f"{field}.role", "is of a message, and the list holds other objects")
    return content_of(converted(item, ContentObject, field), field)


def _mixed(field: str) -> BadRequest:
    return refused(field, "a list holds either token ids, or strings, objects and lists of token ids")


class TextUsage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    total_tokens: int

    @classmethod
    def of(cls, tokens: int) -> "TextUsage":
        return cls(tokens, tokens)
