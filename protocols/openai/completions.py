"""``/v1/completions``: the request with its checks, the response and its parts."""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ..common.bounds import at_most, items_at_most, prompt_chars_at_most, rules_at_most, total_chars_at_most
from ..common.errors import missing, refused, wrong
from ..common.limits import Limits
from .beams import check_beams
from .sampling import SamplingFields, TokenId, TopLogprobs, check_logprob_token_ids, check_sampling, refuse
from .structured import wanted_answer
from .usage import PromptLogprobs, RequestMetrics, Timings, Usage

Prompt = str | list[int]

REFUSED: Final = ("thinking_token_budget",)


class CompletionRequest(SamplingFields, kw_only=True):
    prompt: str | Annotated[list[str | TokenId | list[TokenId]], Meta(min_length=1)] | None = None
    echo: bool | None = None
    logprobs: TopLogprobs | None = None
    add_special_tokens: bool = True
    return_token_offsets: bool | None = None
    """Of ``…/render``; without effect on an answer, as in vLLM."""

    decoder_prompt: str | list[TokenId] | None = None
    """Of encoder-decoders, whose encoder gets ``prompt``: what their decoder continues, behind the tokens that begin
    every output, such as the target language of a translation."""
    suffix: str | None = None
    """Text behind the text to generate; empty means none."""
    prompt_embeds: str | Annotated[list[str], Meta(min_length=1)] | None = None
    """Prompts as embeddings of their tokens: base64 of a tensor [tokens, hidden], one for each. They come before those
    of ``prompt``."""
    thinking_token_budget: int | None = None

    @property
    def wanted_logprobs(self) -> int | None:
        return self.alternatives(self.logprobs)

    @property
    def fills_context(self) -> bool:
        """Whether the answer may be as long as there is room for."""
        return self.max_tokens is None and self.n_predict is not None

    @property
    def prompts(self) -> list[Prompt]:
        """One entry per written prompt: a text or its token ids. Raises BadRequest for a list of mixed kinds."""
        prompt = self.prompt
        if not prompt and self.embedded:
            return []
        if prompt is None:
            raise missing("prompt")
        if isinstance(prompt, str):
            return [prompt]
        kind = type(prompt[0])
        tokens: list[int] = []
        many: list[Prompt] = []
        for index, item in enumerate(prompt):
            if type(item) is not kind:
                raise refused(
                    f"prompt[{index}]", "a prompt list holds either strings, or token ids, or lists of token ids"
                )
            if isinstance(item, int):
                tokens.append(item)
            else:
                many.append(item)
        return [tokens] if tokens else many

    @property
    def embedded(self) -> list[str]:
        """One entry per prompt that is brought as embeddings."""
        given = self.prompt_embeds
        return [] if given is None else [given] if isinstance(given, str) else given

    def check(self, limits: Limits) -> None:
        """Checks what the types do not. Raises BadRequest."""
        refuse(self, REFUSED)
        at_most(self.logprobs, limits.max_logprobs, "logprobs")
        check_sampling(self, self.max_tokens, self.max_tokens_field, limits)
        if self.max_tokens == 0 and not self.echo:
            raise wrong(self.max_tokens_field, "may be 0 only with `echo`")
        check_logprob_token_ids(self, scored=self.logprobs is not None)
        if self.max_tokens == 0 and self.logprob_token_ids is not None:
            raise wrong("logprob_token_ids", "needs `max_tokens` of 1 or more: it is about generated tokens")
        check_beams(self, limits)
        prompts = self.prompts
        items_at_most(prompts, limits.max_prompts, "prompt")
        count = len(prompts) + len(self.embedded)
        items_at_most(self.embedded, limits.max_prompts - len(prompts), "prompt_embeds")
        sequences = self.beam_width[0] if self.use_beam_search else self.choices
        if count * sequences > limits.max_sequences:
            raise refused(
                "prompt",
                f"{count} prompts with n={sequences} are more than the {limits.max_sequences} sequences "
                "that one request may ask for",
            )
        wanted_answer(self, limits)
        self._check_suffix(prompts, limits)
        if self.embedded:
            self._check_embedded()
        if self.decoder_prompt is not None:
            prompt_chars_at_most([self.decoder_prompt], limits.max_prompt_chars)
        prompt_chars_at_most(prompts, limits.max_prompt_chars)
        rules_at_most(self.logit_bias, len(prompts), "logit_bias")
        rules_at_most(self.allowed_token_ids, len(prompts), "allowed_token_ids")

    def _check_embedded(self) -> None:
        """Raises BadRequest for what takes a prompt's tokens."""
        for name, asked in (
            ("echo", self.echo),
            ("prompt_logprobs", self.prompt_logprobs is not None),
            ("suffix", self.suffix),
            ("use_beam_search", self.use_beam_search),
        ):
            if asked:
                raise wrong(name, "excludes `prompt_embeds`: it takes the tokens of a prompt", "unsupported")

    def _check_suffix(self, prompts: list[Prompt], limits: Limits) -> None:
        if not self.suffix:
            return
        total_chars_at_most(len(self.suffix) * len(prompts), limits.max_prompt_chars, "suffix")
        if not all(isinstance(prompt, str) for prompt in prompts):
            raise wrong("suffix", "needs prompts that are texts: token ids already hold what the model is to see")
        if self.echo:
            raise wrong("suffix", "excludes `echo`")


# ---- responses


class CompletionLogprobs(msgspec.Struct, frozen=True, gc=False):
    """Parallel lists, one entry per token; the first prompt token under echo has no log-probability."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, frozen=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]
    stop_reason: int | str | None
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    routed_experts: str | UnsetType = UNSET


class CompletionResponse(msgspec.Struct, frozen=True):
    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    object: Literal["text_completion"] = "text_completion"
    metrics: RequestMetrics | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET
    system_fingerprint: str | UnsetType = UNSET


decoder: Final = msgspec.json.Decoder(CompletionRequest)
