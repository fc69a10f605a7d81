"""A request in the scheduler: plain data, what its sequences share, and the rules for their ends."""

from typing import Final

import msgspec

from stentor.protocols.ipc.actors import Fault, FinishReason, Resource, Resumed, Submit
from stentor.protocols.ipc.audio import AlignmentOutput
from stentor.protocols.ipc.cache_groups import CacheGroup
from stentor.protocols.ipc.codec import encoder
from stentor.protocols.ipc.inputs import StreamShape
from stentor.protocols.ipc.pooling import Pooled
from stentor.protocols.ipc.sampling import SamplingParams

from .cache.prefix import Tables, root_digest
from .grammar.constraint import ConstraintBroken
from .input import InputStream
from .prompt_media import PromptMedia
from .sequence import Sequence, SequenceState

End = tuple[FinishReason, int | None]
"""(reason, matched stop token unless it is an EOS token)."""

Failure = tuple[FinishReason, None, str, Fault]
"""The end of a sequence that cannot go on: reason, None, message, and the part of the request at fault."""

_SPAN_BYTES: Final = 64
"""Upper bound for one span of media and its encoding in a plan."""
NOTHING: frozenset[Resource] = frozenset()
_BY_ALL: frozenset[Resource] = frozenset(("row", "blocks", "step"))
_WITH_MEDIA: frozenset[Resource] = _BY_ALL | {"encoder"}
_WITH_ADAPTER: frozenset[Resource] = _BY_ALL | {"adapter_slot"}
_WITH_MEDIA_AND_ADAPTER: frozenset[Resource] = _WITH_MEDIA | _WITH_ADAPTER


def _row_params(params: SamplingParams, *, constrained: bool) -> tuple[SamplingParams, SamplingParams]:
    """The parameters that the worker needs: those of a first row, and those of rows after the prompt is done."""
    row = params
    # A constraint enforces min_tokens itself, so that a complete grammar can end the output before.
    if constrained and params.min_tokens:
        row = msgspec.structs.replace(row, min_tokens=0)
    # Only the constraint enforces banned and repeated sequences, and they may be large.
    if params.banned_sequences or params.no_repeat is not None:
        row = msgspec.structs.replace(row, banned_sequences=(), no_repeat=None)
    # Log-probabilities of a prompt cost the worker time.
    plain = row if params.prompt_logprobs is None else msgspec.structs.replace(row, prompt_logprobs=None)
    return row, plain


def _shared_needs(submit: Submit) -> frozenset[Resource]:
    if submit.adapter is None:
        return _WITH_MEDIA if submit.inputs else _BY_ALL
    return _WITH_MEDIA_AND_ADAPTER if submit.inputs else _WITH_ADAPTER


