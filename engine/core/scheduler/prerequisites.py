"""Resources that a request must wait for alone: grammar, transfer, media, adapter."""

import msgspec

from stentor.protocols.ipc.actors import Finished, TokensBatch
from stentor.protocols.ipc.adapters import AdapterLoaded, AdapterWarm, DropAdapter, LoadAdapter, WarmAdapter

from ..grammar.constraint import TokenConstraint
from ..request import Request
from ..sequence import SequenceState
from .kv_cache_manager import KVCacheManager
from .output import Output
from .recovery import WorkerRecovery


class Prerequisites:
    """Lets requests stand aside until their own resources have come, and queues them by importance then.

    A request that stands aside holds nothing, and nobody waits for it.
    """

    def __init__(self, kv_cache: KVCacheManager, output: Output, recovery: WorkerRecovery) -> None:
        self._kv_cache = kv_cache
        self._output = output
        self._recovery = recovery
        self._media_wanted: list[int] = []
        """Requests whose media must be written and whose client has not been asked yet."""

    def constrain(self, rid: int, constraints: list[TokenConstraint | None]) -> TokensBatch | None:
        """Set the compiled constraints of a request, one a sequence, and queue it.

        They have accepted the tokens of a resumed request. Returns the ends of its complete sequences, or None.
        """
        request = self._output.requests.get(rid)
        if request is None:
            return None
        for sequence, constraint in zip(request.sequences, constraints, strict=True):
            sequence.constraint = constraint
        ended = self.end_satisfied(request)
        self._kv_cache.queue.has_come(request, "grammar")
        return ended

    def load(self, rid: int) -> None:
        """Mark that a transfer for the request has begun: its sequences without a row are LOADING until :meth:`loaded`.

        Its rows go on. The caller must call :meth:`loaded` later, and hold the destination blocks until then;
        afterwards the request finds them as a cached prefix.
        """
        if (request := self._output.requests.get(rid)) is not None:
            self._kv_cache.queue.stand_aside(request, "transfer")

    def loaded(self, rid: int, epoch: int, error: str | None = None) -> TokensBatch | None:
        """Mark that the transfer begun in this epoch has ended; the request is queued.

        Blocks that were not loaded are computed. With ``error`` the request ends instead. None if nothing ends, as for
        a request that has ended, or a transfer that was lost with its worker.
        """
        request = self._output.requests.get(rid)
        if epoch != self._recovery.epoch or request is None or "transfer" not in request.awaits:
            return None
        if error is not None:
            return self._recovery.noted_ends(self._output.finish_all(request, "error", error))
        self._kv_cache.queue.has_come(request, "transfer")
        return None

    # ---- media

    def want_media(self, request: Request) -> None:
        """Let a request stand aside until its media are written."""
        self._kv_cache.queue.stand_aside(request, "media")
        self.want_written([request.rid])

    def want_written(self, rids: list[int]) -> None:
        """Have the clients of these requests write their media."""
        self._media_wanted += rids

    def take_media_wanted(self) -> list[int]:
        """Requests whose client must write their media and call :meth:`media_written`, since the last call.

        A request is listed again if media that were encoded have been evicted.
        """
        wanted, self._media_wanted = self._media_wanted, []
        return wanted

    def media_written(self, rid: int, error: str = "") -> TokensBatch | None:
        """Mark a request's media as written, and queue it. With ``error`` the request ends; None if nothing ends."""
        request = self._output.requests.get(rid)
        if request is None:
            return None
        if error:
            return self._recovery.noted_ends(self._output.finish_all(request, "error", error))
        request.media.spans = [msgspec.structs.replace(span, written=True) for span in request.media.spans]
        self._kv_cache.queue.has_come(request, "media")
        return None

    # ---- adapters

    def warm(self, message: WarmAdapter) -> AdapterWarm | None:
        """Load an adapter before a request names it. Returns the answer if it is loaded already or cannot be loaded."""
        if not self._kv_cache.adapters.max_slots:
            return AdapterWarm(message.ticket, "the model is served without adapters")
        holder = -1 - message.ticket
        if not self._kv_cache.adapters.hold(message.adapter, holder):
            return None
        self._kv_cache.adapters.leave(message.adapter.number, holder)
        return AdapterWarm(message.ticket)

    def adapter_loaded(self, message: AdapterLoaded) -> tuple[TokensBatch, list[AdapterWarm]]:
        """Handle the worker's answer about an adapter: requests that await it are queued or end."""
        finished: list[Finished] = []
        answers: list[AdapterWarm] = []
        adapters = self._kv_cache.adapters
        for holder in sorted(adapters.take_loaded(message)):
            if holder < 0:
                adapters.leave(message.number, holder)
                answers.append(AdapterWarm(-1 - holder, message.error, message.missing))
                continue
            request = self._output.requests[holder]
            if message.error:
                finished += self._output.finish_all(request, "error", message.error, "adapter")
            else:
                self._kv_cache.queue.has_come(request, "adapter")
        return self._recovery.noted_ends(finished), answers

    def take_adapter_orders(self) -> tuple[list[LoadAdapter | DropAdapter], list[AdapterWarm]]:
        """The worker's orders about adapters before the next plan, and the answers to clients that are due."""
        adapters = self._kv_cache.adapters
        answers: list[AdapterWarm] = []
        for holder, number in adapters.take_ready():
            if holder < 0:
                adapters.leave(number, holder)
                answers.append(AdapterWarm(-1 - holder))
            else:
                self._kv_cache.queue.has_come(self._output.requests[holder], "adapter")
        return adapters.take_orders(), answers

    # ---- resumed requests

    def end_satisfied(self, request: Request) -> TokensBatch | None:
        """End the complete sequences of a resumed request."""
        finished = [
            self._output.finish(sequence, *end)
            for sequence in request.sequences
            if sequence.state is not SequenceState.FINISHED and (end := request.end_of(sequence)) is not None
        ]
        self._output.replace_leader(request)
        return TokensBatch([], [], finished) if finished else None
