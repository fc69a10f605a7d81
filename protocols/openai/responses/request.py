"""``POST /v1/responses``: the request and its checks."""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from ...common import limits
from ...common.bounds import at_most, chars_at_most, items_at_most, keys_at_most, texts_at_most
from ...common.errors import missing, wrong
from ...common.limits import Limits
from ..metadata import Metadata, check_metadata
from ..sampling import Name, Probability, StopString, TokenId, TopLogprobs, VllmXargs, not_served, refuse
from .tools import check_choice, check_tools

Status = Literal["completed", "failed", "in_progress", "cancelled", "queued", "incomplete"]
Truncation = Literal["auto", "disabled"]
ServiceTier = Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"]
Input = str | list[dict[str, Any]]

LOGPROBS: Final = "message.output_text.logprobs"
ENCRYPTED_REASONING: Final = "reasoning.encrypted_content"
INCLUDABLE: Final = (
    LOGPROBS,
    ENCRYPTED_REASONING,
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)
"""OpenAI's values; those below the first two concern items that never occur here."""

IGNORED_FIELDS: Final = (
    "access_programs",
    "background_options",
    "image",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "reasoning.context",
    "reasoning.generate_summary",
    "reasoning.mode",
    "reasoning.summary",
    "safety_identifier",
    "service_tier",
    "stream_interval",
    "stream_options",
    "text.verbosity",
    "user",
)
"""Accepted and without effect on the answer; those that OpenAI repeats in the response are repeated.

A ``prompt_cache_key`` is a hint for routing, and here is one node: as a salt it would keep equal beginnings apart.
"""
REFUSED: Final = (
    "prompt",
    "moderation",
    "multi_agent",
    "enable_response_messages",
    "previous_input_messages",
    "watermarking",
    "kv_transfer_params",
    "ec_transfer_params",
    "mm_payload",
    "return_mm_kwargs",
)
MOVED: Final = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "functions": "tools",
    "function_call": "tool_choice",
}
"""Fields of chat completions, and what a response calls them. Ignored, they would leave an answer without its limit or
its schema; OpenAI refuses them too."""


class Reasoning(msgspec.Struct, frozen=True, omit_defaults=False):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


class TextFormat(msgspec.Struct, frozen=True, omit_defaults=True):
    type: Literal["text", "json_object", "json_schema"]
    name: Name | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class TextConfig(msgspec.Struct, frozen=True):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None

    def check(self, field: str = "text") -> None:
        """Raises BadRequest naming the field."""
        if self.format is not None and self.format.type == "json_schema":
            for name in ("name", "schema"):
                if getattr(self.format, name) is None:
                    raise missing(f"{field}.format.{name}")


class ContextManagement(msgspec.Struct, frozen=True):
    type: Literal["compaction"]
    compact_threshold: Annotated[int, Meta(ge=1, le=limits.INT64_MAX)] | None = None
    """Tokens of a prompt beyond which its conversation is compacted first; None: three quarters of the context."""


class ConversationRef(msgspec.Struct, frozen=True):
    id: Name


class ContextFields(msgspec.Struct, kw_only=True):
    """Fields of a prompt, shared by responses and token counting."""

    model: Name | None = None
    input: Input | None = None
    instructions: str | None = None
    previous_response_id: Name | None = None
    conversation: Name | ConversationRef | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    truncation: Truncation | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    media_io_kwargs: dict[str, Any] | None = None

    @property
    def conversation_id(self) -> str | None:
        return self.conversation.id if isinstance(self.conversation, ConversationRef) else self.conversation

    def check_context(self, limits: Limits) -> None:
        """Raises BadRequest. Items are checked by :mod:`.items`."""
        if self.previous_response_id is not None and self.conversation is not None:
            raise wrong("conversation", "and `previous_response_id` exclude each other; send one of them")
        chars_at_most(self.instructions, limits.max_prompt_chars, "instructions")
        items_at_most(self.tools, limits.max_messages, "tools")
        check_tools(self.tools or [])
        check_choice(self.tool_choice, self.tools or [])
        if self.text is not None:
            self.text.check()


