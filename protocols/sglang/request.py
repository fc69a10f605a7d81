"""Requests to SGLang's ``/generate``, with their checks."""

from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from ..common import limits
from ..common.errors import missing, wrong
from ..openai.sampling import Name, TokenId, TopLogprobs, not_served

IGNORED: Final = (
    *("log_metrics", "no_logs", "background", "modalities", "conversation_id", "session_id", "routing_key"),
    *("custom_labels", "sampling_params.stream_interval"),
)
"""They say how the request is logged and routed."""
REFUSED: Final = (
    *("input_embeds", "image_data", "audio_data", "video_data", "session_params", "custom_logit_processor"),
    *("token_ids_logprob", "return_hidden_states", "return_routed_experts", "return_sampling_mask"),
    *("return_flat_raw_top_logprobs", "extra_key", "bootstrap_host", "bootstrap_room", "max_thinking_tokens"),
)
_REFUSED_SAMPLING: Final = ("stop_regex", "custom_params")
DEFAULT_MAX_TOKENS: Final = 128
_FORMS: Final = {"json_schema": "json", "regex": "regex", "ebnf": "grammar", "structural_tag": "structural_tag"}
_Ids = Annotated[list[TokenId | list[TokenId]], Meta(min_length=1)]


class SglangSampling(msgspec.Struct, frozen=True, kw_only=True):
    """None means that the field is absent: the model's default applies."""

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
    stop_regex: Any = None
    no_stop_trim: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    json_schema: str | dict[str, Any] | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | dict[str, Any] | None = None
    custom_params: Any = None

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
    sampling_params: SglangSampling = SglangSampling()
    """Of all prompts."""
    stream: bool = False
    """Each event has the whole answer so far."""
    rid: Annotated[str, Meta(max_length=limits.MAX_REQUEST_ID)] | None = None
    return_logprob: bool = False
    logprob_start_len: Annotated[int, Meta(ge=-1, le=limits.INT64_MAX)] = -1
    """First token of the prompt with a log-probability; -1: none of it has one."""
    top_logprobs_num: TopLogprobs = 0
    return_text_in_logprobs: bool = False
    return_prompt_token_ids: bool = False
    lora_path: Name | None = None
    """The name of an adapter."""
    priority: Annotated[int, Meta(ge=limits.INT32_MIN, le=limits.INT32_MAX)] = 0
    cache_salt: str | None = None

    # Decoded so that clients get an error instead of being ignored.
    input_embeds: Any = None
    image_data: Any = None
    audio_data: Any = None
    video_data: Any = None
    session_params: Any = None
    custom_logit_processor: Any = None
    token_ids_logprob: Any = None
    return_hidden_states: Any = None
    return_routed_experts: Any = None
    return_sampling_mask: Any = None
    return_flat_raw_top_logprobs: Any = None
    extra_key: Any = None
    bootstrap_host: Any = None
    bootstrap_room: Any = None
    max_thinking_tokens: Any = None

    @property
    def scores_prompt(self) -> bool:
        return self.return_logprob and self.logprob_start_len >= 0

    @property
    def several(self) -> bool:
        """Whether the answer is a list: of several prompts, or several choices of one."""
        given = self.input_ids if self.text is None else self.text
        listed = isinstance(given, list) and not isinstance(given[0], int)
        return listed or (self.sampling_params.n or 1) > 1

    def check(self) -> None:
        """Checks what the types do not. Raises BadRequest."""
        for name in REFUSED:
            if getattr(self, name):
                raise not_served(name)
        self.sampling_params.check()
        if self.text is None and self.input_ids is None:
            raise missing("text")
        if self.text is not None and self.input_ids is not None:
            raise wrong("input_ids", "excludes `text`; send one of them")

    def fields(self) -> dict[str, Any]:
        """The same as fields of completions."""
        # the engine scores a prompt that is echoed, and takes no other without an answer
        echoes = self.scores_prompt or self.sampling_params.max_tokens == 0
        return {
            **self.sampling_params.fields(),
            "prompt": self.input_ids if self.text is None else self.text,
            "model": self.lora_path,
            "stream": self.stream,
            "logprobs": self.top_logprobs_num if self.return_logprob else None,
            "echo": echoes or None,
            "priority": self.priority,
            "cache_salt": self.cache_salt or None,
        }


_NULL: Final = Raw(b"null")


class GenerateFields(msgspec.Struct, frozen=True):
    """The fields that show whose ``/generate`` a request is for."""

    inputs: Raw = _NULL
    text: Raw = _NULL
    input_ids: Raw = _NULL
    input_embeds: Raw = _NULL
    sampling_params: Raw = _NULL

    @property
    def of_sglang(self) -> bool:
        own = (self.text, self.input_ids, self.input_embeds, self.sampling_params)
        return self.inputs == _NULL and any(value != _NULL for value in own)


decoder: Final = msgspec.json.Decoder(SglangRequest)
fields_decoder: Final = msgspec.json.Decoder(GenerateFields)
