"""A request and its sequences, as the scheduler keeps them: plain data and the legal moves of a sequence."""

import enum
from collections.abc import Iterator
from typing import Final

import msgspec

from stentor.protocols.ipc.actors import Fault, FinishReason, Resource, Resumed, SequenceExperts, Submit
from stentor.protocols.ipc.audio import AlignmentOutput
from stentor.protocols.ipc.codec import encoder
from stentor.protocols.ipc.inputs import InputSpan, StreamShape
from stentor.protocols.ipc.pooling import Pooled
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import RowExperts, RowInput

from .cache.prefix import Tables, chain_digest, root_digest
from .grammar.constraint import ConstraintBroken, TokenConstraint
from .input import NO_LIMIT, InputStream

Order = tuple[float, float, int, int]
"""(arrival aged by priority, arrival, submission number, sequence index); smaller is more important."""

End = tuple[FinishReason, int | None]
"""(reason, matched stop token that is not an EOS token)."""

Failure = tuple[FinishReason, None, str, Fault]
"""The same of a sequence that cannot go on: why, and what of the request it is due to."""

_SPAN_BYTES: Final = 64
"""Of one piece of media in a plan, and of its encoding, at most."""
NEVER_HASHED: Final = 1 << 60
"""Blocks that count as hashed of a row none of whose blocks are to be."""
_NO_DRAFTS: tuple[int, list[int]] = (-1, [])

NOTHING: frozenset[Resource] = frozenset()
_BY_ALL: frozenset[Resource] = frozenset(("row", "pages", "step"))
_WITH_MEDIA: frozenset[Resource] = _BY_ALL | {"encoder"}


class SequenceState(enum.Enum):
    HELD = "held"  # its request's prompt is being prefilled by the leading sequence; not queued
    LOADING = "loading"  # its request awaits what nobody else needs; not queued, holds nothing, blocks nobody
    WAITING = "waiting"  # queued for a slot and blocks: new, forked after the prefill, or preempted
    RUNNING = "running"  # has a slot and blocks, and a row on the worker
    PREEMPTED = "preempted"  # lost its row while a token of it is in flight; queued when that has come
    FINISHED = "finished"  # its terminal message has been made; results still in flight are dropped


class StateError(RuntimeError):
    """A sequence was not in the state that an operation needs."""


