"""Requests to Text Generation Inference, Text Embeddings Inference and SageMaker, with their checks."""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from ..common import limits
from ..common.errors import wrong
from ..openai.sampling import Name, TokenId, not_served

_REFUSED: Final = ("watermark", "decoder_input_details", "top_n_tokens")
_LEAST_TEMPERATURE: Final = 0.0


class TextGrammar(msgspec.Struct, frozen=True):
    type: Literal["json", "regex", "json_schema"]
    value: Any


class GenerateParameters(msgspec.Struct, frozen=True):
    """None means that the field is absent: the model's default applies."""

    adapter_id: Name | None = None
    best_of: int | None = None
    decoder_input_details: bool | None = None
    details: bool = False
    do_sample: bool | None = None
    """False, with no temperature, answers greedily."""
    frequency_penalty: float | None = None
    grammar: TextGrammar | None = None
    max_new_tokens: Annotated[int, Meta(ge=1, le=limits.INT64_MAX)] | None = None
    repetition_penalty: float | None = None
    return_full_text: bool = False
    seed: Annotated[int, Meta(ge=0, le=limits.INT64_MAX)] | None = None
    stop: list[str] | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_n_tokens: int | None = None
    top_p: float | None = None
    truncate: Annotated[int, Meta(ge=1, le=limits.INT64_MAX)] | None = None
    typical_p: float | None = None
    watermark: bool | None = None

    def check(self) -> None:
        """Raises BadRequest."""
        for name in _REFUSED:
            if getattr(self, name):
                raise not_served(f"parameters.{name}")
        if self.best_of not in (None, 1):
            raise not_served("parameters.best_of", "`parameters.best_of` other than 1")
        if self.typical_p not in (None, 1):
            raise not_served("parameters.typical_p", "`parameters.typical_p` other than 1")

    def fields(self) -> dict[str, Any]:
        """The same as fields of completions."""
        greedy = self.do_sample is False and self.temperature is None
        return {
            "model": self.adapter_id,
            "max_tokens": self.max_new_tokens,
            "temperature": _LEAST_TEMPERATURE if greedy else self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "repetition_penalty": self.repetition_penalty,
            "frequency_penalty": self.frequency_penalty,
            "seed": self.seed,
            "stop": self.stop or None,
            "truncate_prompt_tokens": self.truncate,
            "structured_outputs": self._form(),
        }

    def _form(self) -> dict[str, Any] | None:
        if self.grammar is None:
            return None
        value = self.grammar.value
        if self.grammar.type == "json_schema" and isinstance(value, dict):
            value = value.get("schema", value)
        return {"regex" if self.grammar.type == "regex" else "json": value}


class GenerateRequest(msgspec.Struct, kw_only=True):
    inputs: str
    parameters: GenerateParameters = GenerateParameters()
    stream: bool = False


class TruncationFields(msgspec.Struct, kw_only=True):
    truncate: bool | None = None
    truncation_direction: Literal["Left", "Right", "left", "right"] = "Right"

    def fields(self) -> dict[str, Any]:
        """The same as fields of embeddings."""
        return {
            "truncate_prompt_tokens": -1 if self.truncate else None,
            "truncation_side": self.truncation_direction.lower(),
        }


class TokenEmbedRequest(TruncationFields, kw_only=True):
    """Vectors of tokens, or weights of them."""

    inputs: str | Annotated[list[str | TokenId | list[TokenId]], Meta(min_length=1)]
    prompt_name: Name | None = None

    def fields(self) -> dict[str, Any]:
        return {**super().fields(), "input": self.inputs, "prompt_name": self.prompt_name}


class EmbedInputsRequest(TokenEmbedRequest, kw_only=True):
    normalize: bool = True
    dimensions: Annotated[int, Meta(ge=1, le=limits.INT32_MAX)] | None = None

    def fields(self) -> dict[str, Any]:
        return {**super().fields(), "normalize": self.normalize, "dimensions": self.dimensions}


class PredictRequest(TruncationFields, kw_only=True):
    inputs: str | Annotated[list[str | list[str]], Meta(min_length=1)]
    """A text; a list of one or two strings: a text or a pair; or a list of such lists."""
    raw_scores: bool = False
    """Without the model's activation."""

    @property
    def several(self) -> bool:
        return isinstance(self.inputs, list) and isinstance(self.inputs[0], list)

    @property
    def texts(self) -> list[list[str]]:
        """One entry for each prediction, of a text or a pair, all of the same length. Raises BadRequest."""
        given: list[Any] = [self.inputs] if not self.several else list(self.inputs)
        found = [[each] if isinstance(each, str) else each for each in given]
        for index, each in enumerate(found):
            where = f"inputs[{index}]" if self.several else "inputs"
            if len(each) not in (1, 2) or not all(isinstance(text, str) for text in each):
                raise wrong(where, "must be a text, or a list of one or two texts", "invalid_value")
            if isinstance(given[index], str) and self.several:
                raise wrong(where, "must be a list, as the first is", "invalid_value")
            if len(each) != len(found[0]):
                raise wrong(where, "must be a pair where the first is one, and a text otherwise", "invalid_value")
        return found


class SimilarityInputs(msgspec.Struct, frozen=True):
    source_sentence: str
    sentences: Annotated[list[str], Meta(min_length=1)]


class SimilarityParameters(TruncationFields, kw_only=True):
    prompt_name: Name | None = None


class SimilarityRequest(msgspec.Struct, kw_only=True):
    inputs: SimilarityInputs
    parameters: SimilarityParameters | None = None

    def fields(self) -> dict[str, Any]:
        """The same as fields of embeddings, of the source and then the sentences."""
        asked = self.parameters or SimilarityParameters()
        given = [self.inputs.source_sentence, *self.inputs.sentences]
        return {**asked.fields(), "input": given, "prompt_name": asked.prompt_name}


class InvocationRequest(msgspec.Struct, kw_only=True):
    """A request of the kind that its fields show, which has more of them."""

    messages: Any = None
    prompt: Any = None
    input: Any = None
    inputs: Any = None
    queries: Any = None
    query: Any = None

    @property
    def kind(self) -> str:
        """The field that shows it. Raises BadRequest."""
        for name in ("messages", "prompt", "input", "inputs", "query", "queries"):
            if getattr(self, name) is not None:
                return name
        raise wrong(
            "messages",
            "is required, or in its place `prompt`, `input`, `inputs`, or `query` or `queries` with `documents`",
            "missing_required_parameter",
        )


generate_decoder: Final = msgspec.json.Decoder(GenerateRequest)
embed_decoder: Final = msgspec.json.Decoder(EmbedInputsRequest)
token_embed_decoder: Final = msgspec.json.Decoder(TokenEmbedRequest)
predict_decoder: Final = msgspec.json.Decoder(PredictRequest)
similarity_decoder: Final = msgspec.json.Decoder(SimilarityRequest)
invocation_decoder: Final = msgspec.json.Decoder(InvocationRequest)
