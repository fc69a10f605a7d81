"""The fields that chat and text completions share, and their checks."""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from ..common import limits
from ..common.bounds import at_most, items_at_most, texts_at_most
from ..common.errors import BadRequest, wrong
from ..common.limits import Limits
from ..ipc.sampling import MAX_LOGPROB_TOKEN_IDS, MAX_LOGPROBS
from .logit_bias import Biases, BiasPairs, check_biases

Probability = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
LengthPenalty = Annotated[float, Meta(ge=-10, le=10)]
TokenId = Annotated[int, Meta(ge=0, le=limits.INT32_MAX)]
StopString = Annotated[str, Meta(min_length=1)]
TopLogprobs = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]
Name = Annotated[str, Meta(max_length=limits.MAX_NAME_LENGTH)]

MAX_PATTERN_SIZE: Final = 256
"""Tokens of a pattern that may be looked for; each is compared at each token."""
MAX_REPEATED_TOKENS: Final = 4096
"""Tokens of the longest pattern, repeated."""
MAX_NGRAM: Final = 256
MAX_NGRAM_WINDOW: Final = 1024
"""Tokens that are looked through at each token for what may not be repeated, and compared."""

IGNORED_FIELDS: Final = (
    "user",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prompt_cache_options",
    "prediction",
    "verbosity",
    "stream_interval",
    *("routed_dp_rank", "data_parallel_rank", "custom_labels"),
)
"""Accepted and without effect: they ask for nothing that would change the answer here."""


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = False
    continuous_usage_stats: bool = False
    """Usage in every chunk, if ``include_usage``; without effect otherwise, as in vLLM."""
    include_obfuscation: bool = False


class SpeculativeFields(msgspec.Struct, forbid_unknown_fields=True):
    """How a request is speculated for."""

    num_tokens: Annotated[int, Meta(ge=0, le=limits.INT64_MAX)]
    """Draft tokens in a step, at most; 0: none. More than the server's number change nothing."""


class RepetitionDetection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Ends a choice whose last tokens are a pattern, repeated ``min_count`` times. vLLM's names."""

    max_pattern_size: Annotated[int, Meta(ge=0, le=MAX_PATTERN_SIZE)] = 0
    """Tokens; 0: nothing is detected."""
    min_pattern_size: Annotated[int, Meta(ge=0, le=MAX_PATTERN_SIZE)] = 0
    """0 is 1."""
    min_count: Annotated[int, Meta(ge=0, le=MAX_REPEATED_TOKENS)] = 0


