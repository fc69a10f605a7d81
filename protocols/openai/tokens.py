"""``/tokenize`` and ``/detokenize``, in vLLM's shape and, for a ``content``, in that of llama.cpp's server."""

from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from ..common.bounds import items_at_most, prompt_chars_at_most
from ..common.errors import BadRequest, refused, wrong
from ..common.limits import Limits
from .chat import ChatRequest, Messages, ReasoningEffort, check_template
from .messages import check_messages
from .sampling import Name, TokenId


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """A text, or messages, which are rendered as chat renders them."""

    model: Name | None = None
    prompt: str | Annotated[list[str], Meta(min_length=1)] | None = None
    """Several (SGLang): tokens and count of the answer are lists, too."""
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
    tool_choice: str | dict[str, Any] | None = None
    reasoning_effort: ReasoningEffort | None = None
    """These two have an effect on some templates, as in chat."""

    # llama.cpp's
    content: str | list[TokenId | str] | None = None
    """A text in place of ``prompt``, by default without the special tokens that begin and end texts; or texts and
    tokens in turn."""
    add_special: bool = False
    with_pieces: bool = False
    parse_special: bool = True
    """False is refused for a text with special tokens, whose text would have to stay text."""

    @property
    def text(self) -> str | None:
        """Of one text."""
        given = self.prompt if self.content is None else self.content
        return given if isinstance(given, str) else None

    @property
    def pieces(self) -> list[int | str] | None:
        """Of texts and tokens in turn."""
        return self.content if isinstance(self.content, list) else None

    @property
    def texts(self) -> list[str] | None:
        """Of several."""
        return self.prompt if isinstance(self.prompt, list) else None

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
        if self.texts is not None:
            items_at_most(self.texts, limits.max_prompts, "prompt")
            if self.return_token_strs:
                raise wrong("return_token_strs", "needs a `prompt` that is one text")
        if self.pieces is not None:
            items_at_most(self.pieces, limits.max_prompt_chars, "content")
        texts = [piece for piece in self.pieces or () if isinstance(piece, str)]
        prompt_chars_at_most(self.texts or texts or [self.text], limits.max_prompt_chars, self.field)
        check_template(self, [] if self.messages is None else [self.messages], limits)
        for name in ("tools", "reasoning_effort"):
            if self.messages is None and getattr(self, name):
                raise wrong(name, "needs `messages`; a text has none")
        if self.messages is not None:
            check_messages(self.messages)


class TokenPiece(msgspec.Struct, frozen=True, gc=False):
    """llama.cpp's."""

    id: int
    piece: str | list[int]
    """Its bytes, where they are no text by themselves."""


class TokenizeResponse(msgspec.Struct, frozen=True):
    count: int | list[int]
    max_model_len: int
    tokens: Sequence[int | TokenPiece | list[int]]
    token_strs: list[str] | None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    model: Name | None = None
    tokens: list[TokenId | list[TokenId]]
    """Several (SGLang): the answer has as many texts."""
    skip_special_tokens: bool = False

    @property
    def each(self) -> list[list[int]]:
        """The tokens of each text. Raises BadRequest for a list of mixed kinds."""
        if not self.several:
            return [[id for id in self.tokens if isinstance(id, int)]]
        many = []
        for index, item in enumerate(self.tokens):
            if not isinstance(item, list):
                raise refused(f"tokens[{index}]", "a list holds either token ids, or lists of them")
            many.append(item)
        return many

    @property
    def several(self) -> bool:
        return any(isinstance(item, list) for item in self.tokens)


class DetokenizeResponse(msgspec.Struct, frozen=True):
    prompt: str | list[str]
    content: str | list[str]
    """The same text, by llama.cpp's name."""
    text: str | list[str]
    """And by SGLang's."""


tokenize_decoder: Final = msgspec.json.Decoder(TokenizeRequest)
detokenize_decoder: Final = msgspec.json.Decoder(DetokenizeRequest)
