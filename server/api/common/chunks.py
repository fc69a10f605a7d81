"""Shared by the streams of chat and completions: the constant frame of a chunk.

A streamed token costs one JSON-encoded string between two constants; the rest of a chunk does not change.
"""

import hashlib
import time
from typing import Any, Final, Self

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request

import stentor
from stentor.protocols.common.encoding import encode
from stentor.protocols.ipc.steps import ExpertShape
from stentor.protocols.openai.generate import TokensRequest
from stentor.protocols.openai.sampling import SamplingFields, StreamOptions
from stentor.protocols.openai.usage import RequestMetrics, Timings, Usage

from ...config.models import ModelConfig
from ...generation.logprobs import TokenNames
from .endpoint import response_id

END: Final = b"\n\n"
NULL: Final = b"null"


def stream_options_of(body: SamplingFields | TokensRequest, config: ModelConfig) -> StreamOptions:
    """The request's, with the usage that the operator may force."""
    options = body.stream_options or StreamOptions()
    return msgspec.structs.replace(options, include_usage=options.include_usage or config.force_include_usage)


def fingerprint_of(config: ModelConfig) -> str:
    """What answers with the same seed depend on: the program's version, and a digest of the model's name, revision and
    sampling defaults."""
    told = (config.name, config.revision, config.generation_config, config.override_generation_config)
    return f"stentor-{stentor.__version__}-{hashlib.sha256(repr(told).encode()).hexdigest()[:8]}"


class AnswerShape(msgspec.Struct, frozen=True):
    """Requested contents of an answer, in chat and in completions."""

    response_id: str
    created: int
    model: str
    n: int
    names: TokenNames
    prompt_logprobs: int | None = None
    token_ids: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    metrics: bool = False
    """Whether the times of the answer are part of it, if it has one prompt."""
    timings: bool = False
    """The same in llama.cpp's shape, in each chunk of a stream."""
    experts: ExpertShape | None = None
    """Shape of the experts returned for each token; None: not returned."""
    fingerprint: str = ""
    """``system_fingerprint``; empty: none."""

    @classmethod
    def of(
        cls,
        prefix: str,
        request: Request,
        body: SamplingFields,
        model: str,
        names: TokenNames,
        *,
        config: ModelConfig,
        **own: Any,
    ) -> Self:
        """``own`` are the fields of a subclass."""
        options = stream_options_of(body, config)
        return cls(
            response_id(prefix, request, body.request_id),
            int(time.time()),
            model,
            body.choices,
            names,
            body.prompt_logprobs,
            bool(body.return_token_ids),
            options.include_usage,
            options.include_usage and options.continuous_usage_stats,
            config.per_request_metrics and body.choices == 1,
            bool(body.timings_per_token) and body.choices == 1,
            fingerprint=fingerprint_of(config),
            **own,
        )

    def frame(self, kind: str) -> "ChunkFrame":
        """Frame of chunks whose ``object`` is ``kind``."""
        fields = {"id": self.response_id, "object": kind, "created": self.created, "model": self.model}
        if self.fingerprint:
            fields["system_fingerprint"] = self.fingerprint
        head = b"data: " + encode(fields)[:-1] + b',"choices":['
        return ChunkFrame(head, self.include_usage, self.continuous_usage)


class ChunkFrame(msgspec.Struct, frozen=True):
    """The constant parts of every chunk of one response, and how usage ends them.

    ``data: {"id":…,"choices":[`` *choice* ``]`` *usage* ``}``
    """

    head: bytes
    include_usage: bool
    continuous_usage: bool

    def tail(self, usage: Usage, timings: Timings | UnsetType = UNSET) -> bytes:
        """From the end of the choice to the end of the frame."""
        times = b"}" + END if timings is UNSET else b',"timings":' + encode(timings) + b"}" + END
        if self.continuous_usage:
            return b'],"usage":' + encode(usage) + times
        return b'],"usage":null' + times if self.include_usage else b"]" + times

    def last(self, usage: Usage, metrics: RequestMetrics | UnsetType = UNSET) -> bytes:
        """The chunk without choices with the usage of the whole request, if requested; ``metrics`` are part of it."""
        if not self.include_usage:
            return b""
        times = b"" if metrics is UNSET else b',"metrics":' + encode(metrics)
        return self.head + b'],"usage":' + encode(usage) + times + b"}" + END
