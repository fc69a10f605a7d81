"""Renderers without a template: their limitations, messages with contents as one text, and those whose format is a
function."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec

from ..errors import TemplateError
from ..pool import TokenizerPool
from ..templates.messages import prepare_messages
from .interface import RenderRequest


def refuse_template(conversation: RenderRequest, name: str, takes: Collection[str] = ()) -> None:
    """Raises TemplateError for features that need a template; ``takes`` are modalities that this renderer supports."""
    if conversation.chat_template is not None:
        raise TemplateError(f"The {name} renderer takes no chat_template; leave it out.")
    for modality in () if conversation.media is None else conversation.media.written:
        if modality not in takes:
            raise TemplateError(f"The {name} renderer takes no {modality} input; leave it out.")
    if conversation.documents:
        raise TemplateError(f"The {name} renderer takes no documents; put them into a message.")
    if not conversation.messages:
        raise TemplateError("There are no messages; give at least one.")


class CodedRenderer(msgspec.Struct, frozen=True):
    """A format that makers of a model have defined by code."""

    pool: TokenizerPool
    write: Callable[[RenderRequest], str | list[str]]
    """The prompt's text, or pieces of it, of which those that are :class:`..tokenizers.tokenizer.Marked` have added
    tokens. Raises TemplateError."""
    marks: str
    """What the format's texts contain, in place of the source of a template, of which parsers are chosen."""

    def takes_tools(self, chat_template: str | None) -> bool:
        return True

    async def render(self, conversation: RenderRequest) -> list[int]:
        return await self.pool.encode_rendered(lambda: self.write(conversation), conversation.most_tokens)


def flat_messages(conversation: RenderRequest, *, knows_developer: bool = True) -> list[dict[str, Any]]:
    """Copies in which contents are texts and arguments of calls objects. Raises TemplateError."""
    return prepare_messages(conversation.messages, "string", knows_developer=knows_developer)


def reasoning_of(message: dict[str, Any]) -> str:
    found = message.get("reasoning_content")
    return found if isinstance(found, str) else ""


def called(message: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Name and arguments of each call of a message. Raises TemplateError for arguments that are no object."""
    calls = []
    for call in message.get("tool_calls") or ():
        function = call["function"]
        arguments = function.get("arguments") or {}
        if not isinstance(arguments, dict):
            raise TemplateError(f"The arguments of a call of {function['name']!r} are not the JSON of an object.")
        calls.append((function["name"], arguments))
    return calls


def functions(tools: Sequence[Any]) -> list[dict[str, Any]]:
    return [tool["function"] for tool in tools]
