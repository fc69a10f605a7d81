"""``/v1/messages`` and ``/v1/messages/count_tokens``: the requests with their checks."""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from ..common import limits
from ..common.errors import BadRequest, missing, refused, wrong
from ..openai.sampling import Name, VllmXargs, not_served
from .content import Identifier, InputMessage, TextBlock
from .context_management import ContextManagement
from .errors import THREAD_UNSUPPORTED
from .predefined import PREDEFINED, Predefined

LEAST_BUDGET: Final = 1024
"""Tokens to think in, as Anthropic has it."""
REFUSED: Final = (
    "container",
    "mcp_servers",
    "compaction",
    "fallbacks",
    "fallback_credit_token",
    "kv_transfer_params",
    "ec_transfer_params",
    "mm_payload",
    "return_mm_kwargs",
    "watermarking",
)
IGNORED_FIELDS: Final = (
    "metadata",
    "service_tier",
    "cache_control",
    "diagnostics",
    "inference_geo",
    "speed",
    "betas",
    "user_profile_id",
    "workspace_id",
    "billing_policy",
    "output_config.task_budget",
)
"""Accepted and without effect: they ask for nothing that would change the answer here."""


_SEARCH: Final = "tool_search_tool_"


class Tool(msgspec.Struct, frozen=True):
    name: Annotated[str, Meta(max_length=128)] = ""
    """Empty for tools of Anthropic's servers that have none."""
    input_schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None
    type: str | None = None
    allowed_callers: list[str] | None = None

    @property
    def searches(self) -> bool:
        """Whether it is the search for tools with ``defer_loading``: here all are offered from the beginning."""
        return self.type is not None and self.type.startswith(_SEARCH)

    @property
    def predefined(self) -> Predefined | None:
        """Anthropic's definition of the tool; None for a tool that the client defines."""
        return None if self.type is None else PREDEFINED.get(self.type)


class AutoChoice(msgspec.Struct, tag="auto", tag_field="type", frozen=True):
    disable_parallel_tool_use: bool | None = None


class AnyChoice(msgspec.Struct, tag="any", tag_field="type", frozen=True):
    disable_parallel_tool_use: bool | None = None


class NamedChoice(msgspec.Struct, tag="tool", tag_field="type", frozen=True):
    name: Identifier
    disable_parallel_tool_use: bool | None = None


class NoChoice(msgspec.Struct, tag="none", tag_field="type", frozen=True):
    pass


ToolChoice = AutoChoice | AnyChoice | NamedChoice | NoChoice
Display = Literal["summarized", "omitted"]


class ThinkingEnabled(msgspec.Struct, tag="enabled", tag_field="type", frozen=True):
    budget_tokens: Annotated[int, Meta(ge=LEAST_BUDGET, le=limits.INT64_MAX)]
    display: Display | None = None


class ThinkingAdaptive(msgspec.Struct, tag="adaptive", tag_field="type", frozen=True):
    display: Display | None = None


class ThinkingDisabled(msgspec.Struct, tag="disabled", tag_field="type", frozen=True):
    pass


class ThinkingBetweenTools(msgspec.Struct, tag="between_tools", tag_field="type", frozen=True):
    """No thinking. What the model says between calls stays text, as for models without this type."""


Thinking = ThinkingEnabled | ThinkingAdaptive | ThinkingDisabled | ThinkingBetweenTools


class JsonFormat(msgspec.Struct, frozen=True):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, frozen=True):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonFormat | None = None


