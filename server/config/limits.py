"""Limits on clients, for one and for all together."""

from typing import Annotated, Final

import msgspec

from stentor.protocols.common.limits import Limits
from stentor.protocols.ipc.flag import Flag

DEFAULT_SECONDS: Final = 1.0
"""For rendering a chat template; one that does not loop for ever takes milliseconds."""
DEFAULT_WAITING: Final = 64
"""Waiting templates of requests."""
DEFAULT_CHARS: Final = 8 << 20
"""Characters of a rendered chat."""


class OverloadConfig(msgspec.Struct, frozen=True):
    """Limits on concurrent and waiting requests. 0 is no limit, except in ``stream_buffer`` and
    ``max_inflight_bytes``."""

    max_queued_requests: Annotated[
        int,
        Flag(
            "requests that wait for their first token, whatever their n; further ones get 429; 0 is no limit",
            aliases=("max-num-queued-reqs",),
        ),
    ] = 2048
    """Equals the kernel's queue of connections."""
    max_queued_tokens: Annotated[
        int,
        Flag(
            "waiting prompt tokens; further requests get 429 unless no other request waits; 0 is no limit",
            aliases=("max-num-queued-tokens",),
        ),
    ] = 4 << 20
    """Some 100 bytes each in the server and the engine."""
    max_inflight_bytes: Annotated[
        int | None,
        Flag(
            "memory for clients' requests (bodies and their decoded form, prompts, stored items in use, "
            "WebSocket messages), half of it for texts being tokenized; further requests get 429, or 413 if "
            "they never fit; by default a quarter of the container's or machine's memory, at most 1 GiB",
            kind="size",
            aliases=("max-inflight-body-bytes", "max-held-body-size"),
        ),
    ] = None
    request_timeout: Annotated[
        float,
        Flag(
            "time limit of a request from its arrival to its last token; 0 is no limit; the header "
            "x-request-timeout shortens it",
            kind="seconds",
        ),
    ] = 0.0
    slow_reader_timeout: Annotated[
        float,
        Flag(
            "a client that reads almost nothing of its response for this long is disconnected; 0 is no limit",
            kind="seconds",
        ),
    ] = 30.0
    stream_buffer: Annotated[int, Flag("bytes buffered for a slow client before its stream is paused", kind="size")] = (
        64 << 10
    )


class ConnectionLimits(msgspec.Struct, frozen=True):
    """Limits of connections before there is a request."""

    max_connections: Annotated[int, Flag("concurrent connections; further ones get 429; 0 is no limit", 0, 2**20)] = (
        4096
    )
    max_per_client: Annotated[
        int,
        Flag(
            "concurrent connections of one address, or of one /64 of IPv6; further ones get 429; 0 is no limit",
            0,
            2**20,
            name="max-connections-per-client",
        ),
    ] = 2048
    max_header_bytes: Annotated[
        int, Flag("bytes of a request line with its headers; more get 431", kind="size", name="max-header-size")
    ] = 64 << 10
    max_headers: Annotated[int, Flag("header lines of a request; more get 431", 1, 65536)] = 100
    header_timeout: Annotated[
        float, Flag("time limit for receiving a request's headers; then 408", kind="some_seconds")
    ] = 30.0
    max_pipelined: Annotated[
        int,
        Flag(
            "pipelined requests that wait on one connection; further ones get 429; 0 lets none wait",
            0,
            65536,
            name="max-pipelined-requests",
        ),
    ] = 16
    keep_alive_timeout: Annotated[float, Flag("an idle connection is closed after this time", kind="some_seconds")] = (
        30.0
    )
    max_message_bytes: Annotated[
        int, Flag("bytes of one message on a WebSocket; a longer one closes it", kind="size", name="max-message-size")
    ] = 32 << 20
    max_messages_per_second: Annotated[
        int, Flag("messages read from one WebSocket; the rest waits at the client; 0 is no limit", 0, 1 << 20)
    ] = 50


