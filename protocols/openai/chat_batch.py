"""``/v1/chat/completions/batch``: several conversations in one request (vLLM)."""

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from ..common.bounds import items_at_most
from ..common.errors import wrong
from ..common.limits import Limits
from .chat import ChatFields, ChatRequest, Messages, check_template
from .messages import check_messages

ALONE: Final = (
    *("stream", "use_beam_search", "tools", "functions", "store"),
    *("prompt_logprobs", "return_prompt_text", "return_token_offsets", "return_routed_experts"),
)
"""Fields of one conversation's request, whose answer has a place for them or is streamed."""


class ChatBatchRequest(ChatFields, kw_only=True):
    messages: Annotated[list[Messages], Meta(min_length=1)]
    """A conversation each."""

    def check(self, limits: Limits) -> None:
        """Checks what concerns all conversations together. Raises BadRequest."""
        for field in ALONE:
            value = getattr(self, field)
            if value or (field == "prompt_logprobs" and value is not None):
                raise wrong(
                    field, "is not served for several conversations; send them to `/v1/chat/completions`", "unsupported"
                )
        for field in ("n", "best_of"):
            if getattr(self, field) not in (None, 1):
                raise wrong(field, "must be 1 with several conversations, each of which gets one choice")
        items_at_most(self.messages, limits.max_prompts, "messages")
        check_template(self, self.messages, limits)
        for index, conversation in enumerate(self.messages):
            check_messages(conversation, f"messages[{index}]")

    def requests(self) -> list[ChatRequest]:
        """A request for each conversation."""
        shared: dict[str, Any] = {field: getattr(self, field) for field in ChatFields.__struct_fields__}
        return [ChatRequest(**shared, messages=conversation) for conversation in self.messages]


decoder: Final = msgspec.json.Decoder(ChatBatchRequest)