class ResponseRequest(ContextFields, kw_only=True):
    """None means that the field is absent."""

    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    store: bool | None = None
    background: bool | None = None
    include: list[str] | None = None
    max_output_tokens: Annotated[int, Meta(ge=1, le=limits.INT64_MAX)] | None = None
    max_tool_calls: Annotated[int, Meta(ge=1, le=limits.INT64_MAX)] | None = None
    context_management: Annotated[list[ContextManagement], Meta(max_length=1)] | None = None
    metadata: Metadata | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Probability | None = None
    top_logprobs: TopLogprobs | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    service_tier: ServiceTier | None = None
    safety_identifier: Name | None = None
    prompt_cache_key: Name | None = None
    user: Name | None = None

    # vLLM's
    top_k: Annotated[int, Meta(ge=-1, le=limits.INT32_MAX)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    seed: Annotated[int, Meta(ge=limits.INT64_MIN, le=limits.INT64_MAX)] | None = None
    stop: StopString | list[StopString] | None = None
    stop_token_ids: list[TokenId] | None = None
    include_stop_str_in_output: bool = False
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    allowed_token_ids: list[TokenId] | None = None
    bad_words: list[str] | None = None
    vllm_xargs: VllmXargs | None = None
    ignore_eos: bool = False
    min_tokens: Annotated[int, Meta(ge=0, le=limits.INT64_MAX)] = 0
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    structured_outputs: dict[str, Any] | None = None
    priority: limits.Priority = 0
    cache_salt: Annotated[str, Meta(min_length=1, max_length=limits.MAX_NAME_LENGTH)] | None = None
    session_id: Annotated[str, Meta(max_length=limits.MAX_NAME_LENGTH)] | None = None
    request_id: Annotated[str, Meta(max_length=limits.MAX_REQUEST_ID)] | None = None

    # Decoded so that clients get an error instead of being ignored.
    prompt: Any = None
    moderation: Any = None
    multi_agent: Any = None
    enable_response_messages: Any = None
    previous_input_messages: Any = None
    watermarking: Any = None
    kv_transfer_params: Any = None
    ec_transfer_params: Any = None
    mm_payload: Any = None
    return_mm_kwargs: Any = None
    messages: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    response_format: Any = None
    reasoning_effort: Any = None
    functions: Any = None
    function_call: Any = None
    include_reasoning: bool | None = None

    @property
    def stored(self) -> bool:
        return self.store is not False

    @property
    def wants_logprobs(self) -> bool:
        return bool(self.top_logprobs) or LOGPROBS in (self.include or ())

    def check(self, limits: Limits) -> None:
        """Checks what the types do not. Raises BadRequest."""
        for field, name in MOVED.items():
            if getattr(self, field) is not None:
                raise wrong(field, f"is a field of chat completions; a response calls it `{name}`", "unsupported")
        self.check_context(limits)
        refuse(self, REFUSED)
        if self.include_reasoning is False:
            raise not_served("include_reasoning", "`include_reasoning: false`")
        for index, wanted in enumerate(self.include or ()):
            if wanted not in INCLUDABLE:
                where = f"include[{index}]"
                raise wrong(where, f"must be one of {', '.join(INCLUDABLE)}", "invalid_value")
        if self.background and not self.stored:
            raise wrong("background", "needs `store`; leave the latter out or set it to true")
        check_metadata(self.metadata)
        at_most(self.top_logprobs, limits.max_logprobs, "top_logprobs")
        texts_at_most(self.stop, limits.max_stop_strings, limits.max_stop_length, "stop")
        items_at_most(self.stop_token_ids, limits.max_stop_tokens, "stop_token_ids")
        texts_at_most(self.bad_words, limits.max_bad_words, limits.max_bad_word_length, "bad_words")
        keys_at_most(self.logit_bias, limits.max_logit_bias, "logit_bias")
        items_at_most(self.allowed_token_ids, limits.max_allowed_tokens, "allowed_token_ids")
        form = None if self.text is None else self.text.format
        if self.structured_outputs is not None and form is not None and form.type != "text":
            raise wrong("structured_outputs", "and `text.format` exclude each other")
        if self.max_output_tokens is not None and self.min_tokens > self.max_output_tokens:
            raise wrong(
                "min_tokens", f"({self.min_tokens}) must not exceed `max_output_tokens` ({self.max_output_tokens})"
            )


class CompactRequest(msgspec.Struct, kw_only=True):
    """``POST /v1/responses/compact``."""

    model: Name | None = None
    input: Input | None = None
    instructions: str | None = None
    previous_response_id: Name | None = None
    prompt_cache_key: Name | None = None
    priority: limits.Priority = 0

    def check(self, limits: Limits) -> None:
        chars_at_most(self.instructions, limits.max_prompt_chars, "instructions")


decoder: Final = msgspec.json.Decoder(ResponseRequest)
context_decoder: Final = msgspec.json.Decoder(ContextFields)
compact_decoder: Final = msgspec.json.Decoder(CompactRequest)
