"""``/v1/chat/completions``: the request with its checks, the response and its parts."""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, Protocol

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ..common import limits
from ..common.bounds import at_most, chars_at_most, items_at_most, message_chars_at_most
from ..common.decoding import converted
from ..common.errors import refused, wrong
from ..common.limits import Limits
from .beams import check_beams, excluded
from .messages import check_messages
from .metadata import check_metadata
from .sampling import SamplingFields, TopLogprobs, check_logprob_token_ids, check_sampling, not_served, refuse
from .structured import wanted_answer
from .tools import tool_use
from .usage import PromptLogprobs, RequestMetrics, Timings, Usage

ChatFinishReason = Literal["stop", "length", "tool_calls", "function_call"]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

REFUSED: Final = (
    *("audio", "web_search_options", "moderation", "return_prompt_token_ids", "return_meta_info", "input_ids", "task"),
    *("images_config", "use_audio_in_video", "max_dynamic_patch", "min_dynamic_patch"),
)
IGNORED_FIELDS: Final = ("stream_reasoning",)
"""It says when reasoning is sent, not which."""
Messages = Annotated[list[dict[str, Any]], Meta(min_length=1)]


class TemplateOptions(Protocol):
    """How messages become a prompt; the same in chat, ``/tokenize`` and pooling."""

    continue_final_message: bool
    chat_template: str | None
    chat_template_kwargs: dict[str, Any] | None
    documents: list[dict[str, Any]] | None

    @property
    def add_generation_prompt(self) -> bool | None:
        """None: unless the last message is continued."""


class ReasoningOptions(msgspec.Struct, frozen=True, kw_only=True):
    effort: ReasoningEffort | None = None
    enabled: bool | None = None
    """True without an effort: a medium one."""
    max_tokens: Annotated[int, Meta(ge=0, le=limits.INT64_MAX)] | None = None
    exclude: bool = False

    @property
    def effort_asked(self) -> ReasoningEffort | None:
        if self.enabled is False:
            return "none"
        return "medium" if self.effort is None and self.enabled else self.effort


