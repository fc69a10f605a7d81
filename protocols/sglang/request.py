"""Requests to SGLang's ``/generate``, with their checks."""

from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from ..common import limits
from ..common.bounds import items_at_most
from ..common.errors import missing, refused, wrong
from ..common.limits import Limits
from ..openai.sampling import Name, TokenId, TopLogprobs, not_served

IGNORED: Final = (
    *("log_metrics", "no_logs", "background", "modalities", "conversation_id", "session_id", "routing_key"),
    *("custom_labels", "sampling_params.stream_interval"),
)
"""They say how the request is logged and routed."""
REFUSED: Final = (
    *("input_embeds", "image_data", "audio_data", "video_data", "session_params", "custom_logit_processor"),
    *("return_hidden_states", "return_routed_experts", "return_sampling_mask"),
    *("return_flat_raw_top_logprobs", "extra_key", "bootstrap_host", "bootstrap_room", "max_thinking_tokens"),
)
_REFUSED_SAMPLING: Final = ("custom_params",)
DEFAULT_MAX_TOKENS: Final = 128
_FORMS: Final = {"json_schema": "json", "regex": "regex", "ebnf": "grammar", "structural_tag": "structural_tag"}
_EACH: Final = (
    *("sampling_params", "rid", "return_logprob", "logprob_start_len", "top_logprobs_num", "token_ids_logprob"),
    "lora_path",
)
"""May be lists with a value for each prompt."""
_Ids = Annotated[list[TokenId | list[TokenId]], Meta(min_length=1)]
_Rid = Annotated[str, Meta(max_length=limits.MAX_REQUEST_ID)]
_StartLen = Annotated[int, Meta(ge=-1, le=limits.INT64_MAX)]


class SglangSampling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """None means that the field is absent: the model's default applies. Unknown fields are refused, as SGLang does:
    ``max_tokens`` would be one."""

    max_new_tokens: Annotated[int, Meta(ge=0, le=limits.INT64_MAX)] | UnsetType | None = UNSET
    """None: the rest of the context. Without it at most 128, and no more than there is room for."""
    min_new_tokens: int | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    sampling_seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[TokenId] | None = None
    stop_regex: str | list[str] | None = None
    no_stop_trim: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    json_schema: str | dict[str, Any] | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | dict[str, Any] | None = None
    custom_params: Any = None
    stream_interval: Any = None
    """Ignored."""

    @property
    def max_tokens(self) -> int | None:
        return DEFAULT_MAX_TOKENS if self.max_new_tokens is UNSET else self.max_new_tokens

    def check(self) -> None:
        """Raises BadRequest."""
        for name in _REFUSED_SAMPLING:
            if getattr(self, name):
                raise not_served(f"sampling_params.{name}")

    def fields(self) -> dict[str, Any]:
        """The same as fields of completions."""
        forms = {kind: value for name, kind in _FORMS.items() if (value := getattr(self, name)) is not None}
        return {
            "max_tokens": self.max_tokens,
            "min_tokens": self.min_new_tokens,
            "n": self.n,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "frequency_penalty": self.frequency_penalty,
            "presence_penalty": self.presence_penalty,
            "repetition_penalty": self.repetition_penalty,
            "logit_bias": self.logit_bias,
            "seed": self.sampling_seed,
            "stop": self.stop or None,
            "stop_regex": self.stop_regex or None,
            "stop_token_ids": self.stop_token_ids,
            "include_stop_str_in_output": self.no_stop_trim,
            "ignore_eos": self.ignore_eos,
            "skip_special_tokens": self.skip_special_tokens,
            "spaces_between_special_tokens": self.spaces_between_special_tokens,
            "structured_outputs": forms or None,
        }


