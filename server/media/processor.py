"""Processes media to a model's inputs, in child processes, with a cache by digest.

::

    made = await processor.process(Wanted("image", data, param), owner)     # BadRequest names the field
    made.payload                                                  # tensors, for the model's encoder
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

import anyio
import anyio.to_thread
import msgspec

from stentor.engine.model_config.towers.media_spec import Modality
from stentor.protocols.common.errors import BadRequest

from ..config.limits import ProcessorLimits
from ..overload.process_pool import ProcessPool
from .decoding.decoded import DecodedLimits
from .helpers import MediaUnavailable, run_in
from .metrics import MediaMetrics
from .processed_cache import Names, ProcessedCache, ProcessedMedia, content_digest, media_digest
from .processors.model_files import Source
from .processors.processor_options import NO_OPTIONS, PROCESSOR_FIELD, UNKNOWN_OPTION
from .processors.processor_process import Described, MediaRefused, NoProcessor, ProcessorJob, ProcessorProcess

logger = logging.getLogger(__name__)

_INLINE_BYTES: Final = 64 << 10
"""More are digested in a thread."""
_NAMES: Final = 1 << 16
"""Remembered names of media, for all clients together."""


class Wanted(msgspec.Struct, frozen=True):
    """One piece of media of a request, as the client sent it."""

    modality: Modality
    data: bytes | None
    """None: the client sent only its name."""
    param: str
    """The field that holds it, for errors."""
    uuid: str = ""
    """The client's own name for it."""
    options: dict[str, object] = msgspec.field(default_factory=dict)
    """How to look at it; see :mod:`.processors.processor_options`."""
    alone: bool = True
    """Whether it is the only one of its modality in the conversation."""


class MediaProcessor:
    """The processor of one model, for one event loop. Must be closed.

    A fixed number of media is processed at a time, each in its own process; others wait in a bounded queue, and owners
    take turns. Equal concurrent requests are processed once.
    """

    def __init__(
        self,
        source: Source,
        limits: ProcessorLimits,
        metrics: MediaMetrics,
        decoded: DecodedLimits,
        defaults: Mapping[str, object] = NO_OPTIONS,
    ) -> None:
        """``source``: the model's folder, or its replacement. ``defaults``: options that hold where a request has
        none."""
        self._pool = ProcessPool(
            lambda: ProcessorProcess(source, decoded, limits.timeout, defaults),
            processes=limits.processes,
            max_waiting=limits.max_waiting,
            max_waiting_bytes=limits.max_waiting_bytes,
            thread_name="media",
        )
        self._metrics = metrics
        self._cache = ProcessedCache(limits.cache_bytes)
        self._names: Names[tuple[str, Modality, str]] = Names(_NAMES)
        self._running: dict[bytes, asyncio.Future[ProcessedMedia | None]] = {}
        """By digest; the result is None if the caller has gone."""
        self._described: Described | None = None
        self._missing = False
        """Whether the model's processor cannot be loaded: that has been logged, and is not tried again."""
        self._describing = anyio.Lock()

    @property
    def pids(self) -> list[int]:
        """Pids of its processes."""
        return self._pool.pids

    @property
    def cached_bytes(self) -> int:
        return self._cache.bytes

    def forget(self) -> None:
        """Forget processed media, and clients' names of media."""
        self._cache.clear()
        self._names.clear()

    async def describe(self) -> Described:
        """The model's media. Starts a process if there is none, which takes seconds. Raises as
        :func:`.helpers.run_in`."""
        if self._described is None:
            async with self._describing:
                if self._described is None:
                    self._described = await self._describe()
        return self._described

    async def _describe(self) -> Described:
        if self._missing:
            raise MediaUnavailable
        try:
            return await run_in(self._pool, _described, 0)
        except MediaUnavailable as error:
            self._missing = isinstance(error.__context__, NoProcessor)
            raise

    async def warm_up(self) -> None:
        """Starts the first process before the first picture, and logs the supported media."""
        try:
            found = await self.describe()
        except MediaUnavailable:
            return  # it has been logged
        taken = ", ".join(found.written) or "nothing"
        mebibytes = found.resident_bytes / (1 << 20)
        logger.info("media: the model takes %s; its processor has a process of %.0f MiB", taken, mebibytes)
        for modality, why in found.missing.items():
            logger.warning("media: no %s is taken: %s", modality, why)

    async def process(self, wanted: Wanted, owner: str) -> ProcessedMedia:
        """The processed media. ``owner`` is the sender, whose names of media are private.

        Raises BadRequest naming the field, :class:`..common.errors.Overloaded` if the queue is full, and
        :class:`.helpers.MediaUnavailable`.
        """
        self._metrics.queries.inc()
        described = await self.describe()
        named = (owner, wanted.modality, wanted.uuid)
        if wanted.data is None:
            content = self._names.get(named)
        else:
            content = await _digest(wanted.data)
        alone = wanted.alone or not described.by_company
        digest = b"" if content is None else media_digest(wanted.modality, content, wanted.options, alone=alone)
        try:
            made = await self._made(digest, wanted, alone)
        except MediaRefused as refused:
            field = PROCESSOR_FIELD if refused.code == UNKNOWN_OPTION else wanted.param
            raise BadRequest(f"`{field}`: {refused}.", field, refused.code) from None
        if wanted.uuid and content is not None:
            self._names.put(named, content)
        return made

    async def _made(self, digest: bytes, wanted: Wanted, alone: bool) -> ProcessedMedia:
        while True:
            if (found := self._cache.get(digest)) is not None:
                self._metrics.hits.inc()
                return found
            running = self._running.get(digest)
            if running is None:
                return await self._make(digest, wanted, alone)
            if (joined := await asyncio.shield(running)) is not None:
                self._metrics.hits.inc()
                return joined

    async def _make(self, digest: bytes, wanted: Wanted, alone: bool) -> ProcessedMedia:
        data = wanted.data
        if data is None:
            raise MediaRefused("nothing is kept under this uuid; send the media itself with it", "media_not_found")
        if not data:
            raise MediaRefused("it is empty")
        running = self._running[digest] = asyncio.get_running_loop().create_future()
        job = ProcessorJob(wanted.modality, len(data), wanted.options, alone)
        try:
            answer, payload = await run_in(self._pool, lambda process: process.process(job, data), len(data))
        except MediaRefused as refused:
            running.set_exception(refused)
            running.exception()  # it may have no waiter
            raise
        except BaseException:
            running.set_result(None)
            raise
        finally:
            del self._running[digest]
        described = await self.describe()
        written = described.written[wanted.modality]
        made = ProcessedMedia(
            wanted.modality, digest, payload, written, answer.replacement, answer.grid, answer.interval
        )
        self._cache.put(made)
        running.set_result(made)
        return made

    def close(self) -> None:
        """Ends the processes and their jobs; waiters get :class:`.helpers.MediaUnavailable`. May be called again."""
        self._pool.close()


def _described(process: ProcessorProcess) -> Described:
    process.start()
    assert process.described is not None
    return process.described


async def _digest(data: bytes) -> bytes:
    if len(data) <= _INLINE_BYTES:
        return content_digest(data)
    return await anyio.to_thread.run_sync(content_digest, data)