class TemplateLimits(msgspec.Struct, frozen=True):
    timeout: Annotated[
        float, Flag("time limit for rendering a chat template", kind="some_seconds", name="template-timeout")
    ] = DEFAULT_SECONDS
    max_rendered_chars: Annotated[int, Flag("characters of a rendered conversation", 1)] = DEFAULT_CHARS
    max_waiting: Annotated[
        int,
        Flag(
            "waiting requests with their own chat template; further ones get 429; 0 lets none wait",
            0,
            65536,
            name="max-queued-templates",
            group="overload",
        ),
    ] = DEFAULT_WAITING


class GrammarLimits(msgspec.Struct, frozen=True):
    """Limits of checking grammars."""

    timeout: Annotated[
        float,
        Flag(
            "time limit for compiling a grammar of an answer or a tool",
            kind="some_seconds",
            name="grammar-timeout",
        ),
    ] = 1.5
    cache: Annotated[int, Flag("grammars whose verdict is cached", 1, 2**20, name="grammar-cache")] = 4096
    max_waiting: Annotated[
        int,
        Flag(
            "grammars of answers and tools that wait for a check; further ones get 429; 0 lets none wait",
            0,
            65536,
            name="max-queued-grammars",
            group="overload",
        ),
    ] = 32


class AudioLimits(msgspec.Struct, frozen=True):
    """Limits of decoding one audio file, and all of them."""

    max_bytes: Annotated[int, Flag("largest uploaded audio file", kind="size", name="max-audio-bytes")] = 64 << 20
    max_seconds: Annotated[
        float,
        Flag(
            "duration of a decoded audio file, whatever its header says",
            kind="some_seconds",
            name="max-audio-seconds",
        ),
    ] = 4 * 3600.0
    """32,000 bytes each."""
    max_held_seconds: Annotated[
        float,
        Flag(
            "decoded audio of all requests together, 32 KB a second; further files get 429",
            kind="some_seconds",
            name="max-held-audio-seconds",
        ),
    ] = 12 * 3600.0
    timeout: Annotated[
        float,
        Flag("time limit for decoding one audio file, without waiting", kind="some_seconds", name="audio-timeout"),
    ] = 120.0
    processes: Annotated[int, Flag("processes that decode audio files in parallel", 1, 64, name="audio-processes")] = 3
    max_waiting: Annotated[
        int,
        Flag(
            "audio files that wait to be decoded; further ones get 429",
            1,
            2**16,
            name="max-queued-audio-files",
            aliases=("max-queued-sounds",),
        ),
    ] = 256


class ProcessorLimits(msgspec.Struct, frozen=True):
    """Limits of processing pictures, sounds and videos."""

    processes: Annotated[
        int,
        Flag(
            "processes that process media in parallel, about 100 MB each",
            1,
            64,
            name="mm-processor-processes",
            group="media",
        ),
    ] = 1
    timeout: Annotated[
        float,
        Flag(
            "time limit for processing one image, sound or video, without waiting",
            kind="some_seconds",
            name="mm-processor-timeout",
            group="media",
        ),
    ] = 30.0
    cache_bytes: Annotated[
        int,
        Flag(
            "memory for cached results of processed media; 0 disables the cache",
            kind="size",
            name="mm-processor-cache-size",
            group="media",
        ),
    ] = 512 << 20
    max_waiting: Annotated[
        int,
        Flag(
            "images, sounds and videos that wait for processing; further ones get 429",
            1,
            2**16,
            name="max-queued-media",
            group="overload",
        ),
    ] = 256
    max_waiting_bytes: Annotated[
        int,
        Flag(
            "bytes of images, sounds and videos that wait for processing; further ones get 429",
            kind="size",
            name="max-queued-media-bytes",
            group="overload",
        ),
    ] = 256 << 20


class LimitsConfig(msgspec.Struct, frozen=True):
    """Limits of one client; each part goes to the component that enforces it."""

    request: Limits = Limits()
    connection: ConnectionLimits = ConnectionLimits()
    template: TemplateLimits = TemplateLimits()
    grammar: GrammarLimits = GrammarLimits()
    audio: AudioLimits = AudioLimits()
    processor: ProcessorLimits = ProcessorLimits()
