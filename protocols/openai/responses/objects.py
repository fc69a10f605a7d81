"""A response and its items. The field ``type`` is the tag of a struct."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from ..chat import TokenLogprob
from ..metadata import Metadata
from .client_tools import ApplyPatchCallItem, LocalShellCallItem, ShellCallItem, ToolSearchCallItem
from .request import Reasoning, ServiceTier, Status, TextConfig, TextFormat, Truncation

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputText(msgspec.Struct, tag_field="type", tag="output_text"):
    text: str = ""
    annotations: list[Any] = []
    logprobs: list[TokenLogprob] = []


class ReasoningText(msgspec.Struct, tag_field="type", tag="reasoning_text"):
    text: str = ""


class MessageItem(msgspec.Struct, tag_field="type", tag="message"):
    id: str
    content: list[OutputText]
    status: ItemStatus = "in_progress"
    role: Literal["assistant"] = "assistant"


class ReasoningItem(msgspec.Struct, tag_field="type", tag="reasoning"):
    id: str
    content: list[ReasoningText]
    summary: list[Any] = []
    encrypted_content: str | None = None
    status: ItemStatus = "in_progress"


class FunctionCallItem(msgspec.Struct, tag_field="type", tag="function_call"):
    id: str
    call_id: str
    name: str
    arguments: str = ""
    namespace: str | UnsetType = UNSET
    status: ItemStatus = "in_progress"


class CustomToolCallItem(msgspec.Struct, tag_field="type", tag="custom_tool_call"):
    id: str
    call_id: str
    name: str
    input: str = ""
    namespace: str | UnsetType = UNSET


CallKind = Literal["mcp_call", "web_search_call", "code_interpreter_call"]


class McpListToolsItem(msgspec.Struct, tag_field="type", tag="mcp_list_tools"):
    id: str
    server_label: str
    tools: list[dict[str, Any]] = []
    error: str | None = None


class McpCallItem(msgspec.Struct, tag_field="type", tag="mcp_call"):
    id: str
    server_label: str
    name: str
    arguments: str = ""
    output: str | None = None
    error: dict[str, Any] | None = None
    approval_request_id: str | None = None
    status: Literal["in_progress", "completed", "incomplete", "failed"] = "in_progress"


class WebSearchCallItem(McpCallItem, tag_field="type", tag="web_search_call"):
    """A call of a tool on the operator's server ``browser``, requested as OpenAI's web search. It also has the fields
    of other calls, so that its result is known when the item comes back."""

    action: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "search"})


class CodeInterpreterCallItem(McpCallItem, tag_field="type", tag="code_interpreter_call"):
    """A call of a tool of the operator's server ``python``, likewise."""

    code: str | None = None
    container_id: str = "auto"
    """Always ``auto``: state between calls is the server's matter."""
    outputs: list[dict[str, Any]] | None = None


class McpApprovalRequestItem(msgspec.Struct, tag_field="type", tag="mcp_approval_request"):
    id: str
    server_label: str
    name: str
    arguments: str = ""


class CompactionItem(msgspec.Struct, tag_field="type", tag="compaction"):
    id: str
    encrypted_content: str = ""


OutputItem = (
    MessageItem
    | ReasoningItem
    | FunctionCallItem
    | CustomToolCallItem
    | LocalShellCallItem
    | ShellCallItem
    | ApplyPatchCallItem
    | ToolSearchCallItem
    | McpListToolsItem
    | McpCallItem
    | WebSearchCallItem
    | CodeInterpreterCallItem
    | McpApprovalRequestItem
    | CompactionItem
)


class InputTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int
    cache_write_tokens: int = 0
    """Always 0: cache writes are not counted."""


class OutputTokensDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, frozen=True):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int

    @classmethod
    def of(cls, given: int, cached: int, output: int, reasoning: int) -> "ResponseUsage":
        details = InputTokensDetails(cached), OutputTokensDetails(reasoning)
        return cls(given, details[0], output, details[1], given + output)


class ResponseFailure(msgspec.Struct, frozen=True):
    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str


class IncompleteDetails(msgspec.Struct, frozen=True):
    reason: Literal["max_output_tokens", "content_filter", "steered"]


class ConversationName(msgspec.Struct, frozen=True):
    id: str


class ResponseObject(msgspec.Struct, kw_only=True):
    """Every field is always there, null where it has no value."""

    id: str
    created_at: int
    model: str
    status: Status = "in_progress"
    object: Literal["response"] = "response"
    completed_at: int | None = None
    error: ResponseFailure | None = None
    incomplete_details: IncompleteDetails | None = None
    output: list[OutputItem] = []
    usage: ResponseUsage | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: ConversationName | None = None
    tools: list[dict[str, Any]] = []
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True
    max_tool_calls: int | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    reasoning: Reasoning = Reasoning()
    text: TextConfig = TextConfig(TextFormat("text"))
    truncation: Truncation = "disabled"
    service_tier: ServiceTier = "default"
    store: bool = True
    background: bool = False
    metadata: Metadata = {}
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    user: str | None = None


class InputTokens(msgspec.Struct, frozen=True):
    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"


class ResponseDeleted(msgspec.Struct, frozen=True):
    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class ItemList(msgspec.Struct, frozen=True):
    """A page of items."""

    data: list[dict[str, Any]]
    first_id: str
    last_id: str
    has_more: bool
    object: Literal["list"] = "list"


class Compaction(msgspec.Struct, frozen=True):
    id: str
    created_at: int
    output: list[dict[str, Any]]
    usage: ResponseUsage
    object: Literal["response.compaction"] = "response.compaction"
