"""``/tokenize`` and ``/detokenize``, in vLLM's shape."""

from typing import Any, Final

import msgspec

from ..common.bounds import prompt_chars_at_most
from ..common.errors import BadRequest, wrong
from ..common.limits import Limits
from .chat import ChatRequest, Messages, check_template
from .messages import check_messages
from .sampling import Name, TokenId


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """Either a text or messages, which are rendered as chat renders them."""

    model: Name | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    media_io_kwargs: dict[str, Any] | None = None
    tools: list[Any] | None = None

    def chat(self) -> ChatRequest:
        """The conversation, as chat completions ask for its answer."""
        assert self.messages is not None
        both = set(self.__struct_fields__) & set(ChatRequest.__struct_fields__)
        chat = ChatRequest(**{name: getattr(self, name) for name in both})
        chat.add_special_tokens = bool(self.add_special_tokens)
        return chat

    def check(self, limits: Limits) -> None:
        """Raises BadRequest."""
        if (self.prompt is None) == (self.messages is None):
            raise BadRequest("Exactly one of `prompt` and `messages` is required.", "prompt")
        prompt_chars_at_most([self.prompt], limits.max_prompt_chars)
        check_template(self, [] if self.messages is None else [self.messages], limits)
        if self.messages is None and self.tools:
            raise wrong("tools", "needs `messages`; a text has none")
        if self.messages is not None:
            check_messages(self.messages)


class TokenizeResponse(msgspec.Struct, frozen=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    model: Name | None = None
    tokens: list[TokenId]


class DetokenizeResponse(msgspec.Struct, frozen=True):
    prompt: str


tokenize_decoder: Final = msgspec.json.Decoder(TokenizeRequest)
detokenize_decoder: Final = msgspec.json.Decoder(DetokenizeRequest)