class VllmXargs(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Fields of vLLM's extensions: others, of extensions that are not here, are refused.

    With ``ngram_size``, no sequence of so many tokens comes twice in the last ``window_size`` of the output, as
    DeepSeek-OCR is told to write.
    """

    ngram_size: Annotated[int, Meta(ge=2, le=MAX_NGRAM)] | None = None
    window_size: Annotated[int, Meta(ge=1, le=MAX_NGRAM_WINDOW)] = 100
    whitelist_token_ids: list[TokenId] | None = None
    """They may end a sequence that came before: cells of tables, for example."""
    session_id: Name | None = None


class UnservedMethods(msgspec.Struct, kw_only=True):
    """llama.cpp's methods of sampling, and a bound in time, that are not served: only the values that disable them
    are taken."""

    typical_p: float | None = None
    mirostat: float | None = None
    dynatemp_range: float | None = None
    dry_multiplier: float | None = None
    xtc_probability: float | None = None
    top_n_sigma: float | None = None
    adaptive_target: float | None = None
    t_max_predict_ms: float | None = None
    grammar_lazy: bool | None = None
    """Whether a grammar holds only from a trigger on."""

    def check_methods(self) -> None:
        """Raises BadRequest."""
        for name, off in METHODS_OFF.items():
            if getattr(self, name) not in (None, *off):
                raise not_served(name, f"`{name}` other than {off[0]:g}")
        refuse(self, ("grammar_lazy",))


METHODS_OFF: Final[dict[str, tuple[float, ...]]] = {
    "typical_p": (1,),
    "mirostat": (0,),
    "dynatemp_range": (0,),
    "dry_multiplier": (0,),
    "xtc_probability": (0,),
    "top_n_sigma": (-1, 0),
    "adaptive_target": (-1,),
    "t_max_predict_ms": (0, -1),
}
"""The values that disable each method."""
METHODS_PARTLY: Final = {
    **{name: f"only {off[0]:g}" for name, off in METHODS_OFF.items()},
    "grammar_lazy": "only `false`",
}


class SamplingFields(UnservedMethods, kw_only=True):
    """None means that the field is absent: the model's default applies."""

    model: Name | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1)] | None = None
    best_of: Annotated[int, Meta(ge=1)] | None = None
    """Beams of a search, of which the best ``n`` are returned; otherwise the same as ``n``."""
    max_tokens: Annotated[int, Meta(ge=0, le=limits.INT64_MAX)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Probability | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Biases | BiasPairs | None = None
    seed: Annotated[int, Meta(ge=limits.INT64_MIN, le=limits.INT64_MAX)] | None = None
    stop: StopString | list[StopString] | None = None

    # vLLM's
    use_beam_search: bool | None = None
    length_penalty: LengthPenalty | None = None
    """Of a beam search; without effect otherwise."""
    repetition_detection: RepetitionDetection | None = None
    vllm_xargs: VllmXargs | None = None
    top_k: Annotated[int, Meta(ge=-1, le=limits.INT32_MAX)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=limits.INT64_MAX)] = 0
    ignore_eos: bool = False
    stop_token_ids: list[TokenId] | None = None
    include_stop_str_in_output: bool = False
    allowed_token_ids: list[TokenId] | None = None
    bad_words: list[Annotated[str, Meta(min_length=1)]] | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=limits.INT64_MAX)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    """The side that ``truncate_prompt_tokens`` cuts; None: the left."""
    prompt_logprobs: TopLogprobs | None = None
    logprob_token_ids: Annotated[list[TokenId], Meta(min_length=1, max_length=MAX_LOGPROB_TOKEN_IDS)] | None = None
    """Tokens in place of the likeliest alternatives at each generated token, where log-probabilities are wanted."""
    return_token_ids: bool | None = None
    return_routed_experts: bool | None = None
    """None: the operator's option decides, as in vLLM; the name is SGLang's."""
    routed_experts_prompt_start: Annotated[int, Meta(ge=0, le=limits.INT64_MAX)] = 0
    """Prompt tokens that the client has the experts of."""
    return_tokens_as_token_ids: bool | None = None
    speculative: SpeculativeFields | None = None
    """For servers with speculation; an extension of this server."""
    priority: limits.Priority = 0
    cache_salt: Annotated[str, Meta(min_length=1, max_length=limits.MAX_NAME_LENGTH)] | None = None
    request_id: Annotated[str, Meta(max_length=limits.MAX_REQUEST_ID)] | None = None
    session_id: Annotated[str, Meta(max_length=limits.MAX_NAME_LENGTH)] | None = None
    """Requests of one session go to one engine; it precedes the header ``X-Session-ID``."""

    # The form of the answer: see :mod:`.structured`.
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    json_schema: Any = None
    regex: Any = None
    ebnf: Any = None
    grammar: Any = None

    # SGLang's and llama.cpp's
    rid: Annotated[str, Meta(max_length=limits.MAX_REQUEST_ID)] | None = None
    """Another name of ``request_id``."""
    stop_regex: StopString | list[StopString] | None = None
    """Patterns: the text ends with the first match of one, which is part of it."""
    no_stop_trim: bool = False
    """Another name of ``include_stop_str_in_output``."""
    repeat_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    """Another name of ``repetition_penalty``."""
    n_predict: Annotated[int, Meta(ge=limits.INT64_MIN, le=limits.INT64_MAX)] | None = None
    """Another name of ``max_tokens``; less than 0: as many as there is room for."""
    n_cmpl: Annotated[int, Meta(ge=1)] | None = None
    """Another name of ``n``."""
    timings_per_token: bool | None = None
    """Whether a whole answer of one choice, or each chunk of it, has ``timings``."""

    # Decoded so that clients get an error instead of being ignored.
    watermarking: Any = None
    kv_transfer_params: Any = None
    ec_transfer_params: Any = None
    return_weight_versions: Any = None
    mm_payload: Any = None
    return_mm_kwargs: Any = None
    custom_logit_processor: Any = None
    return_hidden_states: Any = None
    lora_path: Any = None
    lora: Any = None
    session_params: Any = None
    custom_params: Any = None
    extra_key: Any = None
    return_cached_tokens_details: Any = None
    routed_experts_start_len: Any = None
    bootstrap_host: Any = None
    bootstrap_room: Any = None
    post_sampling_probs: bool | None = None
    """Whether log-probabilities are of the distribution that is sampled from; None: as ``--logprobs-mode`` says."""

    def __post_init__(self) -> None:
        self.include_stop_str_in_output = self.include_stop_str_in_output or self.no_stop_trim
        if self.repetition_penalty is None:
            self.repetition_penalty = self.repeat_penalty
        if self.max_tokens is None and self.n_predict is not None and self.n_predict >= 0:
            self.max_tokens = self.n_predict
        if self.n is None:
            self.n = self.n_cmpl
        if self.request_id is None:
            self.request_id = self.rid
        if self.session_id is None and self.vllm_xargs is not None:
            self.session_id = self.vllm_xargs.session_id

    def alternatives(self, top: int | None) -> int | None:
        """Alternatives at each generated token where the client asks for the ``top`` likeliest; None: no
        log-probabilities."""
        if top is None or self.logprob_token_ids is None:
            return top
        return len(set(self.logprob_token_ids))

    @property
    def max_tokens_field(self) -> str:
        """The field that bounds the answer."""
        return "max_tokens" if self.max_tokens is None or self.max_tokens != self.n_predict else "n_predict"

    @property
    def choices(self) -> int:
        return 1 if self.n is None else self.n

    @property
    def beam_width(self) -> tuple[int, str]:
        """Beams of a search, and the field that says so."""
        return (self.choices, "n") if self.best_of is None else (self.best_of, "best_of")

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return _each(self.stop)

    @property
    def stop_patterns(self) -> tuple[str, ...]:
        return _each(self.stop_regex)


