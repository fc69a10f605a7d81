"""The typed tree of all operator options.

Defaults that cross a process boundary are :mod:`stentor.protocols.ipc.config`'s; the rest are here.
:mod:`..options.option` names each value on the command line, in the environment and in the TOML file.
"""

from pathlib import Path
from typing import Annotated, Final

import msgspec

from stentor.engine.loading.download.hub import (
    DEFAULT_MODEL,
    DEMO_EMBEDDING_MODEL,
    DEMO_SPEECH_MODEL,
    DEMO_TRANSCRIPTION_MODEL,
)
from stentor.protocols.ipc.config import EngineConfig, WorkerConfig
from stentor.protocols.ipc.flag import Flag

from ..common.keys import KeyDigest
from .adapters import AdapterRegistry, AdaptersConfig
from .limits import LimitsConfig, OverloadConfig
from .media import MediaConfig
from .model_registry import ModelRegistry, ModelRole, ServedModel
from .models import (
    EmbeddingConfig,
    ModelConfig,
    SamplingOverrides,
    SpeechConfig,
    TranscriptionConfig,
    is_pattern,
)

ANY_ORIGIN: Final = "*"
DEMO_SAMPLING: Final = SamplingOverrides(temperature=0.2, top_p=0.9)
"""Recommended by the demo chat model's card; its files have no values."""


class ConfigError(Exception):
    """An option is wrong. The message is one line that names the source."""


class SocketMode(int):
    """Permissions of a socket in the file system; shown in octal."""

    def __str__(self) -> str:
        return f"{self:04o}"


class HttpConfig(msgspec.Struct, frozen=True):
    """Address of the server, and shutdown."""

    host: Annotated[str, Flag("address to listen on; 0.0.0.0 for all")] = "127.0.0.1"
    port: Annotated[int, Flag("port to listen on", 1, 65535)] = 8000
    shutdown_timeout: Annotated[float, Flag("time for running requests to finish on shutdown", kind="seconds")] = 30.0


class AccessConfig(msgspec.Struct, frozen=True):
    """Access to the server: keys, origins, hosts, TLS, sockets."""

    api_keys: Annotated[
        tuple[KeyDigest, ...],
        Flag(
            "a key that clients must send; may be repeated. Other users of this machine can read a command "
            "line: prefer STENTOR_API_KEY or --api-key-file",
            kind="keys",
            name="api-key",
        ),
    ] = ()
    api_key_file: Annotated[Path | None, Flag("a file with one key a line, read again on SIGHUP", kind="key_file")] = (
        None
    )
    admin_keys: Annotated[
        tuple[KeyDigest, ...],
        Flag(
            "a key for control routes, which are closed without one; valid on all other routes too; may be repeated",
            kind="keys",
            name="admin-key",
        ),
    ] = ()
    admin_key_file: Annotated[
        Path | None, Flag("a file with one admin key a line, read again on SIGHUP", kind="key_file")
    ] = None
    cors_origins: Annotated[
        tuple[str, ...],
        Flag(
            "an origin whose web pages may use the server, or * for all of them; may be repeated",
            kind="origins",
            name="cors-origin",
        ),
    ] = ()
    """In browsers' spelling, or ``*`` alone."""
    allowed_hosts: Annotated[
        tuple[str, ...],
        Flag(
            "an allowed name with dots in `Host`; may be repeated. Without an API key, or if any name is "
            "given, other names are refused; addresses, localhost and names without a dot are always allowed",
            kind="hosts",
            name="allowed-host",
        ),
    ] = ()
    """In small letters, without ports."""
    tls_cert: Annotated[
        Path | None,
        Flag(
            "a PEM file with the certificate and its intermediates; read again on SIGHUP, as are the next three",
            kind="file",
            aliases=("ssl-certfile",),
        ),
    ] = None
    tls_key: Annotated[
        Path | None,
        Flag(
            "a PEM file with the certificate's private key; by default the certificate's file contains it",
            kind="file",
            aliases=("ssl-keyfile",),
        ),
    ] = None
    tls_ca: Annotated[
        Path | None,
        Flag(
            "a PEM file with authorities; clients must then present a certificate signed by one of them",
            kind="file",
            name="tls-client-ca",
            aliases=("tls-ca", "ssl-ca-certs"),
        ),
    ] = None
    tls_key_password_file: Annotated[
        Path | None, Flag("a file whose first line is the password of the private key", kind="file")
    ] = None
    root_path: Annotated[
        str,
        Flag("prefix of every path, for a server behind a proxy; paths without it are served too", kind="root_path"),
    ] = ""
    """Begins with a slash and ends without."""
    uds: Annotated[
        Path | None, Flag("a Unix domain socket to listen on, in place of --host and --port", kind="path")
    ] = None
    uds_mode: Annotated[SocketMode, Flag("permissions of that socket, in octal", kind="mode")] = SocketMode(0o600)


