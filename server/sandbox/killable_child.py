"""A child process that handles clients' input, and is killed when it is late, hangs or grows.

Its work may hold the interpreter's lock for hours, fill the memory or crash: templates of requests, grammars, audio
files. The child has a memory limit and communicates over one socket: see :mod:`.child`.
"""

import signal
import socket
import threading
import time
import weakref
from collections.abc import Callable
from math import inf
from typing import Final, TypeVar

from stentor.engine.processes.process import Child, spawn

_CLOSE_SECONDS: Final = 5.0
"""Time for a killed child to end, after which another may take its place."""
_START_SECONDS: Final = 60.0
_IDLE_SECONDS: Final = 2.0
"""Without any time on a CPU, after which a child with a job is taken for stopped. A busy machine gives it some."""

T = TypeVar("T")
Exchange = Callable[[socket.socket, float], T]
"""Sends a job and reads its result before the deadline, by ``time.monotonic()``."""


class ChildNotStarted(Exception):
    """No child can be started, or none was ready in time; the text says why."""


class ChildDied(Exception):
    """The child died with the job, and so did the one after it."""


class Starved(TimeoutError):
    """The child was late and had less than half of its time on a CPU: the machine is to blame, not the job."""


class _Stopped(Starved):
    """The child had no time on a CPU at all, and was killed."""


class Abandoned(Exception):
    """The result is no longer wanted."""


class KillableChild:
    """Owns at most one child: started for the first job, and again after one that it did not survive. Each kind of work
    has a subclass, with a method that does one job by :meth:`ask`.

    One thread does all the calls but :meth:`abandon`. This object must outlive the child.
    """

    def __init__(
        self,
        module: str,
        name: str,
        greet: Callable[[socket.socket, float], None],
        start_seconds: float = _START_SECONDS,
    ) -> None:
        """``module`` is run as a script; ``name`` is for messages. ``greet`` sends a new child its set-up and waits, up
        to a deadline in ``start_seconds``, until it is ready; it may raise :class:`ChildNotStarted`."""
        self._module = module
        self._name = name
        self._greet = greet
        self._start_seconds = start_seconds
        self._idle_seconds = _IDLE_SECONDS
        self._process: Child | None = None
        self._socket: socket.socket | None = None
        self._close: weakref.finalize[..., KillableChild] | None = None
        self._lock = threading.Lock()
        self._busy = False
        self._abandoned = False

    @property
    def pid(self) -> int | None:
        """Pid of the child, while there is one."""
        process = self._process
        return None if process is None else process.pid

    def ask(self, exchange: Exchange[T], seconds: float) -> T:
        """The result of a job with a limit of ``seconds``, without the start of a child. Blocks.

        If the child dies, or is stopped (SIGSTOP), another child gets the job, once: an earlier job may have harmed the
        first. Raises ``TimeoutError`` if the child is late (:class:`Starved`) or has used up its CPU time,
        :class:`ChildDied`, :class:`ChildNotStarted`, :class:`Abandoned`, and the errors of ``exchange``.
        """
        with self._lock:
            self._busy, self._abandoned = True, False
        try:
            for is_last in (False, True):
                self.start()
                began = time.monotonic()
                try:
                    # the last child may stand still until the deadline: no other would get the job
                    return self._try(exchange, began + seconds, inf if is_last else self._idle_seconds)
                except (ChildDied, _Stopped):
                    if is_last:
                        raise
                    seconds -= time.monotonic() - began
            raise AssertionError
        finally:
            with self._lock:
                self._busy = False

    def start(self) -> None:
        """Starts the child if there is none, before the next job. Raises ChildNotStarted."""
        if self._socket is not None:
            return
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = spawn(self._module, (theirs.fileno(),), name=self._name)
        except BaseException as error:
            ours.close()
            if isinstance(error, OSError):
                raise ChildNotStarted(f"no process can be started: {error.strerror}") from error
            raise
        with self._lock:
            self._socket, self._process = ours, process
        self._close = weakref.finalize(self, _kill, ours, process)
        try:
            self._greet(ours, time.monotonic() + self._start_seconds)
        except BaseException as error:
            self.close()
            self._check_wanted()
            if isinstance(error, OSError):
                raise ChildNotStarted("it ended at once, or was not ready in time") from error
            raise

    def abandon(self) -> None:
        """Ends the job that is being done; from any thread. :meth:`ask` raises :class:`Abandoned`."""
        with self._lock:
            if not self._busy:
                return
            self._abandoned = True
            if self._socket is not None:
                try:
                    self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads
                except OSError:
                    return  # it is being closed

    def close(self) -> None:
        """Kills the child, if there is one. May be called again; done when this object goes, too."""
        with self._lock:
            self._socket = self._process = None
        if self._close is not None:
            self._close()
            self._close = None

    def _try(self, exchange: Exchange[T], deadline: float, idle_seconds: float) -> T:
        assert self._socket is not None
        assert self._process is not None
        began, before = time.monotonic(), self._process.cpu_seconds
        watchdog = _Watchdog(self._process, idle_seconds)
        try:
            self._check_wanted()
            with watchdog:
                return exchange(self._socket, deadline)
        except OverflowError:  # the job cannot be encoded: nothing of it was sent
            raise
        except BaseException as error:
            used, passed = self._process.cpu_seconds - before, time.monotonic() - began
            starved = isinstance(error, TimeoutError) and used < passed / 2
            gone = isinstance(error, ConnectionResetError | BrokenPipeError)
            code = self._process.wait_blocking(_CLOSE_SECONDS) if gone else None
            self.close()  # its result would be taken for the next job's
            self._check_wanted()
            if watchdog.killed:
                raise _Stopped from error
            if code == -signal.SIGPROF:
                raise TimeoutError from error
            if isinstance(error, ConnectionError):
                raise ChildDied from error
            if starved:
                raise Starved from error
            raise

    def _check_wanted(self) -> None:
        with self._lock:
            if self._abandoned:
                raise Abandoned


class _Watchdog:
    """Kills a child that has no time on a CPU for ``seconds`` while the block runs, which wakes who waits for it."""

    def __init__(self, process: Child, seconds: float) -> None:
        self.killed = False
        self._process = process
        self._seconds = seconds
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> None:
        if self._seconds < inf:
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._seconds < inf:
            self._thread.join()

    def _watch(self) -> None:
        used = self._process.cpu_seconds
        while not self._done.wait(self._seconds):
            before, used = used, self._process.cpu_seconds
            if used == before > 0:  # 0: it has ended
                self.killed = True
                self._process.kill()
                return


def _kill(connection: socket.socket, process: Child) -> None:
    connection.close()
    process.close(_CLOSE_SECONDS)
