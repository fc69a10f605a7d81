"""The interface of renderers."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from ..templates.placeholders import MediaText


class RenderRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Messages in the shape of chat completions, and how to render them.

    :meth:`..pool.TokenizerPool.render_chat` takes the same fields, but for those that only formats of code tell.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    """In the form of chat completions: of type ``function``."""
    forbidden_tools: Sequence[Mapping[str, Any]] = ()
    """Those of a request that forbids to call any; for formats whose words tell it."""
    must_call: bool = False
    """Whether the answer must call some of the tools; likewise."""
    response_format: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """The form that a request wants of the answer, in the shape of chat completions and not checked yet; likewise."""
    documents: Sequence[Mapping[str, Any]] = ()
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: str | None = None
    """A template of the request, or the name of one of the model's; only template renderers use it."""
    template_kwargs: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """The request's arguments for the template; other renderers use those they know (``reasoning_effort``,
    ``thinking``)."""
    add_special_tokens: bool = False
    media: MediaText | None = None
    """Media of the conversation; messages contain ``{"type": "image"}`` and similar at their places."""
    most_tokens: int | None = None
    """A conversation that cannot have as few may be refused before it costs anything."""


class Renderer(Protocol):
    """Safe to call from many requests at once."""

    async def render(self, conversation: RenderRequest) -> list[int]:
        """Prompt tokens.

        Raises :class:`..errors.TemplateError` for a conversation that cannot be written,
        :class:`..errors.TextTooLong` and :class:`..errors.TemplatesWait`.
        """

    def takes_tools(self, chat_template: str | None) -> bool:
        """Whether tools, calls and their results can be rendered; otherwise they are described in plain messages."""


def tool_names(messages: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Names of the functions that were called, by the id of the call."""
    return {
        call["id"]: call["function"]["name"]
        for message in messages
        for call in message.get("tool_calls") or ()
        if isinstance(call.get("id"), str)
    }