class ConversationFields(msgspec.Struct, kw_only=True):
    """The fields of the prompt, shared with token counting."""

    model: Name
    messages: Annotated[list[InputMessage], Meta(min_length=1)]
    system: str | list[TextBlock] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    context_management: ContextManagement | None = None
    output_format: JsonFormat | None = None
    """The first version's name for ``output_config.format``."""

    chat_template_kwargs: dict[str, Any] | None = None
    """vLLM's, as chat has it."""

    container: Any = None
    mcp_servers: list[Any] | None = None
    compaction: Any = None
    fallbacks: Any = None
    fallback_credit_token: Any = None
    vllm_xargs: VllmXargs | None = None
    kv_transfer_params: Any = None
    ec_transfer_params: Any = None
    mm_payload: Any = None
    return_mm_kwargs: Any = None
    watermarking: Any = None
    thread: Any = None

    @property
    def answer_format(self) -> tuple[str, JsonFormat] | None:
        """The schema that the answer is to follow, and the field that says so."""
        if self.output_config is not None and self.output_config.format is not None:
            return "output_config.format", self.output_config.format
        return None if self.output_format is None else ("output_format", self.output_format)

    def check_conversation(self) -> None:
        """Checks what the types do not, except the messages. Raises BadRequest."""
        for field in REFUSED:
            if getattr(self, field):
                raise not_served(field)
        if self.thread is not None:
            raise refused(
                "thread",
                "this server holds no conversations; send the whole conversation without it",
                THREAD_UNSUPPORTED,
            )
        if self.context_management is not None:
            self.context_management.check()
        names = set()
        for index, tool in enumerate(self.tools or ()):
            if tool.searches:
                continue
            _check_tool(tool, f"tools[{index}]")
            if tool.name in names:
                raise refused(f"tools[{index}].name", "tool names must be unique")
            names.add(tool.name)
        match self.tool_choice:
            case NamedChoice(name=name) if name not in names:
                raise wrong("tool_choice.name", "is the name of none of `tools`")
            case AnyChoice() if not names:
                raise wrong("tool_choice", "asks for a tool, but `tools` has none")
            case _:
                pass


def _check_tool(tool: Tool, where: str) -> None:
    if tool.predefined is not None:
        if tool.name != tool.predefined.name:
            said = f"`{where}.name` of a tool of type `{tool.type}` must be `{tool.predefined.name}`."
            raise BadRequest(said, f"{where}.name", "invalid_value")
    elif tool.type not in (None, "custom"):
        named = f"the tool `{tool.name}`" if tool.name else "a tool"
        raise not_served(f"{where}.type", f"`{where}.type`: {named} of type `{(tool.type or '')[:40]}`")
    elif not tool.name:
        raise missing(f"{where}.name")
    elif tool.input_schema is None:
        raise missing(f"{where}.input_schema")
    if tool.allowed_callers is not None and "direct" not in tool.allowed_callers:
        raise not_served(f"{where}.allowed_callers", f"`{where}.allowed_callers` without `direct`")


class MessagesRequest(ConversationFields, kw_only=True):
    max_tokens: Annotated[int, Meta(ge=0, le=limits.INT64_MAX)]
    """0 only stores the prompt in the cache."""
    stream: bool | None = None
    stop_sequences: list[Annotated[str, Meta(min_length=1)]] | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=limits.INT32_MAX)] | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=limits.MAX_NAME_LENGTH)] | None = None
    """vLLM's, as chat has it."""
    priority: limits.Priority = 0
    """Likewise."""

    def check(self, *, thinks_between_calls: bool) -> None:
        """Raises BadRequest for a wrong conversation or thinking budget.

        ``thinks_between_calls``: the thinking budget covers a turn of several messages and may exceed this message's
        ``max_tokens``.
        """
        self.check_conversation()
        thinking = self.thinking
        if thinks_between_calls or not isinstance(thinking, ThinkingEnabled):
            return
        if thinking.budget_tokens >= self.max_tokens:
            raise wrong(
                "thinking.budget_tokens",
                f"({thinking.budget_tokens}) must be less than `max_tokens` ({self.max_tokens})",
            )


class CountTokensRequest(ConversationFields, kw_only=True):
    pass


messages_decoder: Final = msgspec.json.Decoder(MessagesRequest)
count_tokens_decoder: Final = msgspec.json.Decoder(CountTokensRequest)
