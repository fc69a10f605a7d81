"""The process that reads PDFs; see :mod:`.document_process`."""

import resource
import signal
import sys
from typing import Final

from ...sandbox.child import Growth, Ready, bounded_child, receive, send
from ..refusal import Refusal
from .document_process import DocumentJob, DocumentPages
from .documents import read_pdf, rehearse

MAX_MEMORY: Final = 3 << 29
"""Bytes of address space."""


def main() -> int:
    with bounded_child("stentor-document", MAX_MEMORY) as connection:
        rehearse()
        growth = Growth()
        # nothing more can be opened: the only number that is left is taken; 0 would forbid to wait for the socket
        resource.setrlimit(resource.RLIMIT_NOFILE, (1, 1))
        send(connection, Ready())
        while True:
            job = receive(connection, DocumentJob)
            answer = read(job, growth)
            del job
            send(connection, answer)
            del answer
    return 0


def read(job: DocumentJob, growth: Growth) -> DocumentPages:
    """The answer to one job."""
    try:
        pages = read_pdf(job.data, job.limits, _allow)
        return DocumentPages(pages, worn=growth.too_much)
    except Refusal as refusal:
        return DocumentPages(why=str(refusal), code=refusal.code, worn=growth.too_much)
    except MemoryError:
        return DocumentPages(why="the document needs too much memory to read", worn=True)
    finally:
        _allow(0)


def _allow(seconds: float) -> None:
    """Limits this process to ``seconds`` of CPU time from now on; the kernel kills it beyond. 0: no limit."""
    signal.setitimer(signal.ITIMER_PROF, seconds)


if __name__ == "__main__":
    sys.exit(main())
