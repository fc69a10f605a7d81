"""vLLM's endpoints of token ids: ``/inference/v1/generate``, and the requests to it that ``…/render`` makes."""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ..common import limits
from ..common.errors import wrong
from .chat import ChatRequest
from .completions import CompletionRequest
from .sampling import Name, SamplingFields, StreamOptions, TokenId, TopLogprobs, not_served, refuse
from .usage import PromptLogprobs, Usage

REFUSED: Final = ("features", "content_parts", "kv_transfer_params", "ec_transfer_params")
_REFUSED_SAMPLING: Final = (
    "prompt_logprob_token_ids",
    "prompt_logprob_start",
    "thinking_token_budget",
    "trace_decode_token_ids",
    "extra_args",
)
_OUTSIDE: Final = ("model", "stream", "stream_options", "cache_salt", "priority", "request_id")
"""Fields that stand beside the sampling parameters."""
_DEFAULTS: Final = SamplingFields()


class TokensSampling(SamplingFields, kw_only=True):
    """The fields of completions, but for those that stand beside them."""

    logprobs: TopLogprobs | None = None

    # Decoded so that clients get an error instead of being ignored.
    prompt_logprob_token_ids: Any = None
    prompt_logprob_start: Any = None
    thinking_token_budget: Any = None
    trace_decode_token_ids: Any = None
    extra_args: Any = None


class TokensRequest(msgspec.Struct, kw_only=True):
    token_ids: Annotated[list[TokenId], Meta(min_length=1)]
    sampling_params: TokensSampling
    model: Name | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=limits.MAX_NAME_LENGTH)] | None = None
    priority: limits.Priority = 0
    request_id: Annotated[str, Meta(max_length=limits.MAX_REQUEST_ID)] | None = None
    output_mode: Literal["tokens"] = "tokens"
    features: Any = None
    content_parts: Any = None
    kv_transfer_params: Any = None
    ec_transfer_params: Any = None

    def completion(self) -> CompletionRequest:
        """The same as a request for a completion. Raises BadRequest."""
        refuse(self, REFUSED)
        sampling = msgspec.structs.asdict(self.sampling_params)
        for name in _REFUSED_SAMPLING:
            if sampling.pop(name):
                raise not_served(f"sampling_params.{name}")
        if self.sampling_params.use_beam_search:
            raise wrong("sampling_params.use_beam_search", "is not available here; use /v1/completions", "unsupported")
        return CompletionRequest(
            **{**sampling, **{name: getattr(self, name) for name in _OUTSIDE}, "prompt": self.token_ids}
        )


class RenderedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A :class:`TokensRequest` as an answer: sent on as it is, it is answered as the request that it was made from."""

    request_id: str
    token_ids: list[int]
    sampling_params: dict[str, Any]
    model: str
    stream: bool
    stream_options: StreamOptions | None
    cache_salt: str | None
    priority: int
    features: None = None
    kv_transfer_params: None = None
    prompt_text: str | UnsetType = UNSET
    """The prompt with its special tokens, if that was requested."""
    token_offsets: Sequence[Annotated[Sequence[int], Meta(min_length=2, max_length=2)]] | UnsetType | None = UNSET
    """The half-open range of characters that each token is from, if that was requested: of a conversation's in its
    ``prompt_text``, of a completion's in its text. None: tokens were given, or do not follow from the text alone."""


def sampling_of(request: ChatRequest | CompletionRequest) -> dict[str, Any]:
    """The sampling parameters that a request set, as those of a :class:`TokensRequest`."""
    found = {}
    for name in SamplingFields.__struct_fields__:
        value = getattr(request, name)
        if name not in _OUTSIDE and value != getattr(_DEFAULTS, name):
            found[name] = msgspec.to_builtins(value)
    if isinstance(request, ChatRequest):
        tokens, scores = request.wanted_tokens, (request.top_logprobs or 0) if request.logprobs else None
    else:
        tokens, scores = request.max_tokens, request.logprobs
    found |= {} if tokens is None else {"max_tokens": tokens}
    return found | ({} if scores is None else {"logprobs": scores})


# ---- responses


class RankedToken(msgspec.Struct, frozen=True, kw_only=True):
    token_id: int
    rank: int | None
    """1 for the most likely token; None: unknown, of a token in ``logprob_token_ids``."""
    token: str
    """``token_id:7``: with ``bytes``, the fields of chats, which vLLM had here until 0.32."""
    logprob: float
    bytes: list[int]


class SampledToken(RankedToken, frozen=True, kw_only=True):
    top_logprobs: list[RankedToken]
    """The sampled token alone, where no alternatives are wanted."""


class TokensLogprobs(msgspec.Struct, frozen=True):
    content: list[SampledToken]


class TokensChoice(msgspec.Struct, frozen=True):
    index: int
    logprobs: TokensLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    """None: in a stream, before the end."""
    token_ids: list[int]
    stop_reason: int | str | None = None
    routed_experts: str | UnsetType = UNSET


class TokensResponse(msgspec.Struct, frozen=True):
    request_id: str
    model: str
    created: int
    choices: list[TokensChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | None = None
    kv_transfer_params: None = None


class TokensChunk(msgspec.Struct, frozen=True):
    request_id: str
    choices: list[TokensChoice]
    usage: Usage | None = None


decoder: Final = msgspec.json.Decoder(TokensRequest)
