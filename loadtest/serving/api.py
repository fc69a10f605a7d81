"""What the load needs of an API: how a request is written, and what one event of the answer says.

A new API is a class that satisfies :class:`Api`, and its place in :data:`APIS`.
"""

from collections.abc import Mapping
from typing import Any, Final, Protocol

import msgspec


class Usage(msgspec.Struct, frozen=True, gc=False):
    """The server's own count of tokens."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class Event(msgspec.Struct, gc=False):
    """What one event of a stream, or a whole answer, brought."""

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
    extra: dict[str, Any] = {}
    """Fields put over the others; null removes one."""


class Api(Protocol):
    """One API of the server. Methods keep no state between requests."""

    name: str
    path: str
    takes_tokens: bool
    """Whether a prompt may be token ids."""

    def body(self, prompt: Prompt, settings: Settings) -> bytes:
        """The JSON body of one request."""

    def read(self, data: bytes) -> Event:
        """One event's data, ``[DONE]`` excepted. Raises :class:`msgspec.DecodeError` for what is no event."""

    def read_whole(self, body: bytes) -> Event:
        """The answer of a server that does not stream. Raises :class:`msgspec.DecodeError`."""


class _ErrorAnswer(msgspec.Struct):
    error: Any = None
    message: Any = None
    detail: Any = None


_read_error_answer = msgspec.json.Decoder(_ErrorAnswer).decode


def error_text(body: bytes) -> str:
    """What the body of a failed request says, in one line."""
    try:
        answer = _read_error_answer(body)
    except msgspec.DecodeError:
        return one_line(body.decode(errors="replace"))
    return describe_error(answer.error or answer.message or answer.detail or body.decode(errors="replace"))


def describe_error(error: object) -> str:
    """An error as servers send it, an object with a message or a text, in one line."""
    return one_line(str(error["message"] if isinstance(error, dict) and "message" in error else error))


def one_line(text: str, limit: int = 200) -> str:
    """``text`` without line breaks, cut at ``limit`` characters."""
    flat = " ".join(text[: 4 * limit].split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def stream_fields(prompt: Prompt, settings: Settings, prompt_field: str, value: object) -> dict[str, Any]:
    """The body that completions and chat share; ``settings.extra`` has the last word."""
    body: dict[str, Any] = {
        "model": settings.model,
        prompt_field: value,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if prompt.output_tokens is not None:
        body["max_tokens"] = prompt.output_tokens
    if settings.temperature is not None:
        body["temperature"] = settings.temperature
    if settings.ignore_eos:
        body["ignore_eos"] = True
    merged = {**body, **settings.extra}
    return {name: field for name, field in merged.items() if field is not None}


class _Choice(msgspec.Struct, gc=False):
    text: str | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None


class Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: Usage | None = None
    error: Any = None


decode_chunk = msgspec.json.Decoder(Chunk).decode


class _Streamed:
    """An API whose answer in one piece looks like one chunk."""

    def read(self, data: bytes) -> Event:
        raise NotImplementedError

    def read_whole(self, body: bytes) -> Event:
        event = self.read(body)
        if event.usage is not None:
            event.tokens = event.usage.completion_tokens
        return event


class Completions(_Streamed):
    """Text or token ids in, text out. A conversation becomes one text, its turns on lines of their own."""

    name = "completions"
    path = "/v1/completions"
    takes_tokens = True

    def body(self, prompt: Prompt, settings: Settings) -> bytes:
        value = prompt.tokens
        text = "\n".join(message.content for message in prompt.messages)
        return msgspec.json.encode(stream_fields(prompt, settings, "prompt", text if value is None else value))

    def read(self, data: bytes) -> Event:
        chunk = decode_chunk(data)
        if chunk.error is not None:
            return Event(error=describe_error(chunk.error))
        choices = chunk.choices
        if len(choices) == 1:  # nearly all there are
            choice = choices[0]
            text = choice.text or ""
            ids = choice.token_ids
            return Event(text, len(ids) if ids else 1 if text else 0, choice.finish_reason, chunk.usage)
        event = Event(usage=chunk.usage)
        for choice in choices:
            event.text += choice.text or ""
            event.tokens += len(choice.token_ids) if choice.token_ids else 1 if choice.text else 0
            event.finish = choice.finish_reason or event.finish
        return event


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class _ChatChoice(msgspec.Struct):
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None


class _ChatChunk(msgspec.Struct):
    choices: list[_ChatChoice] = []
    usage: Usage | None = None
    error: Any = None


_decode_chat = msgspec.json.Decoder(_ChatChunk).decode


class Chat(_Streamed):
    """Messages in, deltas out. Reasoning and tool calls count as output; the opening delta, role alone, does not."""

    name = "chat"
    path = "/v1/chat/completions"
    takes_tokens = False

    def body(self, prompt: Prompt, settings: Settings) -> bytes:
        messages: list[Message] = prompt.messages
        return msgspec.json.encode(stream_fields(prompt, settings, "messages", messages))

    def read(self, data: bytes) -> Event:
        chunk = _decode_chat(data)
        if chunk.error is not None:
            return Event(error=describe_error(chunk.error))
        event = Event(usage=chunk.usage)
        for choice in chunk.choices:
            event.finish = choice.finish_reason or event.finish
            delta = choice.delta or choice.message
            if delta is None:
                continue
            text = delta.content or ""
            event.text += text
            if text or delta.reasoning_content or delta.reasoning or delta.refusal or delta.tool_calls:
                event.tokens += len(choice.token_ids) if choice.token_ids else 1
        return event


APIS: Final[Mapping[str, Api]] = {api.name: api for api in (Completions(), Chat())}
