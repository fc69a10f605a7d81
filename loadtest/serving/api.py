"""What the load needs of an API: how a request is written, and what one event of the answer says.

A new API is a value in :data:`APIS`.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec


class Usage(msgspec.Struct, frozen=True, gc=False):
    """The server's own count of tokens."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class Event(msgspec.Struct, gc=False):
    """What one event of a stream brought."""

    text: str = ""
    tokens: int = 0
    """Output tokens in it: 1 for a chunk of text, unless the server says more; 0 for one without output."""
    finish: str | None = None
    usage: Usage | None = None
    error: str | None = None


class Message(msgspec.Struct, frozen=True):
    """One turn of a conversation, as the chat API has it."""

    role: str
    content: str


class Prompt(msgspec.Struct, frozen=True):
    """What is asked: a conversation that ends with the user's turn, or token ids."""

    messages: list[Message] = []
    tokens: list[int] | None = None
    output_tokens: int | None = None
    """Most tokens of the answer; None leaves it to the server."""

    @property
    def nominal_tokens(self) -> int:
        """The prompt's length where the server does not tell: ids, or words."""
        if self.tokens is not None:
            return len(self.tokens)
        return sum(len(message.content.split()) for message in self.messages)


class Settings(msgspec.Struct, frozen=True):
    """What all requests of a run have in common."""

    model: str
    temperature: float | None = None
    ignore_eos: bool = False
    extra: Mapping[str, Any] = {}
    """Fields put over the others; null removes one."""


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None


class Chunk(msgspec.Struct):
    """One event of completions or of chat."""

    choices: list[_Choice] = []
    usage: Usage | None = None
    error: Any = None


decode_chunk = msgspec.json.Decoder(Chunk).decode


class Api(msgspec.Struct, frozen=True):
    """One API of the server."""

    name: str
    path: str
    takes_tokens: bool
    """Whether a prompt may be token ids."""
    fields: Callable[[Prompt], dict[str, Any]]
    """The prompt, as the API names and writes it."""

    def body(self, prompt: Prompt, settings: Settings) -> bytes:
        """The JSON body of one request; ``settings.extra`` has the last word."""
        fields = {
            "model": settings.model,
            **self.fields(prompt),
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": prompt.output_tokens,
            "temperature": settings.temperature,
            "ignore_eos": settings.ignore_eos or None,
            **settings.extra,
        }
        return msgspec.json.encode({name: value for name, value in fields.items() if value is not None})

    def read(self, data: bytes) -> Event:
        """One event's data, ``[DONE]`` excepted. Raises :class:`msgspec.DecodeError` for what is no event.

        Reasoning and tool calls count as output; the opening delta of a chat, role alone, does not.
        """
        chunk = decode_chunk(data)
        if chunk.error is not None:
            return Event(error=describe_error(chunk.error))
        if not chunk.choices:
            return Event(usage=chunk.usage)
        choice = chunk.choices[0]  # a load asks for one
        delta = choice.delta
        if delta is None:
            text = choice.text or ""
            output: object = text
        else:
            text = delta.content or ""
            output = text or delta.reasoning_content or delta.reasoning or delta.refusal or delta.tool_calls
        ids = choice.token_ids
        tokens = (len(ids) if ids else 1) if output else 0
        return Event(text, tokens, choice.finish_reason, chunk.usage)


def _completions(prompt: Prompt) -> dict[str, Any]:
    """Text or token ids in, text out. A conversation becomes one text, its turns on lines of their own."""
    text = "\n".join(message.content for message in prompt.messages)
    return {"prompt": text if prompt.tokens is None else prompt.tokens}


APIS: Final[Mapping[str, Api]] = {
    "completions": Api("completions", "/v1/completions", True, _completions),
    "chat": Api("chat", "/v1/chat/completions", False, lambda prompt: {"messages": prompt.messages}),
}


def error_text(body: bytes | bytearray) -> str:
    """What the body of a failed request says, in one line."""
    text = body.decode(errors="replace")
    try:
        said = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError:
        said = {}
    return describe_error(said.get("error") or said.get("message") or said.get("detail") or text)


def describe_error(error: object) -> str:
    """An error as servers send it, an object with a message or a text, in one line."""
    return one_line(str(error["message"] if isinstance(error, dict) and "message" in error else error))


def one_line(text: str, limit: int = 200) -> str:
    """``text`` without line breaks, cut at ``limit`` characters."""
    flat = " ".join(text[: 4 * limit].split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"
