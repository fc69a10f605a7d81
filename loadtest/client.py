"""One streamed completion from any server, over the client of the load: each chunk timed by the read that completed it.

Servers differ in what ends a stream (``[DONE]`` or nothing), in where usage stands, and in whether a chunk may carry
several tokens: tokens are counted by the server's usage, times by chunks.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import msgspec

from .server_process import HOST
from .serving.api import APIS, Event, decode_chunk, describe_error
from .serving.http import Address, HttpClient
from .serving.meter import Meter
from .serving.stream import Stream

SILENT_SECONDS: Final = 1800.0
STREAMED: Final = {"stream": True, "stream_options": {"include_usage": True}}


class StreamError(Exception):
    """There is no connection, or no complete stream came; the message is one line."""


@dataclass(frozen=True)
class Answer:
    """One complete answer. All times are ``time.perf_counter()``."""

    began: float
    arrivals: list[float]
    """When each chunk that carries output was complete; at least one."""
    prompt_tokens: int
    tokens: int
    """Tokens put out, as the server counts them."""

    @property
    def ttft(self) -> float:
        """Seconds to the first output."""
        return self.arrivals[0] - self.began

    @property
    def ended(self) -> float:
        return self.arrivals[-1]

    @property
    def gaps(self) -> list[float]:
        """Seconds between successive moments at which output arrived; chunks that came together count as one."""
        return [gap for earlier, later in pairwise(self.arrivals) if (gap := later - earlier)]


def seconds_of(answers: Sequence[Answer]) -> float:
    """From the first request that was sent to the last output of any."""
    return max(answer.ended for answer in answers) - min(answer.began for answer in answers)


def _read_completion(data: bytes) -> Event:
    """Every chunk is output, text or not, but for one that only says why it ended."""
    chunk = decode_chunk(data)
    if chunk.error is not None:
        return Event(error=describe_error(chunk.error))
    output = any(choice.text or choice.finish_reason is None for choice in chunk.choices)
    return Event(tokens=int(output), usage=chunk.usage)


async def complete(
    port: int, body: Mapping[str, object], path: str = "/v1/completions", *, arrivals: list[float] | None = None
) -> Answer:
    """Posts ``body``, which asks for a stream as :data:`STREAMED` does, and reads to the end.

    ``arrivals`` grows as chunks come, so that a caller can watch. Raises :class:`StreamError`.
    """
    sent = msgspec.json.encode(body)
    stream = Stream(APIS["chat"].read if "chat" in path else _read_completion, Meter(), needs_done=False)
    if arrivals is not None:
        stream.arrivals = arrivals
    with closing(HttpClient(Address("http", HOST, port), {"Connection": "close"}, SILENT_SECONDS)) as client:
        await client.post(path, sent, stream)
    if stream.error is not None:
        raise StreamError(stream.error)
    if not stream.arrivals:
        raise StreamError("the stream ended without output")
    if stream.usage is None:
        raise StreamError("the stream ended without usage, so its tokens cannot be counted")
    return Answer(stream.began, stream.arrivals, stream.usage.prompt_tokens, stream.usage.completion_tokens)
