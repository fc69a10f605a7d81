"""``/tokenize`` and ``/detokenize``, in vLLM's shape and, for a ``content``, in that of llama.cpp's server."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ..common.bounds import prompt_chars_at_most
from ..common.errors import BadRequest, wrong
from ..common.limits import Limits
from .chat import ChatRequest, Messages, check_template
from .messages import check_messages
from .sampling import Name, TokenId


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """A text, or messages, which are rendered as chat renders them."""

    model: Name | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    media_io_kwargs: dict[str, Any] | None = None
    tools: list[Any] | None = None

    # llama.cpp's
    content: str | None = None
    """A text in place of ``prompt``, by default without the special tokens that begin and end texts."""
    add_special: bool = False
    with_pieces: bool = False

    @property
    def text(self) -> str | None:
        return self.prompt if self.content is None else self.content

    @property
    def field(self) -> str:
        """The field of what is tokenized."""
        return next((name for name in ("messages", "content") if getattr(self, name) is not None), "prompt")

    @property
    def adds_special_tokens(self) -> bool:
        """Of a text."""
        return self.add_special_tokens is not False if self.content is None else self.add_special

    def chat(self) -> ChatRequest:
        """The conversation, as chat completions ask for its answer."""
        assert self.messages is not None
        both = set(self.__struct_fields__) & set(ChatRequest.__struct_fields__)
        return ChatRequest(**{name: getattr(self, name) for name in both})

    def check(self, limits: Limits) -> None:
        """Raises BadRequest."""
        if [self.prompt, self.messages, self.content].count(None) != 2:
            raise BadRequest("Exactly one of `prompt`, `messages` and `content` is required.", "prompt")
        if self.content is None and self.with_pieces:
            raise wrong("with_pieces", "needs `content`; with `prompt` and `messages` use `return_token_strs`")
        prompt_chars_at_most([self.text], limits.max_prompt_chars, self.field)
        check_template(self, [] if self.messages is None else [self.messages], limits)
        if self.messages is None and self.tools:
            raise wrong("tools", "needs `messages`; a text has none")
        if self.messages is not None:
            check_messages(self.messages)


class TokenPiece(msgspec.Struct, frozen=True, gc=False):
    """llama.cpp's."""

    id: int
    piece: str | list[int]
    """Its bytes, where they are no text by themselves."""


class TokenizeResponse(msgspec.Struct, frozen=True):
    count: int
    max_model_len: int
    tokens: Sequence[int | TokenPiece]
    token_strs: list[str] | None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    model: Name | None = None
    tokens: list[TokenId]


class DetokenizeResponse(msgspec.Struct, frozen=True):
    prompt: str
    content: str
    """The same text, by llama.cpp's name."""


tokenize_decoder: Final = msgspec.json.Decoder(TokenizeRequest)
detokenize_decoder: Final = msgspec.json.Decoder(DetokenizeRequest)
