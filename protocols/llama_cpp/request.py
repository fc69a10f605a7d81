"""Requests to llama.cpp's server with their checks."""

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from ..common import limits
from ..common.errors import refused, wrong
from ..openai.sampling import Name, TokenId, TopLogprobs, not_served

IGNORED: Final = (
    *("cache_prompt", "id_slot", "n_keep", "n_discard", "n_cache_reuse", "min_keep", "samplers", "repeat_last_n"),
    *("timings_per_token", "return_progress", "post_sampling_probs", "t_max_prompt_ms", "speculative.n_max"),
)
"""They say how the answer is computed; prompts are always cached, and a penalty counts the whole sequence."""
_OFF: Final[dict[str, float]] = {
    "typical_p": 1,
    "mirostat": 0,
    "dynatemp_range": 0,
    "dry_multiplier": 0,
    "xtc_probability": 0,
    "n_indent": 0,
}
"""Unsupported sampling methods, and the value that disables each."""
PARTLY: Final = {name: f"only {value:g}" for name, value in _OFF.items()}
_RANDOM: Final = 2**32 - 1
"""Seed that means a random one, as negative seeds do."""
_LEAST_TOP_P: Final = 1e-6
_NEVER: Final = -100.0


class ExtraFile(msgspec.Struct, frozen=True):
    """Text of another file of the project."""

    text: str
    filename: str = "filename"


class LlamaFields(msgspec.Struct, kw_only=True):
    """None means that the field is absent: the model's default applies."""

    model: Name | None = None
    stream: bool = False
    n_predict: int = -1
    """Less than 0: as many as there is room for."""
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
    logit_bias: list[list[float | bool]] | dict[str, float] | None = None
    """Pairs of a token and a bias, where false is never; or biases by token."""
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None
    n_probs: TopLogprobs | None = None
    return_tokens: bool = False
    response_fields: list[str] | None = None
    """Paths with slashes; the answer then has only these fields, by their paths."""
    typical_p: float | None = None
    mirostat: float | None = None
    dynatemp_range: float | None = None
    dry_multiplier: float | None = None
    xtc_probability: float | None = None
    n_indent: float | None = None
    lora: Any = None

    def check(self) -> None:
        """Raises BadRequest."""
        for name, off in _OFF.items():
            if getattr(self, name) not in (None, off):
                raise not_served(name, f"`{name}` other than {off:g}")
        if self.lora:
            raise not_served("lora")
        if self.n_predict == 0:
            raise wrong("n_predict", "must be 1 or more, or -1 for as many as there is room for", "invalid_value")

    def fields(self) -> dict[str, Any]:
        """The same as fields of completions. Raises BadRequest."""
        return {
            "model": self.model,
            "stream": self.stream,
            "max_tokens": self.n_predict if self.n_predict > 0 else None,
            "temperature": None if self.temperature is None else max(0.0, self.temperature),
            "top_k": self.top_k,
            "top_p": None if self.top_p is None else max(self.top_p, _LEAST_TOP_P),
            "min_p": self.min_p,
            "repetition_penalty": self.repeat_penalty,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "seed": self.seed if self.seed is not None and 0 <= self.seed != _RANDOM else None,
            "stop": self.stop or None,
            "ignore_eos": self.ignore_eos or None,
            "logit_bias": self._biases(),
            "logprobs": self.n_probs or None,
            "structured_outputs": self._form(),
        }

    def _biases(self) -> dict[str, float] | None:
        given = self.logit_bias
        if not isinstance(given, list):
            return given
        biases = {}
        for place, pair in enumerate(given):
            if len(pair) != 2 or isinstance(pair[0], bool) or not pair[0].is_integer() or pair[1] is True:
                raise wrong(f"logit_bias[{place}]", "must be a token id and a number or false", "invalid_value")
            biases[str(int(pair[0]))] = _NEVER if pair[1] is False else float(pair[1])
        return biases

    def _form(self) -> dict[str, Any] | None:
        if self.grammar and self.json_schema is not None:
            raise refused("grammar", "excludes `json_schema`; send one of them")
        if self.json_schema is not None:
            return {"json": self.json_schema}
        return {"grammar": self.grammar} if self.grammar else None


class LlamaCompletionRequest(LlamaFields, kw_only=True):
    prompt: str | list[TokenId]


class LlamaInfillRequest(LlamaFields, kw_only=True):
    input_prefix: str = ""
    input_suffix: str = ""
    input_extra: list[ExtraFile] = []
    """Other files of the project, placed before the prefix."""
    prompt: str = ""
    """Text behind the prefix: the beginning of the middle."""


completion_decoder: Final = msgspec.json.Decoder(LlamaCompletionRequest)
infill_decoder: Final = msgspec.json.Decoder(LlamaInfillRequest)
