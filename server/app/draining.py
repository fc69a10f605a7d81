"""From a signal to the end: no new requests, time for the running ones, a last word for those that need longer."""

import logging
import signal
from collections.abc import Awaitable, Callable
from typing import Final

import anyio

from ..common.exit_codes import DONE, cut_off_by
from ..state.admission_control import AdmissionControl

logger = logging.getLogger(__name__)

_LAST_WORDS_SECONDS: Final = 1.0
"""Time for writing the errors of requests that are cut off, and again for reading them."""


async def drain_on_signals(
    admission: AdmissionControl,
    close: Callable[[], Awaitable[None]],
    timeout: float,
    end: Callable[[int], None],
    asleep: Callable[[], bool],
) -> None:
    """Waits for SIGTERM or SIGINT; the first drains for ``timeout`` seconds, the second ends at once.

    ``close`` flushes connections; then ``end`` is called with the exit code. Requests for generation are not waited for
    while ``asleep``, nor once it becomes true (:meth:`.AdmissionControl.look_again`).
    """
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with anyio.create_task_group() as tasks:
            draining = anyio.CancelScope()

            async def drain(number: int) -> None:
                with draining:
                    code = await _drain(admission, timeout, number, asleep)
                    await _close(close, None if code == DONE else _LAST_WORDS_SECONDS)
                    end(code)

            async for number in signals:
                if not admission.draining:
                    admission.draining = True
                    tasks.start_soon(drain, number)
                elif not draining.cancel_called:
                    draining.cancel()
                    await _cut_off(admission)
                    await _close(close, _LAST_WORDS_SECONDS)
                    end(cut_off_by(number))


async def _close(close: Callable[[], Awaitable[None]], seconds: float | None) -> None:
    """Clients that do not read their last words in ``seconds`` have had time enough."""
    with anyio.move_on_after(seconds):
        await close()


async def _drain(admission: AdmissionControl, timeout: float, number: int, asleep: Callable[[], bool]) -> int:
    """Returns the exit code."""
    logger.info("draining: %d requests have %g s to finish", admission.live_requests, timeout)
    until = anyio.current_time() + timeout
    if await admission.drained(timeout, unless=lambda: asleep() and admission.generates):
        return DONE
    if asleep() and admission.generates:
        logger.warning("the server sleeps: the requests that wait for it were cut off")
        admission.cut_off(transfers=False)
        await admission.drained(until - anyio.current_time())
    await _cut_off(admission)
    return cut_off_by(number)


async def _cut_off(admission: AdmissionControl) -> None:
    if admission.live_requests:
        logger.warning("%d requests were cut off", admission.live_requests)
        admission.cut_off()
        await admission.drained(_LAST_WORDS_SECONDS)