class Request:
    """One prompt and its sequences. Lengths are in tokens, times in seconds of the client's monotonic clock."""

    __slots__ = (
        "alignment",
        "arrival",
        "awaits",
        "cached_len",
        "ends",
        "experts_told",
        "first_scheduled",
        "forks_left",
        "held_state",
        "held_tables",
        "input",
        "inputs",
        "leading",
        "limit_len",
        "live",
        "name",
        "needs",
        "num_logprobs_sent",
        "params",
        "plain_params",
        "pooled",
        "pooling",
        "probe",
        "prompt",
        "prompt_digests",
        "prompt_done",
        "prompt_len",
        "rid",
        "row_bytes",
        "row_params",
        "salt",
        "sees_all",
        "sequences",
    )

    def __init__(
        self,
        submit: Submit,
        *,
        number: int,
        max_model_len: int,
        aging_seconds: float,
        stream: StreamShape | None = None,
        sees_all: bool = False,
        awaits: frozenset[Resource] = NOTHING,
    ) -> None:
        """``stream`` says how a model hears that is spoken to while it runs, ``sees_all`` whether tokens see those
        behind them too, ``awaits`` what must come for this request before it is queued.
        """
        params = submit.params
        self.rid = submit.rid
        self.name = submit.name
        self.prompt = submit.prompt
        self.prompt_len = len(submit.prompt)
        self.params = params
        self.row_params = params
        # A constraint knows of min_tokens too: only so a grammar that is complete can win over them.
        if "grammar" in awaits and params.min_tokens:
            self.row_params = msgspec.structs.replace(self.row_params, min_tokens=0)
        # Only the constraint keeps to banned sequences, and they may be large.
        if params.banned_sequences:
            self.row_params = msgspec.structs.replace(self.row_params, banned_sequences=())
        # What a row is given once the prompt's log-probabilities are known: they cost the worker work.
        self.plain_params: SamplingParams = (
            self.row_params
            if params.prompt_logprobs is None
            else msgspec.structs.replace(self.row_params, prompt_logprobs=None)
        )
        self.salt = submit.salt
        self.inputs = submit.inputs
        """In order of their positions."""
        self.probe = submit.probe
        self.pooling = submit.pooling
        self.pooled: Pooled | None = None
        self.sees_all = sees_all
        self.needs = _WITH_MEDIA if submit.inputs else _BY_ALL
        """What it shares with others."""
        self.awaits = awaits
        """What is coming for it alone; until it is here, sequences without a row are LOADING."""
        self.input = None if submit.streamed is None or stream is None else InputStream(submit.streamed, stream)
        asked = (self.row_params, submit.name, submit.probe, submit.pooling)
        self.row_bytes = len(encoder.encode(asked)) + _SPAN_BYTES * len(submit.inputs)
        """Of a plan, that a row of the request takes besides its tokens and blocks."""
        self.arrival = submit.arrival
        self.limit_len = min(self.prompt_len + params.max_tokens, max_model_len)
        self.ends = frozenset(params.eos_token_ids) | frozenset(params.stop_token_ids)
        # All priorities age at one rate, so who precedes whom never changes and can be a constant key.
        aged = submit.arrival + submit.priority * aging_seconds
        self.sequences = [
            Sequence(self, index, seed, (aged, submit.arrival, number, index))
            for index, seed in enumerate(submit.seeds)
        ]
        self.leading = 0
        """Index of the sequence that prefills the prompt."""
        self.live = len(self.sequences)
        self.prompt_done = False
        """Whether the client has been told; its log-probabilities are known then."""
        self.cached_len: int | None = None
        """Prefix-cache tokens of the first admission; None before it."""
        self.first_scheduled: float | None = None
        self.num_logprobs_sent = 1
        """Prompt tokens whose log-probabilities have gone to the client; the first has none."""
        self.experts_told = params.routed_experts or 0
        """Prompt positions whose experts have gone to the client, or that it has not asked for."""
        self.alignment: AlignmentOutput | None = None
        """Gathered so far."""
        self.held_tables: Tables = []
        """Full prompt blocks kept referenced for sequences that have yet to start; of each group, or none."""
        self.held_state = -1
        """The slot of the recurrent state behind them, kept for the same; -1: none."""
        self.forks_left = 0
        self.prompt_digests: list[bytes] | None = None
        if submit.resumed is not None:
            self._resume(submit.resumed)
        if self.input is not None:
            self.take_input()
            if not self.begins:
                self.awaits |= {"input"}

    def _resume(self, resumed: Resumed) -> None:
        """Start where another engine ended: with the tokens that the client has, and without the sequences it has."""
        self.prompt_done = resumed.prompt_done
        for sequence, outputs in zip(self.sequences, resumed.outputs, strict=True):
            sequence.outputs = list(outputs)
            sequence.length += len(outputs)
        for index in set(resumed.ended):
            self.sequences[index].move((SequenceState.HELD,), SequenceState.FINISHED)
            self.live -= 1
        if self.live:
            self.leading = next(each.index for each in self.sequences if each.state is not SequenceState.FINISHED)

    def take_input(self) -> None:
        """More has come of the input, or its end: see how far the sequences may go now."""
        assert self.input is not None
        ready = self.input.ready_len
        for sequence in self.sequences:
            # an input that ends within the prompt goes on as silence
            sequence.ready_len = max(ready, self.prompt_len) if self.input.ended else ready
            if self.input.ended:
                sequence.limit_len = min(sequence.limit_len, sequence.ready_len + 1)
                # the token that ends it is in flight, of a row that thought of another
                running = sequence.state is SequenceState.RUNNING
                sequence.length_capped |= (
                    running and sequence.num_in_flight > 0 and sequence.length >= sequence.limit_len
                )

    @property
    def begins(self) -> bool:
        """Whether there is enough audio to compute its prompt."""
        return self.input is None or self.leader.ready_len >= self.prompt_len

    def take(self, sequence: "Sequence", tokens: list[int]) -> End | Failure | None:
        """A sequence gains tokens; says whether it has ended or failed. Mutates ``tokens``, of which it takes off those
        behind the end, and from the one on that its constraint does not allow."""
        outputs, constraint = sequence.outputs, sequence.constraint
        known = len(outputs)
        for token in tokens:
            if constraint is not None:
                try:
                    constraint.accept(token)
                except ConstraintBroken as broken:
                    del tokens[len(outputs) - known :]
                    return "error", None, str(broken), broken.fault
            elif token not in self.ends and self.prompt_len + len(outputs) + 1 < sequence.limit_len:
                outputs.append(token)
                continue  # the common case, without a call
            outputs.append(token)
            if (end := self.end_of(sequence)) is not None:
                del tokens[len(outputs) - known :]
                return end
        return None

    def end_of(self, sequence: "Sequence") -> End | None:
        """Whether the tokens that a sequence has are all it gets.

        Stops count from min_tokens on; the worker masks them before, so this only guards. The end of a grammar counts
        whenever it comes.
        """
        outputs = sequence.outputs
        if outputs and outputs[-1] in self.ends and len(outputs) > self.params.min_tokens:
            token = outputs[-1]
            return "stop", None if token in self.params.eos_token_ids else token
        if sequence.constraint is not None and sequence.constraint.ended and outputs:
            return "stop", None
        if self.prompt_len + len(outputs) >= sequence.limit_len and (outputs or self.prompt_done):
            input_done = self.input is not None and self.input.ended and sequence.limit_len == sequence.ready_len + 1
            return "stop" if input_done or self.pooling is not None else "length", None
        return None

    @property
    def leader(self) -> "Sequence":
        return self.sequences[self.leading]

    @property
    def cacheable_len(self) -> int:
        """The same for what its sequences share; see :attr:`Sequence.cacheable_len`."""
        if self.pooling is not None:
            return self.prompt_len if self.pooling.last else 0
        if self.prompt_done or self.probe is None:
            return self.limit_len
        if self.probe.align is not None:
            return 0
        return self.limit_len if self.probe.no_speech is None else self.probe.no_speech[0]

    @property
    def no_chunking(self) -> bool:
        """Whether its row enters in one step, however many tokens are known."""
        if self.sees_all:
            return True
        return self.probe is not None and self.probe.align is not None and not self.prompt_done

    @property
    def lacks(self) -> str:
        """What of the prompt was asked for and has not come; "" where nothing."""
        if self.pooling is not None and self.pooled is None:
            return "nothing for a prompt"
        if self.probe is None:
            return ""
        alignment, align = self.alignment or AlignmentOutput(), self.probe.align
        if self.probe.no_speech is not None and alignment.no_speech is None:
            return "no probability of silence"
        if align is not None and len(alignment.times) != self.prompt_len - align.start + 1:
            return f"{len(alignment.times)} times of {self.prompt_len - align.start} aligned tokens"
        return ""

    def gather_alignment(self, alignment: AlignmentOutput) -> None:
        """Keep what a step brought; each part comes from one step."""
        before = self.alignment or AlignmentOutput()
        aligned = alignment if alignment.times else before
        self.alignment = AlignmentOutput(
            before.no_speech if alignment.no_speech is None else alignment.no_speech,
            aligned.times,
            aligned.probabilities,
        )

    def forget_prompt(self) -> None:
        """The prompt is computed anew: drop what has been gathered of it."""
        self.num_logprobs_sent = 1
        self.alignment = None
        self.pooled = None

    def root_digest(self) -> bytes:
        """The parent of its first block."""
        return root_digest(self.salt, b"".join(span.digest for span in self.inputs if span.start < 0))

    def spans_behind(self, position: int) -> list[InputSpan]:
        """Media that positions from this one on read."""
        return [span for span in self.inputs if span.start < 0 or span.end > position]

    def media_between(self, start: int, end: int) -> bytes:
        """What stands at positions [start, end) in place of tokens, to be hashed with them: which media, and which part
        of them."""
        found = [span for span in self.inputs if 0 <= span.start < end and span.end > start]
        return b"".join(
            span.digest + (span.start - start).to_bytes(8, "little", signed=True) + span.length.to_bytes(8, "little")
            for span in found
        )


