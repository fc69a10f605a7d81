"""The operator's control of running engines: pause, sleep, other weights, resets, profiles.

A sleeping server is paused, too; waking resumes it::

    running ── pause ──► paused ── sleep ──► asleep, of levels 0 to 2
       ▲ ◄──── resume ─────┘                    │
       └───────────── wake all parts ◄──────────┘
"""

import logging
from collections.abc import Collection
from typing import Final, Literal, Protocol

import anyio

from stentor.engine.client.controls import ControlFailed, on_all
from stentor.protocols.common.errors import BadRequest
from stentor.protocols.ipc.config import Weights

from ..config.models import ModelConfig
from .admission_control import AdmissionControl

logger = logging.getLogger(__name__)

PauseMode = Literal["abort", "wait", "keep"]
SleepLevel = Literal[0, 1, 2]
"""0: a pause. 1: workers end, prepared weights are kept. 2: nothing is kept."""
Part = Literal["scheduling", "weights", "kv_cache"]
"""What a client can wake by itself, in vLLM's words."""
_UNNAMED: Final = ModelConfig().weight_version
_ABORT_SECONDS: Final = 5.0
"""Time for aborted requests to get their error; a client that does not read is not waited for."""


class Controls(Protocol):
    """The controls of one model's engine (:class:`stentor.engine.client.controls.Controls`)."""

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def sleep(self, *, discard: bool = False) -> None: ...

    async def wake(self) -> None: ...

    async def reload(self, weights: Weights) -> None: ...

    async def reset_prefix_cache(self, *, recompute: bool = False) -> None: ...

    async def reset_encoder_cache(self) -> None: ...

    async def start_profile(self) -> None: ...

    async def stop_profile(self) -> None: ...