class ObserveConfig(msgspec.Struct, frozen=True):
    """Logging and tracing of requests."""

    access_log: Annotated[bool, Flag("log a line for every request when it ends, whatever the log level")] = False
    otlp_endpoint: Annotated[
        str | None,
        Flag(
            "a collector of OpenTelemetry traces (OTLP over HTTP); by default none are made",
            kind="collector",
            aliases=("otlp-traces-endpoint",),
        ),
    ] = None


class RealtimeConfig(msgspec.Struct, frozen=True):
    """Limits of realtime sessions."""

    max_seconds: Annotated[
        float, Flag("longest realtime session", kind="some_seconds", name="realtime-max-seconds")
    ] = 3600.0
    max_input_seconds: Annotated[
        float,
        Flag(
            "audio that a realtime session buffers before it is committed or a turn is detected",
            kind="some_seconds",
            name="realtime-max-input-seconds",
        ),
    ] = 600.0
    """80 kB each, as it came and as it is transcribed."""
    max_audio_bytes: Annotated[
        int,
        Flag(
            "callers' audio of all realtime sessions together, a quarter of it reserved for sessions with "
            "little; a session beyond it gets an error and continues",
            kind="size",
            name="realtime-max-audio-bytes",
        ),
    ] = 512 << 20
    audio_ahead: Annotated[
        float,
        Flag(
            "how far ahead of playback the audio of an answer may be sent",
            kind="some_seconds",
            name="realtime-playback-lead",
            aliases=("realtime-audio-ahead",),
        ),
    ] = 5.0
    webrtc_address: Annotated[
        str,
        Flag(
            "this machine's address for WebRTC clients behind NAT, a proxy or in a container; each call then "
            "uses one UDP port on all addresses",
            kind="ip_address",
            name="webrtc-address",
        ),
    ] = ""
    webrtc_ports: Annotated[
        tuple[int, int],
        Flag("UDP ports for WebRTC calls, such as 40000-40099: one for each call and address", kind="port_range"),
    ] = (0, 0)
    """Any, where they are 0."""


class StoreConfig(msgspec.Struct, frozen=True):
    """Storage of responses, files and batches."""

    path: Annotated[
        Path | None,
        Flag(
            "file that stores responses, conversations, files and batches across restarts; by default they "
            "are in memory",
            kind="path",
            name="store",
        ),
    ] = None
    ttl: Annotated[
        float, Flag("lifetime of unused stored objects; 0 is no limit", kind="seconds", name="store-ttl")
    ] = 30 * 86400.0
    max_bytes: Annotated[
        int,
        Flag(
            "size of the store; beyond it, the least recently used objects of keys above their fair share are deleted",
            kind="size",
            name="store-max-bytes",
        ),
    ] = 256 << 20
    max_file_bytes: Annotated[int, Flag("largest uploaded file", kind="size")] = 64 << 20
    max_batches: Annotated[
        int,
        Flag(
            "open batches, at most half of them for one of several keys; further ones get 429",
            0,
            1 << 20,
        ),
    ] = 64
    max_background: Annotated[
        int,
        Flag(
            "running background responses, at most half of them for one of several keys; further ones get 429",
            0,
            1 << 20,
        ),
    ] = 256


class ToolServer(msgspec.Struct, frozen=True):
    """A server of the Model Context Protocol that the operator offers."""

    name: str
    url: str


class McpConfig(msgspec.Struct, frozen=True):
    """Tools that the server runs for its clients, elsewhere."""

    servers: Annotated[
        tuple[ToolServer, ...],
        Flag(
            "an MCP server that requests name by NAME alone; browser and python also provide web search and "
            "the code interpreter; may be repeated",
            kind="tool_servers",
            name="mcp-server",
            aliases=("tool-server",),
        ),
    ] = ()
    urls: Annotated[
        tuple[str, ...],
        Flag(
            "prefix of MCP server URLs that requests may name; https:// alone allows any public host; may be "
            "repeated; by default requests may name none",
            kind="server_urls",
            name="mcp-url",
        ),
    ] = ()
    allow_private: Annotated[
        bool,
        Flag(
            "hosts named by --mcp-url may resolve to loopback and private addresses too; cloud metadata stays closed",
            name="mcp-allow-private",
        ),
    ] = False
    connect_timeout: Annotated[
        float,
        Flag(
            "time limit for connecting to an MCP server and listing its tools",
            kind="some_seconds",
            name="mcp-connect-timeout",
        ),
    ] = 20.0
    call_timeout: Annotated[
        float, Flag("time limit of one tool call", kind="some_seconds", name="mcp-call-timeout")
    ] = 60.0
    max_tools: Annotated[int, Flag("most tools of one server", 1, 1024, name="mcp-max-tools")] = 128
    max_result_chars: Annotated[
        int,
        Flag(
            "characters kept of a tool's result; the rest is cut off and marked",
            1,
            1 << 24,
            name="mcp-max-result-chars",
        ),
    ] = 64 << 10
    max_rounds: Annotated[int, Flag("rounds of tool calls in one response", 1, 1024, name="mcp-max-rounds")] = 16
    max_calls: Annotated[int, Flag("concurrent tool calls of all clients", 1, 1 << 16, name="mcp-max-calls")] = 64


