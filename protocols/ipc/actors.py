"""Messages between the actors, grouped by receiver.

Each mailbox has one tagged union and one typed decoder (see :mod:`.codec`). ``rid`` identifies a request: an integer
that the client process counts up and never reuses. ``(rid, index)`` identifies a sequence.
"""

from typing import Final, Literal

import msgspec

from .adapters import AdapterLoaded, AdapterRef, AdapterWarm, DropAdapter, LoadAdapter, ReadsAdapters, WarmAdapter
from .audio import AlignmentOutput, PromptProbe
from .cache_groups import FULL, NO_HOST, CacheGroup, HostSizes
from .config import EngineConfig, StepLimits, Weights, WorkerConfig
from .histograms import Histogram
from .inputs import ArenaRef, InputSpan, Streamed, StreamShape
from .pooling import Pooled, Pooling
from .sampling import SamplingParams
from .steps import ExpertShape, Masks, StepPart, StepPlan, StepResult, TokenLogprobs

FinishReason = Literal["stop", "length", "abort", "error"]
Fault = Literal["", "grammar", "allowed_token_ids", "bad_words", "adapter", "media", "engine", "shutdown"]
"""Part of a request that ended it with an error: a grammar that became too large, token restrictions that allow no
token, an adapter that does not fit the model, or a medium that its encoder cannot take. "engine": the engine was given
up; another, or the next server, may serve it. "shutdown": the same, since the server ends. "" if the request is not at
fault."""


# ---- to the engine, from its client in the server process


class StartEngine(msgspec.Struct, frozen=True, array_like=True, tag="start"):
    config: EngineConfig


class Vocabulary(msgspec.Struct, frozen=True, array_like=True, tag="vocabulary"):
    """The model's tokens as bytes, for grammars, in pieces. All pieces must arrive before a Submit with a grammar."""

    start: int
    """Id of the first token of this piece; pieces come in order, without gaps."""
    total: int
    """Tokens of all pieces together."""
    tokens: list[bytes]
    """Bytes that each token adds to a text; empty for unused ids."""
    special: list[int]
    """Which tokens of this piece are special: no text matches them, only a grammar that names them by id."""
    eos: list[int]
    """Tokens of this piece that end a complete grammar."""


