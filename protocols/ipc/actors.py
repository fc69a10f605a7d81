"""Messages between the actors, grouped by who receives them.

Each mailbox has one tagged union and one typed decoder (see :mod:`.codec`). Requests are named by
``rid``, an integer that the client process counts up and never reuses; a sequence of a request is
``(rid, index)``.
"""

from typing import Literal

import msgspec

from .adapters import AdapterLoaded, AdapterRef, AdapterWarm, DropAdapter, LoadAdapter, WarmAdapter
from .audio import AlignmentOutput, PromptProbe
from .cache_groups import FULL, NO_HOST, CacheGroup, HostSizes
from .config import EngineConfig, StepLimits, WorkerConfig
from .inputs import ArenaRef, InputSpan, Streamed, StreamShape
from .pooling import Pooled, Pooling
from .sampling import SamplingParams
from .steps import ExpertShape, Masks, StepPart, StepPlan, StepResult, TokenLogprobs

FinishReason = Literal["stop", "length", "abort", "error"]
Fault = Literal["", "grammar", "allowed_token_ids", "bad_words", "adapter", "engine"]
"""What a request has asked for that ended it with an error: a grammar that became too large on the way, limits to its
tokens that leave nothing to draw, or an adapter that does not fit the model. "engine" where nobody is left to serve it,
which another server may. "" where it is not the request's."""


# ---- to the engine, from its client in the server process


class StartEngine(msgspec.Struct, frozen=True, array_like=True, tag="start"):
    config: EngineConfig


class Vocabulary(msgspec.Struct, frozen=True, array_like=True, tag="vocabulary"):
    """What grammars are made of tokens by, in pieces: all of them must have come before a Submit with a grammar."""

    start: int
    """Id of the first token of this piece; pieces come in order, without gaps."""
    total: int
    """Tokens of all pieces together."""
    tokens: list[bytes]
    """What each token adds to a text; nothing for an id that no token has."""
    special: list[int]
    """Which tokens of this piece are special: no text matches them, only a grammar that names them by id."""
    eos: list[int]
    """Which tokens of this piece may be drawn where a grammar is complete, and end it."""