class ChatFields(SamplingFields, kw_only=True):
    """A request's fields besides its conversation."""

    max_completion_tokens: Annotated[int, Meta(ge=1, le=limits.INT64_MAX)] | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None

    mm_processor_kwargs: dict[str, Any] | None = None
    media_io_kwargs: dict[str, Any] | None = None

    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    functions: list[Any] | None = None
    function_call: str | dict[str, Any] | None = None

    reasoning_effort: ReasoningEffort | None = None
    include_reasoning: bool = True
    thinking_token_budget: Annotated[int, Meta(ge=0, le=limits.INT64_MAX)] | None = None
    """Tokens that the model may think before it has to answer; vLLM's name."""

    store: bool | None = None
    metadata: dict[str, Any] | None = None
    """Looked at where the answer is stored."""

    modalities: list[str] | None = None
    audio: Any = None
    web_search_options: Any = None
    moderation: Any = None
    return_prompt_token_ids: Any = None
    return_meta_info: Any = None
    input_ids: Any = None
    task: Any = None
    images_config: Any = None
    use_audio_in_video: Any = None
    max_dynamic_patch: Any = None
    min_dynamic_patch: Any = None

    # SGLang's
    separate_reasoning: bool = True
    """False: reasoning is part of the content, with its marks."""
    reasoning: ReasoningOptions | None = None
    """OpenRouter's too."""

    # llama.cpp's
    reasoning_format: Literal["none", "auto", "deepseek"] | None = None
    """``none``: as ``separate_reasoning`` false."""
    thinking_budget_tokens: Annotated[int, Meta(ge=-1, le=limits.INT64_MAX)] | None = None
    """Another name of ``thinking_token_budget``; -1: none."""
    parse_tool_calls: bool = True
    """False: calls are part of the content, as the model writes them."""

    # vLLM's
    echo: bool | None = None
    """The answer begins with the last message, if that is the assistant's."""
    return_prompt_text: bool | None = None
    return_token_offsets: bool | None = None
    """Of ``…/render``; without effect on an answer, as in vLLM."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reasoning_format == "none":
            self.separate_reasoning = False
        if self.thinking_token_budget is None and self.thinking_budget_tokens != -1:
            self.thinking_token_budget = self.thinking_budget_tokens
        asked = self.reasoning
        if asked is None:
            return
        if self.reasoning_effort is None:
            self.reasoning_effort = asked.effort_asked
        if self.thinking_token_budget is None:
            self.thinking_token_budget = asked.max_tokens
        self.include_reasoning = self.include_reasoning and not asked.exclude

    @property
    def max_tokens_field(self) -> str:
        return super().max_tokens_field if self.max_completion_tokens is None else "max_completion_tokens"

    @property
    def wanted_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def wanted_logprobs(self) -> int | None:
        return self.alternatives(self.top_logprobs or 0) if self.logprobs else None


class ChatRequest(ChatFields, kw_only=True):
    messages: Messages

    @property
    def echoed(self) -> str:
        """The text that an answer begins with; of a checked request."""
        last = self.messages[-1]
        if not self.echo or last["role"] != "assistant":
            return ""
        content = last.get("content") or ""
        if isinstance(content, str):
            return content
        return "\n".join(part["text"] for part in content if part["type"] == "text")

    def check(self, limits: Limits) -> None:
        """Checks what the types do not. Raises BadRequest."""
        if self.max_tokens == 0:
            raise refused(self.max_tokens_field, "expected integer >= 1", "invalid_value")
        at_most(self.top_logprobs, limits.max_logprobs, "top_logprobs")
        check_sampling(self, self.wanted_tokens, self.max_tokens_field, limits)
        refuse(self, REFUSED)
        if not (self.separate_reasoning or self.include_reasoning):
            raise wrong("separate_reasoning", "may not be false where reasoning is left out")
        if self.web_search_options is not None:  # even empty, it requests a search
            raise not_served("web_search_options")
        tool_use(self, limits)
        wanted_answer(self, limits)
        check_beams(self, limits)
        if self.use_beam_search and self.thinking_token_budget is not None:
            raise excluded("thinking_token_budget")
        if self.modalities and self.modalities != ["text"]:
            raise not_served("modalities", "`modalities` other than `text`")
        if self.top_logprobs and not self.logprobs:
            raise wrong("top_logprobs", "needs `logprobs` to be true")
        check_logprob_token_ids(self, scored=bool(self.logprobs))
        if self.store:
            check_metadata(self.metadata)
        check_template(self, [self.messages], limits)
        check_messages(self.messages)


def check_template(
    request: TemplateOptions, conversations: Sequence[list[dict[str, Any]]], limits: Limits, field: str = "messages"
) -> None:
    """Raises BadRequest for messages and templates that are too long, and for contradictory fields. The conversations
    are in ``field``; bounds apply to all of them together."""
    chars_at_most(request.chat_template, limits.max_template_chars, "chat_template")
    messages = [message for conversation in conversations for message in conversation]
    items_at_most(messages, limits.max_messages, field)
    message_chars_at_most(messages, limits.max_prompt_chars, field)
    if request.continue_final_message and request.add_generation_prompt:
        raise wrong("continue_final_message", "excludes `add_generation_prompt`; set the latter to false")
    lasts = [conversation[-1] for conversation in conversations] or [{}]
    if request.continue_final_message and any(last.get("role") != "assistant" for last in lasts):
        raise wrong("continue_final_message", "needs a last message of role `assistant`")


def template_kwargs(request: TemplateOptions, reserved: frozenset[str], *, trusted: bool) -> dict[str, Any]:
    """Template arguments of a request. Raises BadRequest for a template of the request unless ``trusted``, and for
    ``reserved`` arguments."""
    if request.chat_template is not None and not trusted:
        why = "is not taken from requests here (--trust-request-chat-template); leave it out"
        raise wrong("chat_template", why, "untrusted_template")
    given = request.chat_template_kwargs or {}
    taken = sorted(given.keys() & reserved)
    if taken:
        raise wrong("chat_template_kwargs", f"must not set `{taken[0]}`")
    return given


def chat_of(fields: dict[str, Any]) -> ChatRequest:
    """A chat request translated from another protocol; fields that are None are left out. Raises BadRequest."""
    chat: ChatRequest = converted({name: value for name, value in fields.items() if value is not None}, ChatRequest, "")
    return chat


# ---- responses


class TopLogprob(msgspec.Struct, frozen=True, gc=False):
    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(msgspec.Struct, frozen=True, gc=False):
    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(msgspec.Struct, frozen=True, gc=False):
    content: list[TokenLogprob]
    refusal: None = None


class CalledFunction(msgspec.Struct, frozen=True, gc=False):
    name: str
    arguments: str
    """JSON, unless the output was cut off in it."""


class FunctionToolCall(msgspec.Struct, frozen=True, gc=False, tag_field="type", tag="function"):
    id: str
    function: CalledFunction


class CalledCustom(msgspec.Struct, frozen=True, gc=False):
    name: str
    input: str


class CustomToolCall(msgspec.Struct, frozen=True, gc=False, tag_field="type", tag="custom"):
    id: str
    custom: CalledCustom


class AssistantMessage(msgspec.Struct, frozen=True, gc=False):
    content: str | None
    """None if there are calls and nothing else."""
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    reasoning: str | UnsetType = UNSET
    """The same text, since clients look for either name."""
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[FunctionToolCall | CustomToolCall] | UnsetType = UNSET
    function_call: CalledFunction | UnsetType = UNSET
    """For clients that asked with ``functions``."""


class ChatChoice(msgspec.Struct, frozen=True):
    index: int
    message: AssistantMessage
    logprobs: ChoiceLogprobs | None
    finish_reason: ChatFinishReason
    stop_reason: int | str | None
    token_ids: list[int] | UnsetType = UNSET
    routed_experts: str | UnsetType = UNSET


class ChatResponse(msgspec.Struct, frozen=True):
    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    object: Literal["chat.completion"] = "chat.completion"
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_text: str | UnsetType = UNSET
    metrics: RequestMetrics | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET
    system_fingerprint: str | UnsetType = UNSET


decoder: Final = msgspec.json.Decoder(ChatRequest)