class EngineControl:
    """Owned by the server process; acts on the engines of all models.

    Each call sets the wanted state at once, then tells the engines the difference to what they were told. Calls may
    come in any order, and while others wait.
    """

    def __init__(
        self, admission: AdmissionControl, controls: Collection[Controls], main: Controls, version: str
    ) -> None:
        """``main`` is that of the main model, whose weights may be replaced; ``version`` is that of the first ones."""
        self._admission = admission
        self._controls = tuple(controls)
        self._main = main
        self.weight_version = version
        self._loaded_version = version
        """Of the last weights that a worker has loaded."""
        self.weight_updates = 0
        self._mode: PauseMode | None = None
        self._level: SleepLevel | None = None
        self._asleep: set[Part] = set()
        """Parts that have not been woken."""
        self._wakes = 0
        """Calls that woke the server; a sleep that a wake has overtaken does not go deeper."""
        self._turn = anyio.Lock()
        """Held while engines are told."""
        self._told_pause = False
        self._told_level: SleepLevel = 0
        self._updating = anyio.Lock()

    @property
    def weight_version(self) -> str:
        """Version of the main model's weights."""
        return self._version

    @weight_version.setter
    def weight_version(self, version: str) -> None:
        self._version = self._admission.weight_version = version
        named = version.encode("latin-1", "replace")
        self._admission.weight_header = None if version == _UNNAMED else (b"x-weight-version", named)

    @property
    def paused(self) -> bool:
        return self._mode is not None

    @property
    def level(self) -> SleepLevel | None:
        """Level of the sleep; None while awake."""
        return self._level

    @property
    def no_request_ends(self) -> bool:
        """Whether a sleep keeps requests from ending until the server is woken; not while it waits for them to end."""
        return self._level is not None and self._halts

    async def pause(self, mode: PauseMode, *, clear_cache: bool) -> bool:
        """No engine runs a step from its return until :meth:`resume`; False if that was called meanwhile.

        ``abort`` and ``wait`` refuse new requests; live ones are aborted, or finish first. ``keep`` lets both wait.
        Raises :class:`BadRequest` for ``wait`` while no request can finish.
        """
        if mode == "wait" and self._level:
            raise _asleep("No request can finish")
        self._set_mode(mode)
        if mode == "abort":
            self._admission.abort()
            with anyio.move_on_after(_ABORT_SECONDS):
                await self._generated(mode)
        elif mode == "wait":
            await self._tell()  # paused requests finish, too
            await self._generated(mode)
        await self._tell()
        if self._mode is None:
            return False
        if clear_cache:
            await self.reset_prefix_cache()
        return True

    async def resume(self) -> None:
        """Run steps and accept requests again. Raises :class:`BadRequest` while there are no workers."""
        if self._level:
            raise _asleep("No step can run")
        await self._wake()

    async def sleep(self, level: SleepLevel, mode: PauseMode) -> bool:
        """Pause; at levels 1 and 2 also end the workers, which frees the device's memory and empties the prefix cache.

        Kept requests continue after :meth:`wake`. Returns False if the server was resumed or woken meanwhile. The mode
        of a later call replaces that of one that still waits.
        """
        wakes = self._wakes
        if not self._level:
            if self._level is None:
                self._level, self._asleep = 0, {"scheduling"}
            await self.pause(mode, clear_cache=False)
            await self._generated("wait")  # if a later call chose that mode: no request can finish once workers end
        reached = self.level
        if self._wakes == wakes and reached is not None and level > reached:
            self._level, self._asleep = level, {"weights", "kv_cache"}
        await self._tell()
        return self.level is not None

    async def wake(self, parts: Collection[Part]) -> bool:
        """Wake these parts, or all if none is named; returns whether the server is awake.

        Workers start once weights and KV cache are both awake, and are ready at its return.
        """
        if self._level is not None:
            self._asleep -= set(parts) or self._asleep
            if self._asleep:
                return False
            await self._wake()
        else:
            await self._tell()  # another call may be waking them
        return self._level is None

    async def update_weights(
        self, weights: Weights, version: str, mode: PauseMode, *, keep_pause: bool = False
    ) -> None:
        """Have the main model's engine load other weights; returns when it can run steps with them.

        ``abort`` and ``wait`` end or finish live requests before, and refuse new ones meanwhile; with ``keep`` they
        go on with the new weights after the tokens that they have. The prefix cache is empty afterwards. A pause that
        was there before, or is wanted (``keep_pause``), stays. While the server sleeps, the weights are only noted.

        Raises :class:`stentor.engine.client.controls.ControlFailed`; the former weights then stay in use.
        """
        async with self._updating:
            if self._level:
                await self._reload(weights, version)
                return
            before = self._mode
            if mode != "keep" or keep_pause:
                await self.pause(mode, clear_cache=False)
            try:
                await self._reload(weights, version)
            finally:
                if before is None and self._mode == mode and not keep_pause:
                    await self._wake()

    async def _reload(self, weights: Weights, version: str) -> None:
        await self._main.reload(weights)
        self.weight_version = version
        if not self._level:
            self._loaded_version = version
        self.weight_updates += 1

    async def start_profile(self) -> None:
        """Trace the steps of all models. Raises :class:`stentor.engine.client.controls.ControlFailed`."""
        await on_all(self._controls, lambda engine: engine.start_profile())

    async def stop_profile(self) -> None:
        """Write the traces. Raises :class:`stentor.engine.client.controls.ControlFailed`."""
        await on_all(self._controls, lambda engine: engine.stop_profile())

    async def reset_encoder_cache(self) -> None:
        """Forget encoded media that no request holds."""
        await on_all(self._controls, lambda engine: engine.reset_encoder_cache())

    async def _wake(self) -> None:
        self._level = None
        self._wakes += 1
        self._set_mode(None)
        await self._tell()

    def _set_mode(self, mode: PauseMode | None) -> None:
        self._mode = mode
        self._admission.paused = mode in ("abort", "wait")
        self._admission.look_again()

    async def _generated(self, mode: PauseMode) -> None:
        """Wait for the last live request, or until another mode is wanted."""
        await self._admission.generated(unless=lambda: self._mode != mode)

    @property
    def _halts(self) -> bool:
        """Whether steps should stop."""
        return self._mode is not None and not (self._mode == "wait" and self._admission.generates)

    async def _tell(self) -> None:
        """Bring the engines to the wanted state of now.

        Raises :class:`stentor.engine.client.controls.ControlFailed` if one is awake with its former weights, because it
        could not load others.
        """
        failure: ControlFailed | None = None
        async with self._turn:
            if self._halts and not self._told_pause:
                await on_all(self._controls, lambda engine: engine.pause())
                self._told_pause = True
            level = self._level or 0
            if level > self._told_level:
                await on_all(self._controls, lambda engine: engine.sleep(discard=level == 2))
                self._told_level = level
                logger.info("the engines sleep: no worker is left until they are woken (level %d)", level)
            elif self._told_level and not level:
                try:
                    await on_all(self._controls, lambda engine: engine.wake())
                except ControlFailed as failed:
                    failure = failed
                    self.weight_version = self._loaded_version
                self._loaded_version = self.weight_version
                self._told_level = 0
                logger.info("the engines are awake")
            if self._told_pause and not self._halts:
                await on_all(self._controls, lambda engine: engine.resume())
                self._told_pause = False
        if failure is not None:
            raise failure

    async def reset_prefix_cache(self, *, recompute: bool = False) -> None:
        """Forgets all cached prefixes. With ``recompute``, running requests also recompute their tokens."""
        await on_all(self._controls, lambda engine: engine.reset_prefix_cache(recompute=recompute))

    def abort(self, request_ids: Collection[str]) -> int:
        """Ends those requests, or without ids all; how many there were."""
        return self._admission.abort(request_ids or None)


def _asleep(what: str) -> BadRequest:
    return BadRequest(f"{what} while the server is asleep: wake it with POST /wake_up.", code="asleep")
