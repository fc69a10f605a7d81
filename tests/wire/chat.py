"""A stream of chat completion chunks: every chunk valid, the order kept, and the answer that it comes to."""

import json
from typing import Any

from openai.types.chat import ChatCompletionChunk

from stentor.tests.wire.validate import CHAT_EXTENSIONS, WireError, check_object, frames_of

TEXTS = ("content", "reasoning", "reasoning_content", "refusal")


class _Choice:
    """One choice of the answer, as its chunks come."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
        self.calls: list[dict[str, Any]] = []
        self.logprobs: dict[str, Any] | None = None
        self.token_ids: list[int] | None = None
        self.ended: dict[str, Any] | None = None
        self._opened = False

    def take(self, part: dict[str, Any]) -> None:
        if self.ended is not None:
            raise WireError(f"choice {self.index} goes on after its finish_reason")
        delta = part["delta"]
        if ("role" in delta) == self._opened:
            raise WireError(f"choice {self.index}: the role comes with its first chunk and no other")
        self._opened = True
        for name in TEXTS:
            if delta.get(name):
                self.message[name] = (self.message.get(name) or "") + delta[name]
            elif delta.get(name) == "" and ("role" in delta or self._is_empty(name, part)):
                self.message[name] = ""
            elif delta.get(name) == "" and not (part.get("token_ids") or part.get("logprobs")):
                raise WireError(f"choice {self.index}: an empty piece of {name}")
        for call in delta.get("tool_calls") or ():
            self._call(call)
        if part.get("logprobs") is not None:
            self.logprobs = self.logprobs or {"content": [], "refusal": None}
            self.logprobs["content"] += part["logprobs"]["content"]
        if "token_ids" in part:
            self.token_ids = (self.token_ids or []) + part["token_ids"]
        if part["finish_reason"] is not None:
            self.ended = part

    def _is_empty(self, name: str, part: dict[str, Any]) -> bool:
        """Whether the choice ends without a text and without calls, so that its text is empty and not null."""
        return part["finish_reason"] is not None and self.message.get(name) is None and not self.calls

    def _call(self, delta: dict[str, Any]) -> None:
        index = delta["index"]
        if index == len(self.calls):
            kind = delta.get("type")
            if not delta.get("id") or kind not in ("function", "custom") or not delta[kind].get("name"):
                raise WireError(f"call {index} begins without id, type and name: {delta}")
            self.calls.append({"id": delta["id"], "type": kind, kind: dict(delta[kind])})
            return
        if index != len(self.calls) - 1:
            raise WireError(f"call {index} comes after call {len(self.calls) - 1}")
        call = self.calls[index]
        kind = call["type"]
        if delta.keys() != {"index", kind} or delta[kind].keys() != {"arguments" if kind == "function" else "input"}:
            raise WireError(f"what follows a call's first delta is its index and more arguments: {delta}")
        for field, more in delta[kind].items():
            call[kind][field] += more

    def answer(self) -> dict[str, Any]:
        if self.ended is None:
            raise WireError(f"choice {self.index} has no finish_reason")
        if self.calls:
            self.message["tool_calls"] = self.calls
        answer = {"index": self.index, "message": self.message, "logprobs": self.logprobs}
        answer |= {name: self.ended[name] for name in ("finish_reason", "stop_reason")}
        return answer if self.token_ids is None else answer | {"token_ids": self.token_ids}


def check_stream(text: bytes | str, *, usage: bool = True) -> dict[str, Any]:
    """The answer that the stream comes to, as one that was not streamed has it. Raises WireError.

    ``usage``: whether it was asked for (``stream_options.include_usage``).
    """
    frames = frames_of(text)
    if not frames or frames[-1].data != "[DONE]":
        raise WireError("the stream does not end with [DONE]")
    if any(frame.event is not None for frame in frames):
        raise WireError("chat completions have no `event:` lines")
    chunks = [_chunk(frame.data) for frame in frames[:-1]]
    names = ("id", "created", "model", "system_fingerprint")
    head = {name: chunks[0][name] for name in names if name in chunks[0]}
    if any(chunk.get(name) != value for chunk in chunks for name, value in head.items()):
        raise WireError(f"{', '.join(names)}: one of these changes within a stream")
    if usage and not (chunks[-1]["usage"] and not chunks[-1]["choices"]):
        raise WireError("usage was asked for, and does not end the stream")
    choices: dict[int, _Choice] = {}
    for place, chunk in enumerate(chunks):
        last = place == len(chunks) - 1
        if not chunk["choices"] and not (usage and last and chunk["usage"] is not None):
            raise WireError("only a last chunk with usage has no choices")
        if ("usage" in chunk) != usage:
            raise WireError("usage is in every chunk, null but in the last, exactly where it was asked for")
        for part in chunk["choices"]:
            choices.setdefault(part["index"], _Choice(part["index"])).take(part)
    answer = {**head, "object": "chat.completion", "choices": [choices[index].answer() for index in sorted(choices)]}
    return answer | {"usage": chunks[-1]["usage"]} if usage else answer


def _chunk(data: str) -> dict[str, Any]:
    chunk: dict[str, Any] = json.loads(data)
    if "error" in chunk:
        raise WireError(f"the stream ends in an error: {data}")
    check_object(ChatCompletionChunk, _without_custom(chunk), CHAT_EXTENSIONS)
    return chunk


def _without_custom(chunk: dict[str, Any]) -> dict[str, Any]:
    """Without the deltas of custom tools, which OpenAI streams and the SDK's types of chunks do not know."""
    choices = []
    for choice in chunk["choices"]:
        calls = choice["delta"].get("tool_calls")
        if calls is not None and any("custom" in call for call in calls):
            rest = {name: value for name, value in choice["delta"].items() if name != "tool_calls"}
            choice = {**choice, "delta": rest}
        choices.append(choice)
    return {**chunk, "choices": choices}
