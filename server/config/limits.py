"""What clients may take up, one by one and all together."""

from typing import Annotated, Final

import msgspec

from stentor.protocols.common.limits import Limits
from stentor.protocols.ipc.flag import Flag

DEFAULT_SECONDS: Final = 1.0
"""For rendering a chat template; one that does not loop for ever takes milliseconds."""
DEFAULT_WAITING: Final = 64
"""Templates of requests that wait to be rendered."""
DEFAULT_CHARS: Final = 8 << 20
"""Characters of a rendered chat."""


class OverloadConfig(msgspec.Struct, frozen=True):
    """How much may be asked at once, and for how long. 0 is no limit, everywhere but in ``stream_buffer`` and
    ``max_inflight_bytes``."""

    max_queued_requests: Annotated[
        int,
        Flag(
            "requests that may wait for their first token, whatever their n; a further one gets 429; 0 is no limit",
            aliases=("max-num-queued-reqs",),
        ),
    ] = 2048
    """As many connections as the kernel lets wait."""
    max_queued_tokens: Annotated[
        int, Flag("prompt tokens that may wait; a further request gets 429 unless it is alone; 0 is no limit")
    ] = 4 << 20
    """Some 100 bytes each in the server and the engine."""
    max_inflight_bytes: Annotated[
        int | None,
        Flag(
            "bytes of memory for all that is held for clients at the same time (bodies and what is decoded of "
            "them, prompts, stored items in use, WebSocket messages), half of it for texts that are being "
            "tokenized; a further request gets 429, or 413 where it never fits; by default a quarter of the "
            "container's or machine's memory, at most 1 GiB",
            kind="size",
            aliases=("max-inflight-body-bytes", "max-held-body-size"),
        ),
    ] = None
    request_timeout: Annotated[
        float,
        Flag(
            "how long a request may take from its arrival to its last token; 0 is no limit; a client may "
            "shorten it by the header x-request-timeout",
            kind="seconds",
        ),
    ] = 0.0
    slow_reader_timeout: Annotated[
        float,
        Flag(
            "how long a client may read next to nothing of its response before it is dropped; 0 is no limit",
            kind="seconds",
        ),
    ] = 30.0
    stream_buffer: Annotated[
        int, Flag("bytes that may wait for a client that reads slowly before its stream is paused", kind="size")
    ] = 64 << 10