class Config(msgspec.Struct, frozen=True):
    """Everything ``stentor serve`` needs."""

    engine: EngineConfig
    """``engine.worker.model`` is empty until :meth:`located`."""
    model: ModelConfig = ModelConfig()
    adapters: AdaptersConfig = AdaptersConfig()
    transcription: TranscriptionConfig = TranscriptionConfig()
    embedding: EmbeddingConfig = EmbeddingConfig()
    speech: SpeechConfig = SpeechConfig()
    main: ModelRole = "chat"
    """Role of MODEL, once it is on disk: an embedding model may be served alone."""
    demo: Annotated[bool, Flag("serve a demo model of each kind without a configured model")] = False
    http: HttpConfig = HttpConfig()
    access: AccessConfig = AccessConfig()
    limits: LimitsConfig = LimitsConfig()
    overload: OverloadConfig = OverloadConfig()
    observe: ObserveConfig = ObserveConfig()
    media: MediaConfig = MediaConfig()
    realtime: RealtimeConfig = RealtimeConfig()
    store: StoreConfig = StoreConfig()
    mcp: McpConfig = McpConfig()

    def completed(self) -> "Config":
        """A copy with the demo models, if they are requested."""
        if not self.demo:
            return self
        model, transcription, embedding, speech = self.model, self.transcription, self.embedding, self.speech
        if model.name == DEFAULT_MODEL and model.override_generation_config == SamplingOverrides():
            model = msgspec.structs.replace(model, override_generation_config=DEMO_SAMPLING)
        if transcription.model is None:
            transcription = msgspec.structs.replace(transcription, model=DEMO_TRANSCRIPTION_MODEL)
        if embedding.model is None:
            embedding = msgspec.structs.replace(embedding, model=DEMO_EMBEDDING_MODEL)
        if speech.model is None:
            speech = msgspec.structs.replace(speech, model=DEMO_SPEECH_MODEL)
        return msgspec.structs.replace(
            self, model=model, transcription=transcription, embedding=embedding, speech=speech
        )

    def texts_alone(self) -> "Config":
        """A copy without transcription and speech models."""
        return msgspec.structs.replace(self, transcription=TranscriptionConfig(), speech=SpeechConfig(), demo=False)

    def pooling_main(self) -> "Config":
        """A copy for an embedding model as MODEL, with no other of that role and no chat model."""
        model = self.model
        embedding = msgspec.structs.replace(self.embedding, model=model.name, served_as=model.served_as)
        return msgspec.structs.replace(self, embedding=embedding, main="embedding")

    def located(
        self,
        model: Path,
        tokenizer: Path | None = None,
        transcription: Path | None = None,
        speech: Path | None = None,
        embedding: Path | None = None,
        draft: Path | None = None,
        codec: Path | None = None,
    ) -> "Config":
        """A copy with the local paths of the models, and of a separate tokenizer of the chat model; ``draft`` is the
        draft model, and ``codec`` the one of a speech model that is a language model."""
        worker = msgspec.structs.replace(self.engine.worker, model=str(model))
        if draft is not None and worker.speculative is not None:
            speculative = msgspec.structs.replace(worker.speculative, model=str(draft))
            worker = msgspec.structs.replace(worker, speculative=speculative)
        located = msgspec.structs.replace(self, engine=msgspec.structs.replace(self.engine, worker=worker))
        if tokenizer is not None:
            named = msgspec.structs.replace(self.model, tokenizer=str(tokenizer))
            located = msgspec.structs.replace(located, model=named)
        if transcription is not None:
            transcribing = msgspec.structs.replace(self.transcription, path=str(transcription))
            located = msgspec.structs.replace(located, transcription=transcribing)
        if self.main == "embedding":
            embedding = model
        if embedding is not None:
            pooling = msgspec.structs.replace(self.embedding, path=str(embedding))
            located = msgspec.structs.replace(located, embedding=pooling)
        if speech is not None:
            speaking = msgspec.structs.replace(self.speech, path=str(speech), codec_path=str(codec or ""))
            located = msgspec.structs.replace(located, speech=speaking)
        return located

    def registry(self, *, transcribes: bool = False, adapters: AdapterRegistry | None = None) -> ModelRegistry:
        """Served models; ``transcribes``: the chat model transcribes too. Raises ValueError, in a line for the
        operator, if two models have one name."""
        also: tuple[ModelRole, ...] = ("transcription",) if transcribes else ()
        models = [_served("chat", self.model, self.model.name, also)] if self.main == "chat" else []
        if self.transcription.model is not None:
            models.append(_served("transcription", self.transcription, self.transcription.model))
        if self.embedding.model is not None:
            models.append(_served("embedding", self.embedding, self.embedding.model))
        if self.speech.model is not None:
            models.append(_served("speech", self.speech, self.speech.model))
        return ModelRegistry(models, adapters)

    @property
    def adapted_kinds(self) -> dict[str, ModelRole]:
        """Roles of models with adapters, by their names."""
        main = self.model if self.main == "chat" else self.embedding
        asked = self.model.name if self.main == "chat" else self.embedding.model
        kinds: dict[str, ModelRole] = dict.fromkeys((asked or "", *main.served_names), self.main)
        if self.transcription.model is not None:
            names = self.transcription.model, *self.transcription.served_names
            kinds |= dict.fromkeys(names, "transcription")
        return kinds

    @property
    def _beside(self) -> "dict[ModelRole, TranscriptionConfig | EmbeddingConfig | SpeechConfig]":
        """The models that share the main model's device; a speech model with an engine once it is located."""
        beside: dict[ModelRole, TranscriptionConfig | EmbeddingConfig | SpeechConfig] = {}
        if self.transcription.model is not None:
            beside["transcription"] = self.transcription
        if self.embedding.model is not None and self.main != "embedding":
            beside["embedding"] = self.embedding
        if self.speech.codec_path:
            beside["speech"] = self.speech
        return beside

    @property
    def memory_left(self) -> float:
        """The main model's share of the memory that models take."""
        return 1.0 - sum(model.memory_share for model in self._beside.values())

    def engines(self) -> dict[ModelRole, EngineConfig]:
        """Configuration of each engine, once all models are :meth:`located`; the main model's comes first."""
        beside = self._beside
        own = msgspec.structs.replace(
            self.engine.worker,
            language_model_only=self.media.language_model_only,
            prompt_embeds=self.media.prompt_embeds and self.main == "chat",
            mmproj=str(self.model.mmproj or ""),
        )
        if self.main == "embedding":
            said = self.embedding.dtype
            dtype = own.dtype if said == "auto" else said
            own = msgspec.structs.replace(own, is_pooling=True, pooler=self.embedding.pooler or "", dtype=dtype)
        if beside:
            own = msgspec.structs.replace(own, memory_share=self.memory_left, name=self.main)
        places = own.workers + len(beside)
        own = msgspec.structs.replace(own, cpu_places=places)
        engines: dict[ModelRole, EngineConfig] = {self.main: msgspec.structs.replace(self.engine, worker=own)}
        for member, (kind, model) in enumerate(beside.items(), 1):
            worker = WorkerConfig(
                model=model.path,
                is_pooling=isinstance(model, EmbeddingConfig),
                pooler=(model.pooler or "") if isinstance(model, EmbeddingConfig) else "",
                dtype=model.dtype if isinstance(model, EmbeddingConfig) else "auto",
                max_model_len=None if isinstance(model, EmbeddingConfig) else model.max_model_len,
                device=own.device,
                gpu_memory_fraction=own.gpu_memory_fraction,
                memory_share=model.memory_share,
                name=kind,
                language_model_only=own.language_model_only and kind == "embedding",
                lease_member=member,
                lease_weight=model.share,
                cuda_graphs=own.cuda_graphs,
                cuda_graph_prompt_tokens=own.cuda_graph_prompt_tokens,
                cuda_graph_stall=own.cuda_graph_stall,
                batch_invariant=own.batch_invariant,
                threads=own.threads,
                cpu_place=own.workers - 1 + member,
                cpu_places=places,
                seed=own.seed,
                profiler_folder=own.profiler_folder,
                log_level=own.log_level,
                log_format=own.log_format,
                enable_lora=own.enable_lora
                and kind == "transcription"
                and self.adapters.of_base([model.model or "", *model.served_names]),
                max_loras=own.max_loras,
                max_lora_rank=own.max_lora_rank,
                max_cpu_loras=own.max_cpu_loras,
            )
            engines[kind] = msgspec.structs.replace(self.engine, worker=worker)
        return engines


DEFAULTS = Config(engine=EngineConfig(worker=WorkerConfig(model="")))


def _served(
    kind: ModelRole,
    config: ModelConfig | TranscriptionConfig | EmbeddingConfig | SpeechConfig,
    root: str,
    also: tuple[ModelRole, ...] = (),
) -> ServedModel:
    patterns = tuple(name for name in config.served_as if is_pattern(name))
    return ServedModel(kind, config.served_names, root, also, patterns=patterns)