class Thinking(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How many tokens a sequence may think for, and how to tell that it does."""

    budget: int
    """Tokens drawn after thinking began; then it is ended. 0 ends it as it begins."""
    begin: list[int]
    """The tokens that begin it; none: only ``opened`` does."""
    end: list[int]
    """The tokens that end it, forced one after the other when the budget is spent."""
    opened: bool
    """Whether the prompt has begun it."""


class Resumed(msgspec.Struct, frozen=True, array_like=True):
    """What a request had received when its engine was lost: the new one goes on from there."""

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
    """Unsigned 64 bits, one per sequence, drawn at admission also when the client gave none."""
    priority: int
    """Lower runs earlier; aged by waiting time."""
    salt: str
    """Prefix-cache salt; requests share blocks only under the same salt."""
    arrival: float
    """``time.monotonic()`` of the client process; comparable between processes of one machine."""
    resumed: Resumed | None = None
    name: str = ""
    """The request id that the client's user sees: for logs, and never a key of anything."""
    grammar: str = ""
    """What each sequence must match, in llguidance's dialect of Lark, or as the JSON of its own grammars; "" is
    none."""
    thinking: Thinking | None = None
    inputs: list[InputSpan] = []
    """Media of the prompt, in the order in which they stand in it."""
    probe: PromptProbe | None = None
    """Of a model that transcribes."""
    streamed: Streamed | None = None
    """For a model that transcribes streamed audio; such a request has one sequence."""
    pooling: Pooling | None = None
    """What is made of the prompt, by a model that draws no tokens; such a request has one sequence and wants none."""
    adapter: AdapterRef | None = None
    """What is added to the model's products for this request."""


class ResumedPart(msgspec.Struct, frozen=True, array_like=True, tag="resumed", gc=False):
    """Some of what one sequence had received, ahead of the :class:`Submit` of its request and after what came
    before."""

    rid: int
    index: int
    tokens: list[int]


class Append(msgspec.Struct, frozen=True, array_like=True, tag="append", gc=False):
    """More of what a request hears, after all that has come before."""

    rid: int
    pieces: list[ArenaRef]
    """See :attr:`.inputs.Streamed.pieces`; may be none."""
    last: bool
    """Whether nothing follows. The request ends when all of it has been heard."""


class MediaWritten(msgspec.Struct, frozen=True, array_like=True, tag="written", gc=False):
    """All that a request has brought lies in the arena, as :class:`MediaWanted` asked; or it cannot be written."""

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


ControlOperation = Literal["pause", "resume", "sleep", "discard", "wake", "reset_prefix_cache", "recompute"]
"""``pause``: no step begins until ``resume``; requests come and go, and wait. ``sleep``: the worker ends, and no other
starts until ``wake``; ``discard``: the same, and prepared weights are dropped. ``reset_prefix_cache``: nothing that was
computed before is found by a prompt. ``recompute``: rows give back what they hold, and compute it anew."""


class Control(msgspec.Struct, frozen=True, array_like=True, tag="control", gc=False):
    """What an operator asks of the engine itself. It takes effect between two steps, after all messages before it."""

    number: int
    operation: ControlOperation


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
    """See :class:`WorkerReady`, here and in the next two."""
    stream: StreamShape | None = None
    experts: ExpertShape | None = None
    max_num_seqs: int = 0
    """Sequences that a step computes at most; 0: not told."""


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed", gc=False):
    """The sender cannot go on; one clear line for the operator."""

    message: str
    final: bool = True
    """Whether a new process in its place would fail the same way."""
    of_peer: bool = False
    """Whether a worker cannot go on because another of its group was lost: the cause is there."""
    graphs: bool = False
    """Whether a worker cannot go on because it failed to capture a CUDA graph: the next one is to capture none."""


class Stalled(msgspec.Struct, frozen=True, array_like=True, tag="stalled", gc=False):
    """No step can run until the next :class:`EngineReady`; requests are kept, and new ones wait."""

    message: str


class PromptPart(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Some of what is known of a prompt, ahead of its :class:`PromptDone`. From ``start`` on it replaces what had come
    before."""

    rid: int
    start: int
    """The prompt token of the first of ``logprobs``, or the place of ``pooled`` in all that is sent of it."""
    logprobs: list[TokenLogprobs]
    pooled: bytes = b""
    """Of :attr:`.pooling.Pooled.data`, and after it of ``ids``."""


class PromptDone(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The prompt of a request has been prefilled; sent once, before or with its first token."""

    rid: int
    cached_tokens: int
    queue_seconds: float
    prefill_seconds: float
    logprobs: list[TokenLogprobs | None] | None
    """One per prompt token (the first is None), when asked for; on the way from the engine they are in parts, all of
    them, and this is empty."""
    alignment: AlignmentOutput | None = None
    pooled: Pooled | None = None


class SequenceExperts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The experts of positions [start, start + count), for a request that asks for them. After an engine was lost they
    come again from the first on."""

    rid: int
    index: int
    """Of the sequence; -1: they are positions of the prompt, which all share."""
    start: int
    count: int
    data: bytes
    """See :class:`.steps.RowExperts`."""


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


class TokensBatch(msgspec.Struct, frozen=True, array_like=True, tag="tokens", gc=False):
    """What one step brought, for all requests: ``parts`` come first, then ``experts``, ``prompts``, and ``finished``
    last."""

    prompts: list[PromptDone]
    tokens: list[SequenceTokens]
    finished: list[Finished]
    parts: list[PromptPart] = []
    experts: list[SequenceExperts] = []


Resource = Literal[
    "row", "pages", "encoder", "step", "adapter_slot", "grammar", "input", "media", "transfer", "adapter"
]
"""What a sequence can lack before it runs: a row on the worker, blocks of the KV cache, its media encoded or room for
that, room in the next step, a slot for its adapter; or what comes for its request alone: a compiled grammar, the first
of its streamed audio, media that are being written, something that is being loaded, its adapter in the worker's
memory."""


class Stats(msgspec.Struct, frozen=True, array_like=True, tag="stats", gc=False):
    """Gauges of now and counters since start."""

    running: int
    waiting: int
    kv_usage: float
    """Share of KV blocks in use, in [0, 1]."""
    preemptions: int
    """For want of KV blocks."""
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
    """Requests ended because they alone killed the worker."""
    waiting_for: dict[Resource, int] = {}
    """Sequences by what they lack, or what somebody before them does; those left out wait for tokens of their own
    request: its prompt, or one in flight."""
    running_adapters: list[int] = []
    """Numbers of the adapters that rows have."""
    waiting_adapters: list[int] = []
    """Of those that requests name and no row has."""
    num_drafts: int = 0
    """Times that a row was verified with draft tokens."""
    num_draft_tokens: int = 0
    accepted_by_position: list[int] = []
    """Of these, what rows have gained, by the place behind the row's own token."""
    prompt_computed: int = 0
    """Prompt tokens that were found nowhere when a sequence was first admitted."""
    host_queries: int = 0
    """Prompt tokens looked up in the host tier of the prefix cache: those that the device did not have."""
    host_hits: int = 0
    """Prompt tokens found there."""
    host_usage: float = 0.0
    """Share of the host tier that holds something, in [0, 1]."""
    host_stored_bytes: int = 0
    """Copied to the host tier."""
    host_loaded_bytes: int = 0
    """Copied back from there."""

    @property
    def num_accepted_tokens(self) -> int:
        return sum(self.accepted_by_position)


class ControlDone(msgspec.Struct, frozen=True, array_like=True, tag="done", gc=False):
    """A :class:`Control` has taken effect. Of a pause: the steps that were in flight are told; of ``sleep``: the worker
    is dead; of ``wake``: the next one is ready."""

    number: int


class Released(msgspec.Struct, frozen=True, array_like=True, tag="released", gc=False):
    """No step will read what these requests brought in the arena: each is named once, when it has ended."""

    rids: list[int]


class MediaWanted(msgspec.Struct, frozen=True, array_like=True, tag="wanted", gc=False):
    """Media of these requests have to be encoded, and are not written: answered with :class:`MediaWritten` for each."""

    rids: list[int]


ClientInbox = (
    Progress | EngineReady | Stalled | Failed | TokensBatch | Stats | ControlDone | Released | MediaWanted | AdapterWarm
)


# ---- to a worker, from its engine


class StartWorker(msgspec.Struct, frozen=True, array_like=True, tag="start"):
    config: WorkerConfig


WorkerInbox = StartWorker | StepPlan | Masks | LoadAdapter | DropAdapter | Shutdown


# ---- to the engine, from a worker


class WorkerReady(msgspec.Struct, frozen=True, array_like=True, tag="ready", gc=False):
    num_blocks: int
    """Of the pool that all paged groups share, and of one size; without such groups they only bound what runs at
    once."""
    max_model_len: int
    memory: list[MemoryLine]
    notes: list[str]
    limits: StepLimits
    groups: tuple[CacheGroup, ...] = (FULL,)
    """All that the model keeps; none of them is paged where tokens see all others, or where states are all."""
    stream: StreamShape | None = None
    """Where the model transcribes streamed audio."""
    experts: ExpertShape | None = None
    """What is told of each position, where ``WorkerConfig.return_routed_experts`` is set."""
    host: HostSizes = NO_HOST


EngineWorkerInbox = Progress | WorkerReady | Failed | StepPart | StepResult | AdapterLoaded
