"""Reads clients' PDFs in a separate process, off the event loop."""

from collections.abc import Sequence

from ..config.limits import ProcessorLimits
from ..overload.process_pool import ProcessPool
from .decoding.decoded import DecodedLimits
from .decoding.document_process import DocumentProcess
from .decoding.documents import Page
from .helpers import run_in


class DocumentReader:
    """For the event loop that it is used from. It must be closed. The process is started for the first document."""

    def __init__(self, limits: ProcessorLimits, decoded: DecodedLimits) -> None:
        self._pool = ProcessPool(
            lambda: DocumentProcess(decoded),
            processes=1,
            max_waiting=limits.max_waiting,
            max_waiting_bytes=limits.max_waiting_bytes,
            thread_name="documents",
        )

    @property
    def pids(self) -> list[int]:
        """Pids of its processes."""
        return self._pool.pids

    async def read(self, data: bytes) -> Sequence[Page]:
        """The pages of a PDF. Raises :class:`.refusal.Refusal`, and as :func:`.helpers.run_in` does."""
        return await run_in(self._pool, lambda process: process.read(data), len(data))

    def close(self) -> None:
        """Ends the process and its job. May be called again."""
        self._pool.close()