class Thinking(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The thinking budget of a sequence, and the markers of its thinking."""

    budget: int
    """Tokens sampled after thinking began; then it is ended. 0 ends it as it begins."""
    begin: list[int]
    """The tokens that begin it; none: only ``opened`` does."""
    end: list[int]
    """The tokens that end it, forced one after the other when the budget is spent."""
    opened: bool
    """Whether the prompt has begun it."""


class Resumed(msgspec.Struct, frozen=True, array_like=True):
    """Tokens that a request had received when its engine was lost; the new engine continues from there."""

    outputs: list[list[int]]
    """Tokens delivered so far, a list for each sequence; where they are many they come ahead, as
    :class:`ResumedPart`."""
    ended: list[int]
    """Sequences that have had their terminal message, or are not wanted any more."""
    prompt_done: bool
    """Whether :class:`PromptDone` has been delivered; it is not sent again."""


class Submit(msgspec.Struct, frozen=True, array_like=True, tag="submit"):
    """One request of ``len(seeds)`` sequences over one prompt."""

    rid: int
    prompt: list[int]
    params: SamplingParams
    seeds: list[int]
    """Unsigned 64 bits, one for each sequence, drawn at admission if the client gave none."""
    priority: int
    """Lower runs earlier; aged by waiting time."""
    salt: str
    """Prefix-cache salt; requests share blocks only under the same salt."""
    arrival: float
    """``time.monotonic()`` of the client process; comparable between processes of one machine."""
    resumed: Resumed | None = None
    name: str = ""
    """The request id that the HTTP client gets. For logs only, never a key."""
    grammar: str = ""
    """Grammar of each sequence in llguidance's dialect of Lark, or as the JSON of its own grammars; "" is none."""
    thinking: Thinking | None = None
    inputs: list[InputSpan] = []
    """Media of the prompt, in their order in it."""
    probe: PromptProbe | None = None
    """For transcription models."""
    streamed: Streamed | None = None
    """For a model that transcribes streamed audio; such a request has one sequence."""
    pooling: Pooling | None = None
    """The output to make of the prompt, for pooling models. Such a request has one sequence and samples no tokens."""
    adapter: AdapterRef | None = None
    """The request's LoRA adapter."""


class ResumedPart(msgspec.Struct, frozen=True, array_like=True, tag="resumed", gc=False):
    """A part of what one sequence had received, sent before the :class:`Submit` of its request, in order."""

    rid: int
    index: int
    tokens: list[int]


class Append(msgspec.Struct, frozen=True, array_like=True, tag="append", gc=False):
    """More audio of a request, after all earlier audio."""

    rid: int
    pieces: list[ArenaRef]
    """The audio, in order (:attr:`.inputs.Streamed.pieces`); may be none."""
    last: bool
    """Whether this is the last piece. The request ends when all audio has been transcribed."""


class MediaWritten(msgspec.Struct, frozen=True, array_like=True, tag="written", gc=False):
    """Answer to :class:`MediaWanted`: the request's media are in the arena, or cannot be written."""

    rid: int
    error: str = ""
    """Why not, which ends the request."""


class Abort(msgspec.Struct, frozen=True, array_like=True, tag="abort", gc=False):
    """The client no longer wants this sequence, or with ``index`` -1 the whole request."""

    rid: int
    index: int


class Shutdown(msgspec.Struct, frozen=True, array_like=True, tag="shutdown", gc=False):
    """End now; to the engine from its client, to a worker from its engine."""


class Ping(msgspec.Struct, frozen=True, array_like=True, tag="ping", gc=False):
    """Answered with :class:`Stats`: the engine still turns."""


ControlOperation = Literal[
    "pause",
    "resume",
    "sleep",
    "discard",
    "wake",
    "reload",
    "reset_prefix_cache",
    "reset_encoder_cache",
    "recompute",
    "start_profile",
    "stop_profile",
]
"""``pause``: no step begins until ``resume``; requests are accepted and wait. ``sleep``: the worker ends, and no other
starts until ``wake``; ``discard``: the same, and prepared weights are dropped. ``reload``: the worker ends, and the
next one loads other weights; if it cannot, another loads the former ones. ``reset_prefix_cache``: prompts find nothing
computed before. ``reset_encoder_cache``: media that no request holds are encoded anew. ``recompute``: rows release
their blocks and compute them again. ``start_profile``, ``stop_profile``: the worker traces its steps, and writes the
trace."""


class Control(msgspec.Struct, frozen=True, array_like=True, tag="control", gc=False):
    """An operator's command to the engine. It takes effect between two steps, after all earlier messages."""

    number: int
    operation: ControlOperation
    weights: Weights | None = None
    """For ``reload``."""


EngineInbox = (
    StartEngine
    | Vocabulary
    | ResumedPart
    | Submit
    | Append
    | MediaWritten
    | Abort
    | Ping
    | Control
    | WarmAdapter
    | Shutdown
)


# ---- to the client, from its engine


class Progress(msgspec.Struct, frozen=True, array_like=True, tag="progress", gc=False):
    """A start-up phase moved; also passed on by the engine for its worker."""

    phase: str
    done: int
    total: int


class MemoryLine(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One line of the start-up summary: where bytes go."""

    what: str
    bytes: int
    note: str


class EngineReady(msgspec.Struct, frozen=True, array_like=True, tag="ready", gc=False):
    """The model has completed a real step."""

    num_blocks: int
    block_size: int
    max_model_len: int
    memory: list[MemoryLine]
    notes: list[str]
    """Things the operator should know: fallbacks taken, weights expanded."""
    groups: tuple[CacheGroup, ...] = (FULL,)
    """Of :class:`WorkerReady`, which describes these and the next two."""
    stream: StreamShape | None = None
    experts: ExpertShape | None = None
    max_num_seqs: int = 0
    """Most sequences in a step; 0: unknown."""


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed", gc=False):
    """The sender cannot go on; one clear line for the operator."""

    message: str
    final: bool = True
    """Whether a new process in its place would fail the same way."""
    of_peer: bool = False
    """Whether the worker failed because another of its group was lost, which has the cause."""
    graphs: bool = False
    """Whether a worker cannot go on because it failed to capture a CUDA graph: the next one is to capture none."""


class Stalled(msgspec.Struct, frozen=True, array_like=True, tag="stalled", gc=False):
    """No step can run until the next :class:`EngineReady`; requests are kept, and new ones wait."""

    message: str


class PromptPart(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A part of a prompt's results, before its :class:`PromptDone`. It replaces earlier parts from ``start`` on."""

    rid: int
    start: int
    """The prompt token of the first of ``logprobs``, or the place of ``pooled`` in all that is sent of it."""
    logprobs: list[TokenLogprobs]
    pooled: bytes = b""
    """A part of :attr:`.pooling.Pooled.data`, followed by that of ``ids``."""
    computed: int = 0
    """Positions computed so far of a prompt that grows with streamed audio, whose parts come with each step; 0
    otherwise."""


class PromptDone(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The prompt of a request has been prefilled; sent once, before or with its first token."""

    rid: int
    cached_tokens: int
    queue_seconds: float
    prefill_seconds: float
    logprobs: list[TokenLogprobs | None] | None
    """One for each prompt token (the first is None), if requested. From the engine they arrive in parts, and this is
    empty."""
    alignment: AlignmentOutput | None = None
    pooled: Pooled | None = None


class SequenceExperts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Experts of positions [start, start + count), if requested. After an engine crash they are sent again from the
    first position."""

    rid: int
    index: int
    """The sequence; -1: positions of the prompt, which all sequences share."""
    start: int
    count: int
    data: bytes
    """[count, layers, top_k], see :class:`.steps.RowExperts`."""


class SequenceTokens(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Tokens that one sequence gained, in order; an EOS or stop token is included."""

    rid: int
    index: int
    tokens: list[int]
    logprobs: list[TokenLogprobs] | None


class Finished(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The one terminal message of a sequence. ``stop_token`` names a matched ``stop_token_ids`` entry."""

    rid: int
    index: int
    reason: FinishReason
    stop_token: int | None
    message: str | None
    """Why, where the reason is ``error``."""
    fault: Fault = ""
    field: str = ""
    """The field at fault, where ``fault`` is ``media``."""


class TokensBatch(msgspec.Struct, frozen=True, array_like=True, tag="tokens", gc=False):
    """Results of one step for all requests. They apply in the order ``parts``, ``experts``, ``prompts``, ``tokens``,
    ``finished``."""

    prompts: list[PromptDone]
    tokens: list[SequenceTokens]
    finished: list[Finished]
    parts: list[PromptPart] = []
    experts: list[SequenceExperts] = []


EngineEvent = PromptPart | PromptDone | SequenceTokens | Finished
"""What a request's reader gets. A part only of the results of streamed audio, which are read as they come."""

Resource = Literal[
    "row", "blocks", "encoder", "step", "adapter_slot", "grammar", "input", "media", "transfer", "adapter"
]
"""What a sequence can lack before it runs: a row on the worker, blocks of the KV cache, encoded media or room for them,
room in the next step, a slot for its adapter; or what arrives for its request alone: a compiled grammar, the first
streamed audio, media being written, a transfer, its adapter in the worker's memory."""


class Stats(msgspec.Struct, frozen=True, array_like=True, tag="stats", gc=False):
    """Gauges of now and counters since start."""

    running: int
    waiting: int
    kv_usage: float
    """Share of KV blocks in use, in [0, 1]."""
    preemptions: int
    """Because KV blocks ran out."""
    prefix_queries: int
    """Prompt tokens looked up in the prefix cache when a sequence was first admitted."""
    prefix_hits: int
    """Prompt tokens found there, on the device."""
    steps: int
    free_blocks: int
    worker_restarts: int = 0
    recovered: int = 0
    """Requests that went on after the worker, or in the client's figures the engine, under them was lost, each time
    counted."""
    watchdog_kills: int = 0
    """Workers killed because a step, or a phase of start-up, took too long."""
    poisoned: int = 0
    """Requests ended because they crashed the worker alone."""
    waiting_for: dict[Resource, int] = {}
    """Sequences by the resource that they, or an earlier sequence, lack. Others wait for tokens of their own request:
    its prompt, or one in flight."""
    running_adapters: list[int] = []
    """Numbers of the adapters that rows have."""
    waiting_adapters: list[int] = []
    """Numbers of adapters that requests use and no row has."""
    num_drafts: int = 0
    """Times that a row was verified with draft tokens."""
    num_draft_tokens: int = 0
    accepted_by_position: list[int] = []
    """Accepted drafts by their position behind the row's own token."""
    prompt_computed: int = 0
    """Prompt tokens that were found nowhere when a sequence was first admitted."""
    host_queries: int = 0
    """Prompt tokens looked up in the host tier of the prefix cache, because the device did not have them."""
    host_hits: int = 0
    """Prompt tokens found there."""
    host_usage: float = 0.0
    """Fraction of the host tier in use, in [0, 1]."""
    host_stored_bytes: int = 0
    """Bytes copied to the host tier."""
    host_loaded_bytes: int = 0
    """Bytes copied back."""
    step_tokens: Histogram = Histogram()
    """Steps by their tokens, of prompts, outputs and drafts."""
    request_preemptions: Histogram = Histogram()
    """Ended requests by the number of times that rows of theirs were preempted because KV blocks ran out."""

    @property
    def num_accepted_tokens(self) -> int:
        return sum(self.accepted_by_position)


NO_STATS: Final = Stats(0, 0, 0.0, 0, 0, 0, 0, 0)
"""Those of an engine without a worker."""
GAUGES: Final = frozenset(
    {
        *("running", "waiting", "waiting_for", "running_adapters", "waiting_adapters"),
        *("kv_usage", "free_blocks", "host_usage"),
    }
)
"""Fields of :class:`Stats` that describe the present. All others are counters: they only grow, and are added up across
engines."""


class ControlDone(msgspec.Struct, frozen=True, array_like=True, tag="done", gc=False):
    """A :class:`Control` has taken effect. For a pause, results of the steps in flight have been sent; for ``sleep``,
    the worker is dead; for ``wake`` and ``reload``, the next one is ready."""

    number: int
    error: str = ""
    """Why it failed. For ``reload``, and for the ``wake`` after it: the former weights are in use."""


class Released(msgspec.Struct, frozen=True, array_like=True, tag="released", gc=False):
    """No step will read the media of these requests in the arena. Each ended request is named once."""

    rids: list[int]


class MediaWanted(msgspec.Struct, frozen=True, array_like=True, tag="wanted", gc=False):
    """Media of these requests must be encoded and are not written yet; answered with :class:`MediaWritten` for each."""

    rids: list[int]


ClientInbox = (
    Progress | EngineReady | Stalled | Failed | TokensBatch | Stats | ControlDone | Released | MediaWanted | AdapterWarm
)


# ---- to a worker, from its engine


class StartWorker(msgspec.Struct, frozen=True, array_like=True, tag="start"):
    config: WorkerConfig


class Profile(msgspec.Struct, frozen=True, array_like=True, tag="profile", gc=False):
    """Begin a trace of all steps, or end it and write it to :attr:`.config.WorkerConfig.profiler_folder`; answered with
    :class:`Profiled`. Sent while no step is in flight."""

    on: bool


WorkerInbox = StartWorker | StepPlan | Masks | LoadAdapter | DropAdapter | Profile | Shutdown


# ---- to the engine, from a worker


class WorkerReady(msgspec.Struct, frozen=True, array_like=True, tag="ready", gc=False):
    num_blocks: int
    """Blocks in the pool that all paged groups share, all of one size. Without paged groups they only limit
    concurrency."""
    max_model_len: int
    memory: list[MemoryLine]
    notes: list[str]
    limits: StepLimits
    groups: tuple[CacheGroup, ...] = (FULL,)
    """All cache groups of the model. None is paged if tokens see all others, or if the model only has states."""
    stream: StreamShape | None = None
    """For models that transcribe streamed audio."""
    experts: ExpertShape | None = None
    """Shape of the experts of each position, with ``WorkerConfig.return_routed_experts``."""
    host: HostSizes = NO_HOST
    pools: bool = False
    """Whether requests get results of their prompt in place of tokens, as with ``WorkerConfig.is_pooling``."""


class Profiled(msgspec.Struct, frozen=True, array_like=True, tag="profiled", gc=False):
    """The answer to :class:`Profile`."""

    error: str = ""


WorkerAnswer = StepResult | AdapterLoaded | ReadsAdapters | Profiled
EngineWorkerInbox = Progress | WorkerReady | Failed | StepPart | WorkerAnswer
