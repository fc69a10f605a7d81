"""Grammars are tried before the engine is given them, off the event loop, each one once."""

import asyncio
import contextlib
import hashlib
import logging
import math
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, NamedTuple

from stentor.engine.grammar.vocabulary import TokenBytes
from stentor.protocols.openai.errors import BadRequest

from ..errors import Overloaded, ServerError
from .limits import GrammarLimits
from .process import TOO_COMPLEX, ChildNotStarted, GrammarProcess

logger = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 1
_COSTLY_SECONDS: Final = 60.0
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
    """By the loop's clock."""


@dataclass
class _Trial:
    """A grammar that is being tried, or waits for that, and how many callers want to know."""

    future: "Future[str]"
    callers: int = 0


class Grammars:
    """Verdicts on grammars, for the event loop that it is used from.

    One grammar is tried at a time, in a process of its own; so many others wait, and a further one is refused. One
    whose callers have all gone is skipped. Verdicts are kept, by digest, those that were asked for last.
    """

    def __init__(self, vocabulary: Callable[[], TokenBytes], limits: GrammarLimits) -> None:
        """``vocabulary`` makes the model's; it is called once, in a thread, when the first grammar comes."""
        self._limits = limits
        self._process = GrammarProcess(vocabulary, limits.timeout)
        # a thread of its own, for all of the process's life: the kernel ends a child with the thread that began it
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._verdicts: OrderedDict[bytes, _Verdict] = OrderedDict()
        self._trials: dict[bytes, _Trial] = {}

    @property
    def pid(self) -> int | None:
        """Of the process, while there is one."""
        return self._process.pid

    @property
    def known(self) -> int:
        """Verdicts that are kept."""
        return len(self._verdicts)

    async def check(self, source: str, field: str) -> None:
        """Returns once the grammar is known to compile in the engine, within its limits.

        Raises BadRequest naming ``field``, which is what the client has asked for the grammar with;
        :class:`..errors.Overloaded` where too many others wait, and :class:`GrammarsUnavailable`.
        """
        try:
            key = hashlib.blake2b(source.encode(), digest_size=16).digest()
        except UnicodeEncodeError:
            said = f"`{field}`: it holds half a character (an unpaired surrogate)."
            raise BadRequest(said, field, "invalid_value") from None
        known = self._verdicts.get(key)
        if known is None or known.until <= asyncio.get_running_loop().time():
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
            raise BadRequest(f"`{field}`: {why}.", field, "invalid_value")

    async def _tried(self, key: bytes, source: str) -> str:
        trial = self._trials.get(key)
        if trial is None:
            trial = self._begin(key, source)
        trial.callers += 1
        try:
            return await asyncio.shield(asyncio.wrap_future(trial.future))
        except ChildNotStarted as error:
            logger.error("the grammar process cannot be started: %s", error)
            raise GrammarsUnavailable from None
        finally:
            trial.callers -= 1
            if trial.callers == 0:
                trial.future.cancel()  # nothing, where it has begun
            if trial.future.done() and self._trials.get(key) is trial:
                del self._trials[key]

    def _begin(self, key: bytes, source: str) -> _Trial:
        if len(self._trials) > self._limits.max_waiting:  # one of them is being tried
            raise Overloaded(
                "Too many grammars wait to be checked; try again shortly.", "grammars_full", _RETRY_SECONDS
            )
        loop = asyncio.get_running_loop()
        held = [source]  # the executor keeps what it was given until a thread comes to it
        trial = _Trial(self._executor.submit(lambda: self._process.check(held[0])))

        def done(future: "Future[str]") -> None:
            held.clear()
            with contextlib.suppress(RuntimeError):  # the loop has closed, and with it everyone who waited
                loop.call_soon_threadsafe(self._ended, key, trial, loop.time())

        self._trials[key] = trial
        trial.future.add_done_callback(done)
        return trial

    def _ended(self, key: bytes, trial: _Trial, now: float) -> None:
        """Also of a trial that nobody waits for any more: the verdict holds for the next who asks."""
        if self._trials.get(key) is trial:
            del self._trials[key]
        if trial.future.cancelled() or trial.future.exception() is not None:
            return
        why = trial.future.result()
        self._verdicts[key] = _Verdict(why, now + _COSTLY_SECONDS if why == TOO_COMPLEX else math.inf)
        self._verdicts.move_to_end(key)
        while len(self._verdicts) > self._limits.cache:
            self._verdicts.popitem(last=False)
        if why == TOO_COMPLEX:
            with contextlib.suppress(RuntimeError):  # closed meanwhile
                self._executor.submit(self._restart)

    def _restart(self) -> None:
        """Where a grammar has ended the process: the next one need not wait for another."""
        with contextlib.suppress(ChildNotStarted):  # the next that is tried says so
            self._process.start()

    def close(self) -> None:
        """Kills the process and skips what waits."""
        for trial in self._trials.values():
            trial.future.cancel()
        self._executor.submit(self._process.close)
        self._executor.shutdown(wait=False)
