"""Grammars are tried before the engine is given them, off the event loop, each one once."""

import asyncio
import contextlib
import hashlib
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, NamedTuple

import msgspec

from stentor.engine.core.grammar.vocabulary import TokenBytes
from stentor.protocols.common.errors import BadRequest, refused

from ..common.errors import Overloaded, ServerError
from ..common.fair_queue import FairQueue, QueueFull, current_owner
from ..config.limits import GrammarLimits
from ..sandbox.killable_child import ChildNotStarted, Starved
from .process import TOO_COMPLEX, GrammarProcess

logger = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 1
COSTLY_SECONDS: Final = 60.0
"""How long a grammar is held to cost too much: the machine may have been busy with other things."""
TOO_COMPLEX_CODE: Final = "grammar_too_complex"


class GrammarsUnavailable(ServerError):
    """No process can be started to try grammars in."""

    status = 503
    kind = "service_unavailable_error"
    code = "grammars_unavailable"

    def __init__(self) -> None:
        super().__init__("Grammars cannot be checked just now; the log of the server says why.")


class _Verdict(NamedTuple):
    why: str
    until: float
    """Expiry, by the clock of the grammars."""


class _Trial(msgspec.Struct, eq=False):
    """A grammar being checked, with an owner's waiting requests."""

    owner: str
    key: bytes
    source: str
    verdict: "asyncio.Future[str]"
    callers: int = 0


class Grammars:
    """Verdicts on grammars, for one event loop.

    One grammar is compiled at a time, in its own process; others wait in a bounded queue, owners in turn. One whose
    callers have all gone is skipped. Recent verdicts are cached by digest.
    """

    def __init__(
        self,
        vocabulary: Callable[[], TokenBytes],
        limits: GrammarLimits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``vocabulary`` makes the model's; it is called once, in a thread, when the first grammar comes. ``clock``, in
        seconds, says when a verdict is too old."""
        self._limits = limits
        self._clock = clock
        self._process = GrammarProcess(vocabulary, limits.timeout)
        # a thread of its own, for all of the process's life: the kernel ends a child with the thread that began it
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._verdicts: OrderedDict[bytes, _Verdict] = OrderedDict()
        self._trials: dict[tuple[str, bytes], _Trial] = {}
        """Running and waiting checks, by owner and key: one owner's request does not wait in another's queue."""
        self._waiting: FairQueue[_Trial] = FairQueue(limits.max_waiting)
        self._trying: bytes | None = None
        """The key of the one grammar that the process has."""

    @property
    def pid(self) -> int | None:
        """Pid of the process, while there is one."""
        return self._process.pid

    @property
    def known(self) -> int:
        """Number of cached verdicts."""
        return len(self._verdicts)

    async def check(self, source: str, field: str) -> None:
        """Returns once the grammar is known to compile in the engine, within its limits.

        Raises BadRequest naming ``field``, the client's field of the grammar; :class:`..common.errors.Overloaded` if
        the queue is full or the machine has no time for it, and :class:`GrammarsUnavailable`.
        """
        try:
            key = hashlib.blake2b(source.encode(), digest_size=16).digest()
        except UnicodeEncodeError:
            said = f"`{field}`: it holds half a character (an unpaired surrogate)."
            raise BadRequest(said, field, "invalid_value") from None
        known = self._verdicts.get(key)
        if known is None or known.until <= self._clock():
            why = await self._tried(key, source)
        else:
            why = known.why
            self._verdicts.move_to_end(key)
        if why == TOO_COMPLEX:
            raise BadRequest(
                f"`{field}`: the grammar that this makes is too complex: it takes too long to compile or too much "
                "memory; bound what repeats, or ask for less.",
                field,
                TOO_COMPLEX_CODE,
            )
        if why:
            raise refused(field, why, "invalid_value")

    async def _tried(self, key: bytes, source: str) -> str:
        owner = current_owner.get()
        trial = self._trials.get((owner, key))
        if trial is None:
            trial = self._begin(_Trial(owner, key, source, asyncio.get_running_loop().create_future()))
        trial.callers += 1
        try:
            return await asyncio.shield(trial.verdict)
        except QueueFull:
            raise _too_many() from None
        except Starved:
            said = "The machine is too busy to check a grammar; try again shortly."
            raise Overloaded(said, "grammars_full", _RETRY_SECONDS) from None
        except ChildNotStarted as error:
            logger.error("the grammar process cannot be started: %s", error)
            raise GrammarsUnavailable from None
        finally:
            trial.callers -= 1
            if trial.callers == 0 and self._waiting.remove(owner, trial):
                self._end(trial)

    def _begin(self, trial: _Trial) -> _Trial:
        if self._trying is not None and self._trying != trial.key:
            try:
                dropped = self._waiting.push(trial.owner, trial)
            except QueueFull:
                raise _too_many() from None
            if dropped is not None:
                self._end(dropped, QueueFull())
        self._trials[trial.owner, trial.key] = trial
        if self._trying is None:
            self._try(trial)
        return trial

    def _try(self, trial: _Trial) -> None:
        loop = asyncio.get_running_loop()
        self._trying = trial.key
        held = [trial.source]  # the executor keeps its arguments until its thread takes others
        future = self._executor.submit(lambda: self._process.check(held[0]))

        def done(future: "Future[str]") -> None:
            held.clear()
            with contextlib.suppress(RuntimeError):  # the loop has closed, and so have all waiters
                loop.call_soon_threadsafe(self._ended, trial.key, future)

        future.add_done_callback(done)

    def _ended(self, key: bytes, future: "Future[str]") -> None:
        """Also for a check without waiters: the verdict serves later requests."""
        self._trying = None
        error = asyncio.CancelledError() if future.cancelled() else future.exception()
        why = future.result() if error is None else ""
        if error is None:
            self._remember(key, why)
        for trial in [trial for trial in self._trials.values() if trial.key == key]:
            self._waiting.remove(trial.owner, trial)
            self._end(trial, error, why)
        following = self._waiting.pop()
        if following is not None:
            self._try(following[1])

    def _end(self, trial: _Trial, error: BaseException | None = None, why: str = "") -> None:
        del self._trials[trial.owner, trial.key]
        if error is None:
            trial.verdict.set_result(why)
        else:
            trial.verdict.set_exception(error)
            trial.verdict.exception()  # its callers may have gone

    def _remember(self, key: bytes, why: str) -> None:
        until = self._clock() + COSTLY_SECONDS if why == TOO_COMPLEX else math.inf
        self._verdicts[key] = _Verdict(why, until)
        self._verdicts.move_to_end(key)
        while len(self._verdicts) > self._limits.cache:
            self._verdicts.popitem(last=False)
        if why == TOO_COMPLEX:
            with contextlib.suppress(RuntimeError):  # closed meanwhile
                self._executor.submit(self._restart)

    def _restart(self) -> None:
        """Starts another process after a grammar ended one, before the next grammar."""
        with contextlib.suppress(ChildNotStarted):  # the next that is tried says so
            self._process.start()

    def close(self) -> None:
        """Kills the process and drops waiting checks."""
        for trial in self._waiting.clear():
            self._trials.pop((trial.owner, trial.key))
            trial.verdict.cancel()
        self._executor.submit(self._process.close)
        self._executor.shutdown(wait=False)


def _too_many() -> Overloaded:
    return Overloaded("Too many grammars wait to be checked; try again shortly.", "grammars_full", _RETRY_SECONDS)
