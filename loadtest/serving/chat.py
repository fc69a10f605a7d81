"""``/v1/chat/completions``."""

from typing import Any

import msgspec

from .api import Event, Message, Prompt, Settings, Usage, describe_error, stream_fields


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


class Chat:
    """Messages in, deltas out. Reasoning and tool calls count as output; the opening delta, role alone, does not."""

    name = "chat"
    path = "/v1/chat/completions"
    takes_tokens = False

    def body(self, prompt: Prompt, settings: Settings) -> bytes:
        messages: list[Message] = prompt.messages
        return msgspec.json.encode(stream_fields(prompt, settings, "messages", messages))

    def read(self, data: bytes) -> Event:
        chunk = _decode(data)
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

    def read_whole(self, body: bytes) -> Event:
        event = self.read(body)
        if event.usage is not None:
            event.tokens = event.usage.completion_tokens
        return event
