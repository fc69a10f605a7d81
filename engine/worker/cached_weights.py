"""Prepared weights in a memory file that outlives the worker, so that its successors only map them."""

import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import torch

from stentor.kernels import native
from stentor.kernels.native.memory import HUGE, SharedHuge, empty_huge
from stentor.protocols.ipc.config import WorkerConfig

from ..layers.linear.layer_context import LayerContext
from ..loading.checkpoint import Checkpoint
from ..sharing.weight_cache import DATA_START, WeightHeader, clear, read_header, write_header

logger = logging.getLogger(__name__)

_VERSION = 1
"""Version of the layout; raise it when the same model would be laid out differently."""
_SMALL, _PAGE = 64, 4096
_SLACK = 1 << 30
"""Address space for data other than weights, and for gaps."""
_TRIED = 64 << 20
"""Bytes in large pages after which it is judged whether they come fast enough."""
_QUICK = 1 << 30
"""Bytes a second of them that are fast enough: small pages come at twice that."""
_STEP = 32 << 20
"""Bytes that get large pages at a time."""
_REST = 3
"""Seconds of rest behind each large page that comes later, for each second that it took."""


class CachedWeights:
    """Allocates memory for weights in the order in which a model asks, in the file if possible.

    The file is as fast as private memory only in large pages. If the system provides none, the model gets private
    memory, and nothing is kept. If it provides them slowly, as where it has to move others' pages or a host has to
    provide memory, the model begins in small ones, and they are joined while it serves.
    """

    def __init__(self, fd: int, key: str, expected: Callable[[], int]) -> None:
        """Look for weights with this key; without them call :meth:`begin` first. Raises OSError.

        ``expected`` returns the approximate size in bytes of weights that are not there.
        """
        self._fd = fd
        self._key = key
        self._expected = expected
        self._offset = self._enlarged = 0
        self._seconds = 0.0
        self._slow = False
        self._sizes = hashlib.sha256()
        self._memory: SharedHuge | None = None
        self.later: threading.Thread | None = None
        """Joins small pages to large ones; None: there is nothing to join."""
        self.found: WeightHeader | None = None
        """The header of weights that are there; None if they must be loaded."""
        header = read_header(fd)
        if header is not None and header.key == key:
            self._memory = SharedHuge(fd, DATA_START, header.nbytes, writable=False)
            self.found = header

    def begin(self) -> None:
        """Empty the file for weights to be loaded. Raises OSError."""
        expected = self._expected()
        capacity = _whole_pages(expected + expected // 8 + _SLACK)
        clear(self._fd, capacity)
        self._memory = SharedHuge(self._fd, DATA_START, capacity, writable=True)
        self._offset = self._enlarged = 0
        self._seconds, self._slow = 0.0, False
        self._sizes = hashlib.sha256()
        self.found = None

    @property
    def filled(self) -> bool:
        """Whether the memory holds the weights already and is read-only."""
        return self.found is not None

    def take(self, nbytes: int) -> torch.Tensor:
        """uint8 [nbytes]: zeros, or the stored weights. Raises MemoryError."""
        self._sizes.update(f"{nbytes} ".encode())
        align = _PAGE if nbytes >= _PAGE else _SMALL
        start = -(-self._offset // align) * align
        end = start + nbytes
        if self._memory is not None and not self.filled and not self._enlarge(end):
            self._give_up()
        if self._memory is None or end > self._memory.nbytes:
            return empty_huge(nbytes)
        self._offset = end
        return self._memory.tensor(start, nbytes)

    @property
    def agrees(self) -> bool:
        """Whether the model that took its memory has the layout of the stored weights."""
        return self.found is not None and self.found.layout == self._sizes.hexdigest()

    def keep(self, max_model_len: int, num_blocks: int, num_states: int = 0) -> None:
        """Make loaded weights read-only and available to other workers, and join the small pages that there are: a
        worker before this one may have ended before it was through."""
        if self._memory is None:
            return
        large = 0
        if self.found is None:
            large, nbytes = self._enlarged, _whole_pages(self._offset)
            self._memory.protect()
            os.ftruncate(self._fd, DATA_START + nbytes)
            layout = self._sizes.hexdigest()
            write_header(self._fd, WeightHeader(self._key, layout, nbytes, max_model_len, num_blocks, num_states))
        else:
            nbytes = self.found.nbytes
        if large < nbytes:
            given = self._memory, large, nbytes
            self.later = threading.Thread(target=_join, args=given, name="large pages", daemon=True)
            self.later.start()

    def _enlarge(self, end: int) -> bool:
        assert self._memory is not None
        wanted = _whole_pages(end)
        if wanted > self._memory.nbytes:
            return False
        while wanted > self._enlarged and not self._slow:
            count, began = min(_STEP, wanted - self._enlarged), time.perf_counter()
            if not self._memory.enlarge(self._enlarged, count):
                return False
            self._enlarged += count
            self._seconds += time.perf_counter() - began
            self._slow = self._enlarged >= _TRIED and self._seconds > self._enlarged / _QUICK
            if self._slow:
                logger.info("large pages for weights come slowly here: the others come while requests run")
        return True

    def _give_up(self) -> None:
        """Continue in private memory; memory handed out before stays valid."""
        logger.info("prepared weights are not kept: no large pages for shared memory (MADV_COLLAPSE, Linux 6.1)")
        self._memory = None
        if not self._offset:
            os.ftruncate(self._fd, 0)


def _join(memory: SharedHuge, begin: int, end: int) -> None:
    """Give bytes [begin, end) large pages one by one, without taking the processors from requests."""
    for page in range(begin, end, HUGE):
        began = time.perf_counter()
        if not memory.join(page, HUGE):
            return
        time.sleep(_REST * (time.perf_counter() - began))


def open_cached(
    checkpoint: Checkpoint,
    config: WorkerConfig,
    context: LayerContext,
    weights_fd: int | None,
    expected: Callable[[], int],
    beside: Sequence[Path] = (),
) -> CachedWeights | None:
    """The cache for packed weights; None if they cannot outlive this worker.

    ``expected``: see :class:`CachedWeights`. ``beside``: files read besides those of the checkpoint.
    """
    if weights_fd is None or not context.packed:
        return None
    try:
        kept = CachedWeights(weights_fd, weights_key(checkpoint, config, context.dtype, beside), expected)
        if not kept.filled:
            kept.begin()
    except OSError as error:
        logger.warning("prepared weights are not kept: %s", error)
        return None
    return kept


def weights_key(checkpoint: Checkpoint, config: WorkerConfig, dtype: torch.dtype, beside: Sequence[Path] = ()) -> str:
    """A digest of all that prepared weights depend on: files, options, and the kernels that read them."""
    library = native.library()
    parts = (
        _VERSION,
        str(torch.__version__),
        library.path.name if library else None,
        str(dtype),
        config,
        checkpoint.config,
        checkpoint.quantized,
        [_stamp(file) for file in (*checkpoint.files, *beside)],
    )
    return hashlib.sha256(msgspec.json.encode(parts, order="deterministic", enc_hook=_written)).hexdigest()


def _written(value: object) -> str:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} has no place in a key")


def _stamp(file: Path) -> tuple[str, int, int, int]:
    found = file.stat()
    return str(file), found.st_ino, found.st_size, found.st_mtime_ns


def _whole_pages(nbytes: int) -> int:
    return -(-nbytes // HUGE) * HUGE
