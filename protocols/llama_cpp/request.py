"""Requests to llama.cpp's server with their checks."""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from ..common import limits
from ..common.errors import missing, refused, wrong
from ..openai.logit_bias import BiasPairs
from ..openai.sampling import METHODS_PARTLY, Name, TokenId, TopLogprobs, UnservedMethods, not_served, refuse

IGNORED: Final = (
    *("cache_prompt", "id_slot", "n_keep", "n_discard", "n_cache_reuse", "min_keep", "samplers", "repeat_last_n"),
    *("timings_per_token", "return_progress", "t_max_prompt_ms", "speculative.n_max"),
)
"""They say how the answer is computed; prompts are always cached, and a penalty counts the whole sequence."""
REFUSED: Final = ("lora", "image_data")
PARTLY: Final = {
    **METHODS_PARTLY,
    "n_indent": "only 0",
    **dict.fromkeys(("n", "n_cmpl"), "only 1"),
}
_RANDOM: Final = 2**32 - 1
"""Seed that means a random one, as negative seeds do."""


class ExtraFile(msgspec.Struct, frozen=True):
    """Text of another file of the project."""

    text: str
    filename: str = "filename"


class TextPart(msgspec.Struct, frozen=True):
    type: Literal["text"]
    text: str


class PromptObject(msgspec.Struct, frozen=True):
    """A prompt as an object, which may have media."""

    prompt_string: str | None = None
    content: list[TextPart] | None = None
    """The same in parts."""
    multimodal_data: Any = None


class LlamaFields(UnservedMethods, kw_only=True):
    """None means that the field is absent: the model's default applies."""

    model: Name | None = None
    stream: bool = False
    n_predict: int = -1
    """Less than 0: as many as there is room for; 0: none, the prompt is only computed and cached."""
    max_tokens: int | None = None
    """Another name of ``n_predict``, which comes first."""
    n: int | None = None
    n_cmpl: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: Annotated[int, Meta(ge=limits.INT64_MIN, le=limits.INT64_MAX)] | None = None
    stop: list[str] | None = None
    ignore_eos: bool = False
    logit_bias: BiasPairs | dict[str, float | bool] | None = None
    """Pairs of a token and a bias, or biases by token, where false is never. A text stands for each of its tokens."""
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None
    n_probs: TopLogprobs | None = None
    return_tokens: bool = False
    response_fields: list[str] | None = None
    """Paths with slashes; the answer then has only these fields, by their paths."""
    post_sampling_probs: bool = False
    """Probabilities are of the distribution that is sampled from, and written as such, not as logarithms."""
    n_indent: float | None = None
    lora: Any = None
    image_data: Any = None

    def __post_init__(self) -> None:
        if self.n_predict < 0 and self.max_tokens is not None:
            self.n_predict = self.max_tokens

    def check(self) -> None:
        """Raises BadRequest."""
        self.check_methods()
        if self.n_indent:
            raise not_served("n_indent", "`n_indent` other than 0")
        for name in ("n", "n_cmpl"):
            if getattr(self, name) not in (None, 1):
                raise not_served(name, f"`{name}` other than 1")
        refuse(self, REFUSED)

    def fields(self) -> dict[str, Any]:
        """The same as fields of completions. Raises BadRequest."""
        biases = [[*pair] for pair in self.logit_bias.items()] if isinstance(self.logit_bias, dict) else self.logit_bias
        return {
            "model": self.model,
            "stream": self.stream,
            "max_tokens": None if self.n_predict < 0 else max(1, self.n_predict),
            "temperature": None if self.temperature is None else max(0.0, self.temperature),
            "top_k": self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "repetition_penalty": self.repeat_penalty,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "seed": self.seed if self.seed is not None and 0 <= self.seed != _RANDOM else None,
            "stop": self.stop or None,
            "ignore_eos": self.ignore_eos or None,
            "logit_bias": biases,
            "logprobs": self.n_probs or None,
            "post_sampling_probs": self.post_sampling_probs,
            "structured_outputs": self._form(),
        }

    def _form(self) -> dict[str, Any] | None:
        if self.grammar and self.json_schema is not None:
            raise refused("grammar", "excludes `json_schema`; send one of them")
        if self.json_schema is not None:
            return {"json": self.json_schema}
        return {"grammar": self.grammar} if self.grammar else None