def _each(given: str | list[str] | None) -> tuple[str, ...]:
    if given is None:
        return ()
    return (given,) if isinstance(given, str) else tuple(given)


REFUSED_EVERYWHERE: Final = (
    "watermarking",
    "kv_transfer_params",
    "ec_transfer_params",
    "return_weight_versions",
    "mm_payload",
    "return_mm_kwargs",
    "custom_logit_processor",
    "return_hidden_states",
    *("lora_path", "lora"),
    *("session_params", "custom_params", "extra_key", "return_cached_tokens_details", "routed_experts_start_len"),
    *("bootstrap_host", "bootstrap_room"),
)


def refuse(request: msgspec.Struct, fields: tuple[str, ...]) -> None:
    """Raises BadRequest for the first of ``fields`` that the client gave a value."""
    for field in fields:
        if getattr(request, field):
            raise not_served(field)


def not_served(param: str, what: str | None = None) -> BadRequest:
    return BadRequest(f"{what or f'`{param}`'} is not supported by this server; leave it out.", param, "unsupported")


def check_sampling(request: SamplingFields, max_tokens: int | None, max_tokens_field: str, limits: Limits) -> None:
    """The limits, and the rules that span fields. Raises BadRequest."""
    at_most(request.n, limits.max_choices, "n")
    at_most(request.best_of, limits.max_choices, "best_of")
    texts_at_most(request.stop, limits.max_stop_strings, limits.max_stop_length, "stop")
    texts_at_most(request.stop_regex, limits.max_stop_strings, limits.max_stop_length, "stop_regex")
    items_at_most(request.stop_token_ids, limits.max_stop_tokens, "stop_token_ids")
    texts_at_most(request.bad_words, limits.max_bad_words, limits.max_bad_word_length, "bad_words")
    check_biases(request.logit_bias, limits)
    items_at_most(request.allowed_token_ids, limits.max_allowed_tokens, "allowed_token_ids")
    at_most(request.prompt_logprobs, limits.max_logprobs, "prompt_logprobs")
    if request.vllm_xargs is not None:
        exempt = request.vllm_xargs.whitelist_token_ids
        items_at_most(exempt, limits.max_allowed_tokens, "vllm_xargs.whitelist_token_ids")
    refuse(request, REFUSED_EVERYWHERE)
    request.check_methods()
    if request.stream_options is not None and not request.stream:
        raise wrong("stream_options", "is only allowed when `stream` is true")
    if request.stream and request.prompt_logprobs is not None:
        raise wrong("prompt_logprobs", "is not available when `stream` is true")
    if request.stream and request.return_routed_experts:
        raise wrong("return_routed_experts", "is not available when `stream` is true")
    if max_tokens is not None and request.min_tokens > max_tokens:
        raise wrong("min_tokens", f"({request.min_tokens}) must not exceed `{max_tokens_field}` ({max_tokens})")
    _check_repetition(request.repetition_detection)
    if request.allowed_token_ids is not None and not request.allowed_token_ids:
        raise wrong("allowed_token_ids", "must name at least one token")


def check_logprob_token_ids(request: SamplingFields, *, scored: bool) -> None:
    """``scored``: whether the client asks for log-probabilities. Raises BadRequest."""
    if request.logprob_token_ids is not None and not scored:
        raise wrong("logprob_token_ids", "needs `logprobs`")


def _check_repetition(detection: RepetitionDetection | None) -> None:
    if detection is None or (detection.max_pattern_size == 0 and detection.min_pattern_size == 0):
        return
    field = "repetition_detection"
    if detection.min_pattern_size > detection.max_pattern_size:
        raise wrong(f"{field}.min_pattern_size", f"must be at most `max_pattern_size` ({detection.max_pattern_size})")
    if detection.min_count < 2:
        raise wrong(f"{field}.min_count", "must be at least 2")
    if detection.max_pattern_size * detection.min_count > MAX_REPEATED_TOKENS:
        raise wrong(f"{field}.min_count", f"times `max_pattern_size` must be at most {MAX_REPEATED_TOKENS} tokens")


def check_token_ids(tokens: list[int] | None, vocab_size: int, param: str) -> tuple[int, ...]:
    """Raises BadRequest for the first id outside the vocabulary."""
    if not tokens:
        return ()
    for position, token in enumerate(tokens):
        if token >= vocab_size:
            raise BadRequest(
                f"`{param}[{position}]`: token id {token} is outside the vocabulary (0 to {vocab_size - 1}).", param
            )
    return tuple(tokens)
