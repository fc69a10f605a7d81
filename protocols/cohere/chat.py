"""``/v2/chat`` of Cohere's API: the request with its checks, and the parts of answers."""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ..common import limits
from ..openai.sampling import Name, StopString, not_served, refuse

REFUSED: Final = ("kv_transfer_params",)
PARTLY: Final = {"citation_options": 'only `mode` "OFF" or "DISABLED": answers have no citations'}
_NO_CITATIONS: Final = ("OFF", "DISABLED")

FinishReason = Literal["COMPLETE", "STOP_SEQUENCE", "MAX_TOKENS", "TOOL_CALL"]


class Document(msgspec.Struct, frozen=True):
    data: dict[str, Any] | str
    id: str | None = None


class CitationOptions(msgspec.Struct, frozen=True):
    mode: str | None = None


class AnswerForm(msgspec.Struct, frozen=True):
    type: Literal["text", "json_object"] = "text"
    json_schema: dict[str, Any] | None = None
    schema: dict[str, Any] | None = None
    """The first version's name of ``json_schema``."""


class CohereThinking(msgspec.Struct, frozen=True):
    type: Literal["enabled", "disabled"]
    token_budget: Annotated[int, Meta(ge=0, le=limits.INT64_MAX)] | None = None


class CohereChatRequest(msgspec.Struct, kw_only=True):
    model: Name
    messages: Annotated[list[dict[str, Any]], Meta(min_length=1)]
    stream: bool = False
    tools: list[dict[str, Any]] | None = None
    strict_tools: bool | None = None
    """Arguments of calls keep to the schemas of their tools."""
    tool_choice: Literal["REQUIRED", "NONE"] | None = None
    documents: list[str | Document] | None = None
    """For templates that write documents."""
    citation_options: CitationOptions | None = None
    response_format: AnswerForm | None = None
    safety_mode: Literal["CONTEXTUAL", "STRICT", "OFF", "NONE"] | None = None
    """For templates that know it."""
    max_tokens: Annotated[int, Meta(ge=1, le=limits.INT64_MAX)] | None = None
    stop_sequences: list[StopString] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    seed: Annotated[int, Meta(ge=0, le=limits.INT64_MAX)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=0, le=2)] | None = None
    presence_penalty: Annotated[float, Meta(ge=0, le=2)] | None = None
    k: Annotated[int, Meta(ge=0, le=limits.INT32_MAX)] | None = None
    """0: all tokens."""
    p: Annotated[float, Meta(ge=0, le=1)] | None = None
    logprobs: bool = False
    thinking: CohereThinking | None = None
    priority: limits.Priority = 0

    # vLLM's
    chat_template_kwargs: dict[str, Any] | None = None
    kv_transfer_params: Any = None

    def check(self) -> None:
        """Raises BadRequest."""
        refuse(self, REFUSED)
        mode = None if self.citation_options is None else self.citation_options.mode
        if mode is not None and mode.upper() not in _NO_CITATIONS:
            raise not_served("citation_options.mode", "`citation_options.mode` other than `OFF`")


# ---- answers


class CohereError(msgspec.Struct, frozen=True, omit_defaults=True):
    message: str
    id: str | None = None
    """The request's."""


class TextBlock(msgspec.Struct, frozen=True, gc=False, tag_field="type", tag="text"):
    text: str


class ThinkingBlock(msgspec.Struct, frozen=True, gc=False, tag_field="type", tag="thinking"):
    thinking: str


class CohereFunction(msgspec.Struct, frozen=True, gc=False):
    name: str
    arguments: str


class CohereCall(msgspec.Struct, frozen=True, gc=False, tag_field="type", tag="function"):
    id: str
    function: CohereFunction


class CohereMessage(msgspec.Struct, frozen=True):
    role: Literal["assistant"] = "assistant"
    content: list[TextBlock | ThinkingBlock] | UnsetType = UNSET
    tool_calls: list[CohereCall] | UnsetType = UNSET


class CohereTokens(msgspec.Struct, frozen=True, gc=False):
    input_tokens: int
    output_tokens: int


class CohereUsage(msgspec.Struct, frozen=True, gc=False):
    billed_units: CohereTokens
    tokens: CohereTokens
    cached_tokens: int
    """Tokens of the prompt that were found in the cache."""


class CohereLogprobs(msgspec.Struct, frozen=True, gc=False):
    text: str
    token_ids: list[int]
    logprobs: list[float]


class CohereChatResponse(msgspec.Struct, frozen=True):
    id: str
    finish_reason: FinishReason
    message: CohereMessage
    usage: CohereUsage
    logprobs: list[CohereLogprobs] | UnsetType = UNSET


decoder: Final = msgspec.json.Decoder(CohereChatRequest)
