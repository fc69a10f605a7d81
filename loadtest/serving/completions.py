"""``/v1/completions``."""

from typing import Any

import msgspec

from .api import Event, Prompt, Settings, Usage, describe_error, stream_fields


class _Choice(msgspec.Struct, gc=False):
    text: str | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None


class Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: Usage | None = None
    error: Any = None


decode_chunk = msgspec.json.Decoder(Chunk).decode


class Completions:
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

    def read_whole(self, body: bytes) -> Event:
        event = self.read(body)
        if event.usage is not None:
            event.tokens = event.usage.completion_tokens
        return event