class Request:
    """One prompt and its sequences. Lengths are in tokens, times in seconds of the client's monotonic clock."""

    __slots__ = (
        "adapter",
        "alignment",
        "arrival",
        "awaits",
        "cached_len",
        "end_token_ids",
        "first_scheduled",
        "forks_left",
        "held_state",
        "held_tables",
        "input",
        "leading",
        "limit_len",
        "live",
        "media",
        "name",
        "needs",
        "num_experts_sent",
        "num_logprobs_sent",
        "num_preemptions",
        "params",
        "plain_params",
        "pooled",
        "pooled_sent",
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
        cross: CacheGroup | None = None,
    ) -> None:
        """Create the request and its sequences.

        Args:
            number: submission number; breaks ties of importance.
            aging_seconds: seconds of arrival that one unit of priority is worth.
            stream: how a streaming model maps audio to positions.
            sees_all: whether tokens also attend to later ones.
            awaits: resources of this request alone that must come before it is queued.
            cross: the worker's cache of encoded media.
        """
        params = submit.params
        # what the client sent
        self.rid = submit.rid
        self.name = submit.name
        self.arrival = submit.arrival
        self.prompt = submit.prompt
        self.prompt_len = len(submit.prompt)
        self.params = params
        self.end_token_ids = frozenset(params.eos_token_ids) | frozenset(params.stop_token_ids)
        """Each ends a sequence, from ``min_tokens`` on."""
        self.limit_len = min(self.prompt_len + params.max_tokens, max_model_len)
        self.salt = submit.salt
        self.adapter = submit.adapter
        self.probe = submit.probe
        self.pooling = submit.pooling
        self.media = PromptMedia(submit, cross)
        self.input = None if submit.streamed is None or stream is None else InputStream(submit.streamed, stream)
        self.sees_all = sees_all and submit.streamed is None

        # what a row of it needs
        self.needs = _shared_needs(submit)
        """Shared resources that it needs."""
        self.awaits = awaits
        """Resources of its own that have not come; until then sequences without a row are LOADING."""
        self.row_params, self.plain_params = _row_params(params, constrained="grammar" in awaits)
        sent = (self.row_params, submit.name, submit.probe, submit.pooling)
        self.row_bytes = len(encoder.encode(sent)) + _SPAN_BYTES * len(submit.inputs)
        """Bytes of a plan that a row of the request takes besides its tokens and blocks."""
        self.prompt_digests: list[bytes] | None = None
        """Of the whole blocks of the prompt; None before the first lookup."""

        # results of the prompt
        self.prompt_done = False
        """Whether the client has been sent the prompt's end; its log-probabilities are known then."""
        self.num_logprobs_sent = 1
        """Prompt tokens whose log-probabilities the client has; the first token has none."""
        self.num_experts_sent = params.routed_experts or 0
        """Prompt positions whose experts the client has or did not ask for."""
        self.alignment: AlignmentOutput | None = None
        """Alignment gathered so far."""
        self.pooled: Pooled | None = None
        self.pooled_sent = 0
        """Bytes of it that the client has, of streamed input."""

        # its sequences, and the prompt pinned for those that have not started
        # All priorities age at one rate, so the order of two sequences never changes: the key is constant.
        aged = submit.arrival + submit.priority * aging_seconds
        self.sequences = [
            Sequence(self, index, seed, (aged, submit.arrival, number, index))
            for index, seed in enumerate(submit.seeds)
        ]
        self.leading = 0
        """Index of the sequence that prefills the prompt."""
        self.live = len(self.sequences)
        self.forks_left = 0
        """Sequences that the leader's prefill has released and that have not started."""
        self.held_tables: Tables = []
        """Full prompt blocks, by group, kept referenced for these; else empty."""
        self.held_state = -1
        """Slot of the recurrent state behind these blocks, kept for the same sequences; -1: none."""

        # for metrics
        self.cached_len: int | None = None
        """Prompt tokens found in the prefix cache at the first admission; None before."""
        self.first_scheduled: float | None = None
        self.num_preemptions = 0
        """Times that a row of it was preempted because KV blocks ran out."""

        if submit.resumed is not None:
            self._resume(submit.resumed)
        if self.input is not None:
            self.take_input()
            if not self.begins:
                self.awaits |= {"input"}

    def _resume(self, resumed: Resumed) -> None:
        """Continue what another engine began: take over its output tokens, and leave out sequences that ended there."""
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
        """Recompute how far the sequences may go, after more input or its end has come."""
        assert self.input is not None
        ready = self.input.ready_len
        if self.pooling is not None:
            self._grow_prompt(ready)
            return
        for sequence in self.sequences:
            # past the end of input within the prompt, positions read silence
            sequence.ready_len = max(ready, self.prompt_len) if self.input.ended else ready
            if self.input.ended:
                sequence.limit_len = min(sequence.limit_len, sequence.ready_len + 1)
                # the row runs without knowing the new limit, and the token that reaches it is in flight
                running = sequence.state is SequenceState.RUNNING
                sequence.length_capped |= (
                    running and sequence.num_in_flight > 0 and sequence.length >= sequence.limit_len
                )

    def _grow_prompt(self, ready: int) -> None:
        """Of a request that draws no tokens the prompt is as long as its input may become, and what is ready of it is
        computed. At the end of the input nothing else follows."""
        assert self.input is not None
        sequence = self.leader
        sequence.ready_len = ready
        if self.input.ended:
            # the last position is computed after the end, so that a result of the row is still to come
            self.prompt_len = self.limit_len = sequence.length = sequence.limit_len = min(self.prompt_len, ready)

    @property
    def begins(self) -> bool:
        """Whether the audio suffices to compute the prompt, or its beginning where it grows."""
        needed = self.prompt_len if self.pooling is None else 1
        return self.input is None or self.leader.ready_len >= needed

    def take(self, sequence: "Sequence", tokens: list[int]) -> End | Failure | None:
        """Append tokens to a sequence; returns its end or failure, else None.

        Mutates ``tokens``: removes those after the end, and those from the first that its constraint forbids.
        """
        outputs, constraint = sequence.outputs, sequence.constraint
        known = len(outputs)
        for token in tokens:
            if constraint is not None:
                try:
                    constraint.accept(token)
                except ConstraintBroken as broken:
                    del tokens[len(outputs) - known :]
                    return "error", None, str(broken), broken.fault
            elif token not in self.end_token_ids and self.prompt_len + len(outputs) + 1 < sequence.limit_len:
                outputs.append(token)
                continue  # the common case, without a call
            outputs.append(token)
            if (end := self.end_of(sequence)) is not None:
                del tokens[len(outputs) - known :]
                return end
        return None

    def end_of(self, sequence: "Sequence") -> End | None:
        """The end of a sequence with its present tokens; None if it goes on.

        Stop tokens count from min_tokens on. The worker masks them before that, so this is a safeguard. The end of a
        grammar always counts.
        """
        outputs = sequence.outputs
        if outputs and outputs[-1] in self.end_token_ids and len(outputs) > self.params.min_tokens:
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
        """The request's part of :attr:`Sequence.cacheable_len`."""
        if self.pooling is not None:
            return self.prompt_len if self.pooling.last else 0
        if self.prompt_done or self.probe is None:
            return self.limit_len
        if self.probe.align is not None:
            return 0
        return self.limit_len if self.probe.no_speech is None else self.probe.no_speech[0]

    @property
    def no_chunking(self) -> bool:
        """Whether its row must enter in a single step, however many tokens it has."""
        if self.sees_all:
            return True
        return self.probe is not None and self.probe.align is not None and not self.prompt_done

    @property
    def missing_result(self) -> str:
        """The requested result for the prompt that the worker has not returned, for an error message; "" if none."""
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
        """Merge the alignment output of a step; each part comes whole from one step."""
        before = self.alignment or AlignmentOutput()
        aligned = alignment if alignment.times else before
        self.alignment = AlignmentOutput(
            before.no_speech if alignment.no_speech is None else alignment.no_speech,
            aligned.times,
            aligned.probabilities,
        )

    def forget_prompt(self) -> None:
        """Drop the results gathered for the prompt, since it is computed again."""
        self.num_logprobs_sent = 1
        self.alignment = None
        self.pooled = None

    def root_digest(self) -> bytes:
        """The parent digest of the first block."""
        return root_digest(self.salt, self.media.root_key, -1 if self.adapter is None else self.adapter.number)
