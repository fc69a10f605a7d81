"""Recovers requests from a worker's death: which wait again, which may run next, and which is to blame."""

from collections.abc import Collection
from typing import Final, NamedTuple

from stentor.protocols.ipc.actors import Finished, TokensBatch

from ..crash_bisector import CrashBisector, InFlightSequence
from ..sequence import Sequence, SequenceState
from .kv_cache_manager import KVCacheManager
from .output import Output
from .rows import RowTable
from .step import InFlightStep

_POISON: Final = "the request ended the worker process each time that it ran, also alone; it is not tried again"


class RecoveryOutcome(NamedTuple):
    """The outcome of a worker's death."""

    ended: TokensBatch
    """Terminal messages of the culprit, if it was found."""
    explained: bool
    """Whether the culprit was found."""
    in_search: bool
    """Whether the worker died in a search for the culprit, which expects deaths."""
    requests: int
    """Requests that go on."""
    culprit: str = ""
    """The culprit's name in logs."""


class WorkerRecovery:
    """Requeues requests after a death, and lets those run that :class:`~..crash_bisector.CrashBisector` allows.

    During a search the rows of others are preempted. The next group starts once no step of the last one is in flight,
    so it is always known whose step killed the worker.
    """

    def __init__(self, rows: RowTable, kv_cache: KVCacheManager, output: Output) -> None:
        self._rows = rows
        self._kv_cache = kv_cache
        self._output = output
        self._bisector = CrashBisector()
        self.group: frozenset[int] | None = None
        """Requests that may run, as last applied to queue and rows; None for all."""
        self.epoch = 0
        """Deaths of the worker. Results and transfers of an earlier epoch are void."""
        self.recovered = 0
        """Requests that went on, counted once a death."""
        self.poisoned = 0
        """Requests found to be culprits."""

    def recover(self, flights: Collection[InFlightStep], *, blameless: bool = False) -> RecoveryOutcome:
        """Requeue everything that ran, with its delivered tokens.

        ``flights``: the steps in flight, of which the worker may have died unless it is ``blameless``.
        """
        self.epoch += 1
        in_flight = [] if blameless else self.in_flight(flights)
        in_search = self._bisector.searching and bool(flights)
        culprit = self._bisector.died(in_flight)
        running = self._rows.running
        self._forget_worker()
        for sequence in running:
            sequence.drop_row()
        requeued = [*running, *self._preempted()]
        for sequence in requeued:
            self._requeue(sequence)
        ended, name = TokensBatch([], [], []), ""
        if culprit is not None:
            self.poisoned += 1
            request = self._output.requests[culprit]
            name = request.name
            ended.finished.extend(self._output.finish_all(request, "error", _POISON))
        requests = len({sequence.request.rid for sequence in requeued} - {culprit})
        self.recovered += requests
        return RecoveryOutcome(ended, culprit is not None, in_search, requests, name)

    def _forget_worker(self) -> None:
        """Forget rows, blocks, prefixes, adapters and transfers, which were lost with the worker."""
        self._rows.reset()
        self._kv_cache.reset()
        for rid in self._kv_cache.adapters.reset():
            if rid >= 0:  # a number below 0 is an order to load one ahead (Prerequisites.warm)
                self._kv_cache.queue.stand_aside(self._output.requests[rid], "adapter")
        for request in self._output.requests.values():
            if "transfer" in request.awaits:  # its owner may begin another
                self._kv_cache.queue.has_come(request, "transfer")

    def _requeue(self, sequence: Sequence) -> None:
        """Let a sequence wait with its delivered tokens; those in flight are lost."""
        sequence.num_in_flight = sequence.num_drafts_in_flight = 0
        sequence.length = sequence.request.prompt_len + len(sequence.outputs)
        if not sequence.request.prompt_done:
            sequence.request.forget_prompt()
        self._kv_cache.queue.push(sequence)

    def group_runs(self, *, in_flight: bool) -> bool:
        """Apply the search's present group to rows and queue; False while steps of the last group are in flight."""
        if self.group == self._bisector.group:
            return True
        if in_flight:
            return False
        group = self.group = self._bisector.group
        if group is not None:
            for sequence in reversed(self._rows.running.copy()):
                if sequence.request.rid not in group:
                    self._kv_cache.preempt(sequence)
        self._kv_cache.queue.restrict(group)
        return True

    def noted(self, batch: TokensBatch) -> TokensBatch:
        """Report the batch's tokens and ends to the search; returns the batch."""
        if not self._bisector.idle:
            self._bisector.note_gains(batch)
            for finished in batch.finished:
                self._bisector.ended(finished.rid, finished.index)
        return batch

    def noted_ends(self, finished: list[Finished]) -> TokensBatch:
        """:meth:`noted` of a batch that has these ends alone."""
        return self.noted(TokensBatch([], [], finished))

    def in_flight(self, flights: Collection[InFlightStep]) -> list[InFlightSequence]:
        """The living sequences of these steps, as a crash in one of them would report them."""
        found: dict[tuple[int, int], InFlightSequence] = {}
        for flight in flights:
            for slot, (sequence, _, _, _) in flight.by_slot().items():
                if sequence.state is not SequenceState.FINISHED:
                    known = sequence.request.prompt_len + len(sequence.outputs)
                    key = sequence.request.rid, sequence.index
                    found.setdefault(
                        key, InFlightSequence(*key, slot in flight.entered or sequence.num_computed_tokens + 1 < known)
                    )
            # sequences whose media are encoded need not have a row in the step
            for rid in flight.readers:
                if (request := self._output.requests.get(rid)) is not None:
                    for sequence in request.sequences:
                        if sequence.state is SequenceState.RUNNING:
                            key = rid, sequence.index
                            found.setdefault(key, InFlightSequence(*key, True))
        return list(found.values())

    def _preempted(self) -> list[Sequence]:
        return [
            sequence
            for request in self._output.requests.values()
            for sequence in request.sequences
            if sequence.state is SequenceState.PREEMPTED
        ]