class SglangRequest(msgspec.Struct, kw_only=True):
    text: str | Annotated[list[str], Meta(min_length=1)] | None = None
    input_ids: _Ids | None = None
    sampling_params: SglangSampling | list[SglangSampling] = SglangSampling()
    """Of all prompts, or of each; so are the fields below that may be lists."""
    stream: bool = False
    """Each event has the whole answer so far."""
    rid: _Rid | list[_Rid] | None = None
    return_logprob: bool | list[bool] = False
    logprob_start_len: _StartLen | list[_StartLen] = -1
    """First token of the prompt with a log-probability; -1: none of it has one."""
    top_logprobs_num: TopLogprobs | list[TopLogprobs] = 0
    token_ids_logprob: list[TokenId | list[TokenId]] | None = None
    """Tokens whose log-probabilities are given at each generated position, of all prompts or of each."""
    return_text_in_logprobs: bool = False
    return_prompt_token_ids: bool = False
    lora_path: Name | list[Name | None] | None = None
    """The name of an adapter."""
    priority: limits.Priority = 0
    cache_salt: str | None = None

    # Decoded so that clients get an error instead of being ignored.
    input_embeds: Any = None
    image_data: Any = None
    audio_data: Any = None
    video_data: Any = None
    session_params: Any = None
    custom_logit_processor: Any = None
    return_hidden_states: Any = None
    return_routed_experts: Any = None
    return_sampling_mask: Any = None
    return_flat_raw_top_logprobs: Any = None
    extra_key: Any = None
    bootstrap_host: Any = None
    bootstrap_room: Any = None
    max_thinking_tokens: Any = None

    @property
    def prompts(self) -> list[str | list[int]] | None:
        """The prompts of a list; None if it is one prompt."""
        given: Any = self.input_ids if self.text is None else self.text
        return given if isinstance(given, list) and not isinstance(given[0], int) else None

    def check(self, limits: Limits) -> None:
        """Checks what the types do not. Raises BadRequest."""
        for name in REFUSED:
            if getattr(self, name):
                raise not_served(name)
        if self.text is None and self.input_ids is None:
            raise missing("text")
        if self.text is not None and self.input_ids is not None:
            raise wrong("input_ids", "excludes `text`; send one of them")
        self._check_lists(limits)
        for one in self.each():
            one.check()

    def _check_lists(self, limits: Limits) -> None:
        prompts, field = self.prompts, "input_ids" if self.text is None else "text"
        for name in _EACH:
            given = self._listed(name)
            if given is None:
                continue
            if prompts is None:
                raise refused(name, f"may be a list only where `{field}` is a list of prompts")
            if len(given) != len(prompts):
                raise refused(name, f"has {len(given)} items for {len(prompts)} prompts; give one for each")
        if isinstance(self.sampling_params, list):
            choices = {params.n or 1 for params in self.sampling_params}
            if len(choices) > 1:
                raise refused("sampling_params", "`n` must be the same for all prompts")
            items_at_most(self.sampling_params, limits.max_sequences // max(choices), field)

    def _listed(self, name: str) -> list[Any] | None:
        """The values of a field that has one for each prompt; None if it has one for all."""
        given = getattr(self, name)
        if not isinstance(given, list) or (
            name == "token_ids_logprob" and not isinstance(next(iter(given), None), list)
        ):
            return None
        return given

    def each(self) -> "list[SglangOne]":
        """What a checked request asks for each of its prompts; one for all of them where that is the same."""
        prompts = self.prompts
        given = {name: values for name in _EACH if (values := self._listed(name)) is not None}
        if prompts is None or not given:
            return [self._one(self.input_ids if self.text is None else self.text, {})]
        return [
            self._one([prompt], {name: values[place] for name, values in given.items()})
            for place, prompt in enumerate(prompts)
        ]

    def _one(self, prompt: Any, own: dict[str, Any]) -> "SglangOne":
        return SglangOne(self, prompt, **{name: own.get(name, getattr(self, name)) for name in _EACH})


class SglangOne(msgspec.Struct, frozen=True):
    """A prompt with what is asked for it, or several with the same."""

    request: SglangRequest
    prompt: Any
    sampling_params: SglangSampling
    rid: str | None
    return_logprob: bool
    logprob_start_len: int
    top_logprobs_num: int
    token_ids_logprob: Any
    """A list of token ids, once it is checked; or None."""
    lora_path: str | None

    def check(self) -> None:
        """Raises BadRequest."""
        self.sampling_params.check()
        probed = self.token_ids_logprob
        if (probed is not None and not isinstance(probed, list)) or not all(isinstance(id, int) for id in probed or ()):
            raise wrong("token_ids_logprob", "must hold token ids, or a list of them for each prompt", "invalid_value")
        if self.probed and self.top_logprobs_num:
            raise refused("token_ids_logprob", "excludes `top_logprobs_num`: send one of them")
        if self.probed and self.scores_prompt:
            raise refused("token_ids_logprob", "is about generated tokens: leave `logprob_start_len` out")

    @property
    def probed(self) -> list[int]:
        return (self.token_ids_logprob or []) if self.return_logprob else []

    @property
    def scores_prompt(self) -> bool:
        return self.return_logprob and self.logprob_start_len >= 0

    def fields(self) -> dict[str, Any]:
        """The same as fields of completions."""
        # the engine scores a prompt that is echoed, and takes no other without an answer
        echoes = self.scores_prompt or self.sampling_params.max_tokens == 0
        return {
            **self.sampling_params.fields(),
            "prompt": self.prompt,
            "model": self.lora_path,
            "stream": self.request.stream,
            "logprobs": self.top_logprobs_num if self.return_logprob else None,
            "logprob_token_ids": self.probed or None,
            "echo": echoes or None,
            "priority": self.request.priority,
            "cache_salt": self.request.cache_salt or None,
        }


NULL: Final = Raw(b"null")


class GenerateFields(msgspec.Struct, frozen=True):
    """The fields that show whose ``/generate`` a request is for."""

    inputs: Raw = NULL
    text: Raw = NULL
    input_ids: Raw = NULL
    input_embeds: Raw = NULL
    sampling_params: Raw = NULL

    @property
    def of_sglang(self) -> bool:
        own = (self.text, self.input_ids, self.input_embeds, self.sampling_params)
        return self.inputs == NULL and any(value != NULL for value in own)


decoder: Final = msgspec.json.Decoder(SglangRequest)
fields_decoder: Final = msgspec.json.Decoder(GenerateFields)