Piece = TokenId | str
"""A prompt may be texts and tokens in turn."""


Prompts = str | PromptObject | list[TokenId | str | PromptObject | list[Piece]]
"""A text, also in an object; tokens, or tokens and texts in turn; or a list of several prompts of these kinds."""


def pieces_of(given: Prompts, field: str) -> list[list[Piece]]:
    """The pieces of each prompt of ``field``. Raises BadRequest for tokens among prompts, and for media."""
    if isinstance(given, str):
        return [[given]]
    if isinstance(given, PromptObject):
        return [[_text_of(given, field)]]
    alone = [piece for piece in given if not isinstance(piece, list | PromptObject)]
    if len(alone) == len(given) and any(isinstance(piece, int) for piece in alone):
        return [alone]
    if not given:
        return [[]]
    many: list[list[Piece]] = []
    for index, prompt in enumerate(given):
        if isinstance(prompt, int):
            raise wrong(f"{field}[{index}]", "must be a text or a list: it stands among prompts", "invalid_value")
        if isinstance(prompt, PromptObject):
            prompt = _text_of(prompt, f"{field}[{index}]")
        many.append([prompt] if isinstance(prompt, str) else prompt)
    return many


class LlamaCompletionRequest(LlamaFields, kw_only=True):
    prompt: Prompts

    @property
    def prompts(self) -> list[list[Piece]]:
        """The pieces of each. Raises as :func:`pieces_of`."""
        return pieces_of(self.prompt, "prompt")


def _text_of(prompt: PromptObject, where: str) -> str:
    """Raises BadRequest if it has media, or no text."""
    if prompt.multimodal_data:
        raise not_served(f"{where}.multimodal_data")
    if prompt.prompt_string is not None:
        return prompt.prompt_string
    if not prompt.content:
        raise missing(f"{where}.prompt_string")
    return "".join(part.text for part in prompt.content)


class LlamaInfillRequest(LlamaFields, kw_only=True):
    input_prefix: str = ""
    input_suffix: str = ""
    input_extra: list[ExtraFile] = msgspec.field(default_factory=list)
    """Other files of the project, placed before the prefix."""
    prompt: str = ""
    """Text behind the prefix: the beginning of the middle."""


class LlamaEmbeddingRequest(msgspec.Struct, kw_only=True):
    model: Name | None = None
    content: Prompts | None = None
    input: Prompts | None = None
    """Another name of ``content``."""
    embd_normalize: int = 2
    """2: to a length of 1; -1: not at all."""

    @property
    def field(self) -> str:
        return "input" if self.content is None else "content"

    @property
    def prompts(self) -> list[list[Piece]]:
        """The pieces of each text. Raises as :func:`pieces_of`."""
        given = self.input if self.content is None else self.content
        assert given is not None, "it was checked"
        return pieces_of(given, self.field)

    def check(self) -> None:
        """Raises BadRequest."""
        if self.content is None and self.input is None:
            raise wrong("content", "is required", "missing_required_parameter")
        if not self.prompts[0]:
            raise wrong(self.field, "must hold a text or tokens", "invalid_value")
        if self.embd_normalize not in (2, -1):
            raise not_served("embd_normalize", "`embd_normalize` other than 2 and -1")


completion_decoder: Final = msgspec.json.Decoder(LlamaCompletionRequest)
infill_decoder: Final = msgspec.json.Decoder(LlamaInfillRequest)
embedding_decoder: Final = msgspec.json.Decoder(LlamaEmbeddingRequest)