class Sequence:
    """One output sequence of a request, and its row while it has one.

    Positions count from the start of the prompt. At all times ``num_computed_tokens <= num_scheduled_tokens <=
    length`` and ``length == prompt_len + len(outputs) + num_in_flight``.

    A step in flight may gain a row several tokens. ``length`` and ``num_scheduled_tokens`` are then the least that
    there will be, and the most is ``num_drafts_in_flight`` above. Blocks are held for the most; what is given back,
    because a window has left it behind, follows from the least.
    """

    __slots__ = (
        "branch",
        "checkpoints",
        "constraint",
        "digests",
        "drafts",
        "experts_told",
        "fed",
        "fed_end",
        "forked",
        "index",
        "kept",
        "length",
        "length_capped",
        "limit_len",
        "num_blocks",
        "num_computed_tokens",
        "num_drafts_in_flight",
        "num_hashed_blocks",
        "num_in_flight",
        "num_scheduled_tokens",
        "order",
        "outputs",
        "promised",
        "promised_until",
        "ready_len",
        "request",
        "row_generation",
        "samples",
        "seed",
        "slot",
        "spans",
        "state",
        "state_slot",
        "stops",
        "tables",
    )

    def __init__(self, request: Request, index: int, seed: int, order: Order) -> None:
        self.request = request
        self.constraint: TokenConstraint | None = None
        """Fed with all of ``outputs``; it outlives rows and workers. None where it follows nothing, and until its
        grammar has been compiled."""
        self.index = index
        self.seed = seed
        self.order = order
        self.state = SequenceState.HELD
        self.outputs: list[int] = []
        self.slot = -1
        self.row_generation = 0
        """Counts the rows this sequence has lost; tells results of an earlier row from those of this one."""
        self.tables: Tables = []
        """Its blocks, of each group of layers."""
        self.kept: list[int] = []
        """Of each group, the first block that its window has not left behind."""
        self.num_blocks = 0
        """Length of each table."""
        self.promised = self.promised_until = 0
        """Blocks that its row was admitted with and has not taken, and how long its tables are then."""
        self.spans: list[InputSpan] = []
        """Media that it holds in the encoder cache: what its row has yet to read."""
        self.state_slot = -1
        """Where the recurrent state of its row lies once all planned steps have run; -1: nowhere."""
        self.checkpoints: list[tuple[int, int]] = []
        """States that its row has begun from or left behind, and still holds: behind how many tokens, in which slot."""
        self.stops: tuple[int, int] = (0, 0)
        """Lengths at which its row is to leave its state behind, besides multiples of a length; 0: none."""
        self.branch = 0
        """Tokens whose blocks were known when it looked for a prefix, with or without a state behind them."""
        self.digests: list[bytes] = []
        self.num_hashed_blocks = 0
        """Leading blocks that the prefix cache has been told about."""
        self.experts_told = request.prompt_len
        """Positions whose experts have gone to the client once those of the prompt have."""
        self.num_scheduled_tokens = 0
        """Positions whose KV is written once all planned steps have run, at least."""
        self.num_computed_tokens = 0
        """Positions whose KV is written by steps that have completed."""
        self.length = request.prompt_len
        """Tokens of prompt and output, those in flight included, at least."""
        self.limit_len = request.limit_len
        self.num_in_flight = 0
        """Steps in flight that draw, each a token at least."""
        self.num_drafts_in_flight = 0
        """Draft tokens that these steps may gain beyond."""
        self.drafts: tuple[int, list[int]] = _NO_DRAFTS
        """What the worker will propose behind so many outputs, where that needs masks."""
        self.length_capped = False
        """Nothing is left to plan: its last result is in flight."""
        self.ready_len = NO_LIMIT
        """Positions that may be computed: for those after them, input has yet to come."""
        self.fed = 0
        """Bytes of the input that its row has been given."""
        self.fed_end = False
        """Whether its row has been told that the input has ended."""
        self.samples = request.limit_len > request.prompt_len
        """False where no token is wanted, only the prompt's log-probabilities."""
        self.forked = False
        """Has been let go by the leader's prefill and not been admitted yet."""

    @property
    def name(self) -> str:
        return f"{self.request.rid}.{self.index}"

    @property
    def plannable(self) -> int:
        """Positions that the next step may compute."""
        return min(self.length, self.ready_len) - self.num_scheduled_tokens

    def feed(self, end: int) -> RowInput | None:
        """What positions before ``end`` hear that the row has not been given; None where nothing. Mutates: it is given
        now."""
        stream = self.request.input
        if stream is None:
            return None
        until = stream.needed(end)
        ended = stream.ended and until == len(stream)
        if (until, ended) == (self.fed, self.fed_end) or until < self.fed:
            return None
        found = RowInput(self.slot, stream.between(self.fed, until), ended)
        self.fed, self.fed_end = until, ended
        return found

    def move(self, expected: tuple[SequenceState, ...], state: SequenceState) -> None:
        """Enter ``state``; raises :class:`StateError` unless the present one is among ``expected``."""
        if self.state not in expected:
            wanted = " or ".join(each.value for each in expected)
            raise StateError(
                f"sequence {self.name} is {self.state.value}, but must be {wanted} before it can be {state.value}"
            )
        self.state = state

    def tokens(self, start: int, end: int) -> list[int]:
        """Known tokens at positions [start, end)."""
        prompt_len = self.request.prompt_len
        if end <= prompt_len:
            return self.request.prompt[start:end]
        if start >= prompt_len:
            return self.outputs[start - prompt_len : end - prompt_len]
        return self.request.prompt[start:] + self.outputs[: end - prompt_len]

    @property
    def cacheable_len(self) -> int:
        """Positions before this one may come from the prefix cache: what is asked of later ones is known only where
        they are computed."""
        request = self.request
        if request.params.routed_experts is None:
            return request.cacheable_len
        sent = request.experts_told if request.experts_told < request.prompt_len else self.experts_told
        return min(request.cacheable_len, sent)

    def take_experts(self, row: RowExperts) -> Iterator[SequenceExperts]:
        """What of a row's experts the client has not been told, which it is now; mutates. What a lost row has computed
        is computed again, and told once."""
        request, end = self.request, row.start + row.count
        sent = request.experts_told
        if row.start <= sent < min(end, request.prompt_len):
            request.experts_told = min(end, request.prompt_len)
            yield _experts(request.rid, -1, row, sent, request.experts_told)
        sent = self.experts_told
        if row.start <= sent < end:
            self.experts_told = end
            yield _experts(request.rid, self.index, row, sent, end)

    def block_digests(self, count: int, block_size: int) -> list[bytes]:
        """Digests of at least the first ``count`` blocks, all of whose tokens must be known."""
        digests = self.digests
        if len(digests) >= count:
            return digests
        request = self.request
        if request.prompt_digests is None:
            parent = request.root_digest()
            request.prompt_digests = shared = []
            for start in range(0, request.prompt_len - block_size + 1, block_size):
                tokens = request.prompt[start : start + block_size]
                parent = chain_digest(parent, tokens, request.media_between(start, start + block_size))
                shared.append(parent)
        if not digests:
            digests.extend(request.prompt_digests)
        for block in range(len(digests), count):
            parent = digests[-1] if digests else request.root_digest()
            start, end = block * block_size, (block + 1) * block_size
            digests.append(chain_digest(parent, self.tokens(start, end), request.media_between(start, end)))
        return digests

    def drop_row(self) -> None:
        """Forget slot, blocks, media and positions; mutates. The caller has given them back."""
        self.slot = -1
        self.spans = []
        self.fed, self.fed_end = 0, False
        self.tables, self.kept, self.num_blocks = [], [], 0
        self.promised = self.promised_until = 0
        self.num_scheduled_tokens = self.num_computed_tokens = self.num_hashed_blocks = 0
        self.drafts = _NO_DRAFTS
        self.state_slot = -1
        self.checkpoints, self.stops, self.branch = [], (0, 0), 0
        self.length_capped = False
        self.row_generation += 1


def _experts(rid: int, index: int, row: RowExperts, start: int, end: int) -> SequenceExperts:
    """Those of positions [start, end)."""
    each = len(row.data) // row.count
    data = row.data[(start - row.start) * each : (end - row.start) * each]
    return SequenceExperts(rid, index, start, end - start, data)