class ConnectionLimits(msgspec.Struct, frozen=True):
    """What connections may take up before there is a request."""

    max_connections: Annotated[
        int, Flag("connections at the same time; a further one gets 429; 0 is no limit", 0, 2**20)
    ] = 4096
    max_per_client: Annotated[
        int,
        Flag(
            "connections of one address, or of one /64 of IPv6, at the same time; a further one gets 429; 0 is "
            "no limit",
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
        float, Flag("how long the headers of a request may take to come in; then 408", kind="some_seconds")
    ] = 30.0
    max_pipelined: Annotated[
        int,
        Flag(
            "requests that may wait behind another one on their connection; a further one gets 429; 0 lets none wait",
            0,
            65536,
            name="max-pipelined-requests",
        ),
    ] = 16
    keep_alive_timeout: Annotated[
        float, Flag("how long a connection may be idle after a request before it is closed", kind="some_seconds")
    ] = 30.0
    max_message_bytes: Annotated[
        int, Flag("bytes of one message on a WebSocket; a longer one closes it", kind="size", name="max-message-size")
    ] = 32 << 20
    max_messages_per_second: Annotated[
        int, Flag("messages read from one WebSocket; the rest waits at its client; 0 is no limit", 0, 1 << 20)
    ] = 50


class TemplateLimits(msgspec.Struct, frozen=True):
    timeout: Annotated[
        float, Flag("how long a chat template may render", kind="some_seconds", name="template-timeout")
    ] = DEFAULT_SECONDS
    max_rendered_chars: Annotated[int, Flag("characters of a rendered conversation", 1)] = DEFAULT_CHARS
    max_waiting: Annotated[
        int,
        Flag(
            "requests with a chat template of their own that may wait for it to be rendered; a further one gets "
            "429; 0 lets none wait",
            0,
            65536,
            name="max-queued-templates",
            group="overload",
        ),
    ] = DEFAULT_WAITING


class GrammarLimits(msgspec.Struct, frozen=True):
    """What checking grammars may take up."""

    timeout: Annotated[
        float,
        Flag(
            "how long the grammar of an answer or a tool may take to compile",
            kind="some_seconds",
            name="grammar-timeout",
        ),
    ] = 1.5
    cache: Annotated[int, Flag("grammars whose validity is remembered", 1, 2**20, name="grammar-cache")] = 4096
    max_waiting: Annotated[
        int,
        Flag(
            "grammars of answers and tools that may wait while another one is checked; a further one gets 429; "
            "0 lets none wait",
            0,
            65536,
            name="max-queued-grammars",
            group="overload",
        ),
    ] = 32


class AudioLimits(msgspec.Struct, frozen=True):
    """What decoding one audio file, and all of them, may take."""

    max_bytes: Annotated[
        int, Flag("size of an audio file that a client sends", kind="size", name="max-audio-bytes")
    ] = 64 << 20
    max_seconds: Annotated[
        float,
        Flag(
            "length of an audio file once decoded, whatever its header says",
            kind="some_seconds",
            name="max-audio-seconds",
        ),
    ] = 4 * 3600.0
    """32,000 bytes each."""
    max_held_seconds: Annotated[
        float,
        Flag(
            "decoded audio that requests hold in all, 32 KB a second; a further file gets 429",
            kind="some_seconds",
            name="max-held-audio-seconds",
        ),
    ] = 12 * 3600.0
    timeout: Annotated[
        float,
        Flag("how long one sound may take to decode, once it has its turn", kind="some_seconds", name="audio-timeout"),
    ] = 120.0
    processes: Annotated[int, Flag("processes that decode sounds at the same time", 1, 64, name="audio-processes")] = 3
    max_waiting: Annotated[
        int,
        Flag(
            "sounds that may wait to be decoded; a further one gets 429",
            1,
            2**16,
            name="max-queued-audio-files",
            aliases=("max-queued-sounds",),
        ),
    ] = 256


class ProcessorLimits(msgspec.Struct, frozen=True):
    """What making a model's inputs of pictures, sounds and videos may take."""

    processes: Annotated[
        int,
        Flag(
            "processes that make a model's inputs of media at the same time, some 100 MB each",
            1,
            64,
            name="mm-processor-processes",
            group="media",
        ),
    ] = 1
    timeout: Annotated[
        float,
        Flag(
            "how long one image, sound or video may take to become a model's input, once it has its turn",
            kind="some_seconds",
            name="mm-processor-timeout",
            group="media",
        ),
    ] = 30.0
    cache_bytes: Annotated[
        int,
        Flag(
            "memory for what was made of media, so that they cost nothing the second time; 0 keeps nothing",
            kind="size",
            name="mm-processor-cache-size",
            group="media",
        ),
    ] = 512 << 20
    max_waiting: Annotated[
        int,
        Flag(
            "images, sounds and videos that may wait to become a model's inputs; a further one gets 429",
            1,
            2**16,
            name="max-queued-media",
            group="overload",
        ),
    ] = 256
    max_waiting_bytes: Annotated[
        int,
        Flag(
            "bytes of images, sounds and videos that may wait; a further one gets 429",
            kind="size",
            name="max-queued-media-bytes",
            group="overload",
        ),
    ] = 256 << 20


class LimitsConfig(msgspec.Struct, frozen=True):
    """What one client may take up; each part goes to the one who holds to it."""

    request: Limits = Limits()
    connection: ConnectionLimits = ConnectionLimits()
    template: TemplateLimits = TemplateLimits()
    grammar: GrammarLimits = GrammarLimits()
    audio: AudioLimits = AudioLimits()
    processor: ProcessorLimits = ProcessorLimits()
