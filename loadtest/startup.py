"""``stentor bench start``: how long ``stentor serve`` takes from its first instruction to its first token.

    stentor bench start --rounds 5 -- --dtype bfloat16

*Cold*: the cache folder is empty, so that the CPU kernels are compiled, and the pages of the model's files are
dropped from the kernel's page cache, so that they are read from the disk. Code that other processes have mapped
(Python, torch) stays in memory. *Warm*: the same start again. Phases are what the server logs, each from its
beginning to that of the next, so that together they are the time until it is ready.
"""

import argparse
import asyncio
import contextlib
import ctypes
import mmap
import os
import tempfile
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec
from rich.console import Console

from stentor.engine.loading.download.hub import DEFAULT_MODEL, resolve_model
from stentor.engine.loading.errors import CheckpointError

from .client import STREAMED, StreamError, complete
from .record import Startup, StartupRound
from .report.figures import rounds_of, startup_table
from .server_process import ServerProcess, StartFailed
from .tool import at_least, make_parser, run_tool, table

NAME: Final = "startup"
PROMPT: Final = list(range(1, 17))
MIB: Final = 1 << 20
_BEGUN: Final = "…"


class _Line(msgspec.Struct):
    time: datetime
    message: str


_decode_line = msgspec.json.Decoder(_Line).decode


def main(argv: list[str]) -> int:
    parser = make_parser(
        "start",
        "Time from the start of `stentor serve` to its first token, cold and warm, by phase.",
        epilog="What follows -- goes to `stentor serve` as it is: stentor bench start -- --dtype bfloat16",
    )
    parser.add_argument(
        "--model", default=DEFAULT_MODEL, help="as of `stentor serve`, fetched before the clock starts (%(default)s)"
    )
    parser.add_argument("--rounds", type=at_least(1), default=5, metavar="N", help="starts of each kind (5)")
    parser.add_argument("--timeout", type=float, default=300.0, metavar="SECONDS", help="for one start (300)")
    parser.add_argument("serve", nargs="*", metavar="OPTION", help="for `stentor serve`, after --")
    return run_tool(parser, argv, measure, print_rounds, StartFailed, CheckpointError)


def measure(arguments: argparse.Namespace, about: dict[str, Any]) -> Startup:
    """Cold and warm starts in turn; the warm ones use the cache that the cold ones filled.

    Raises :class:`StartFailed`.
    """
    model = resolve_model(arguments.model)
    rounds: list[StartupRound] = []
    for number in range(arguments.rounds):
        with tempfile.TemporaryDirectory(prefix="stentor-startup-") as cache:
            environment = {"XDG_CACHE_HOME": cache}
            for cold in (True, False):
                kind = "cold" if cold else "warm"
                with Console(stderr=True).status(f"round {number + 1} of {arguments.rounds}, {kind}"):
                    rounds.append(start_once(model, arguments.serve, cold, environment, arguments.timeout))
    return Startup(name=model.name, rounds=rounds, **about)


def read_phases(log: str, began_at: float, ready: float) -> dict[str, float]:
    """Seconds from each phase's first line to that of the next, the last one to ``ready``.

    Args:
        log: lines of JSON among others; one whose message ends in an ellipsis begins a phase.
        began_at: ``time.time()`` of the start; what comes before the first phase is ``starting processes``.
        ready: seconds from then to the end of the last phase.
    """
    begins: dict[str, float] = {"starting processes": 0.0}
    for text in log.splitlines():
        with contextlib.suppress(msgspec.DecodeError):
            line = _decode_line(text)
            if line.message.endswith(_BEGUN):
                begins.setdefault(line.message.removesuffix(_BEGUN), line.time.timestamp() - began_at)
    ends = [*list(begins.values())[1:], ready]
    return {name: end - begin for (name, begin), end in zip(begins.items(), ends, strict=True)}


def start_once(
    model: Path, serve: Sequence[str], cold: bool, environment: Mapping[str, str], timeout: float
) -> StartupRound:
    """One start, and its first token. Raises :class:`StartFailed`, with what the server printed."""
    files = weight_files(model)
    if cold:
        drop_pages(files)
    resident = resident_bytes(files)
    options = [str(model), "--served-model-name", NAME, "--log-format", "json", *serve]
    server = ServerProcess(options, environment=environment)
    server.launch(server.command, env=server.environment)
    body = {**STREAMED, "model": NAME, "prompt": PROMPT, "max_tokens": 2, "temperature": 0, "ignore_eos": True}
    try:
        listening = server.wait_until("/ping", timeout)
        ready = server.wait_until("/health", timeout)
        answer = asyncio.run(complete(server.port, body))
        return StartupRound(
            cold,
            read_phases(server.output(), server.began_at, ready),
            ready,
            listening_s=listening,
            first_token_s=answer.arrivals[0] - server.began,
            model_bytes_in_memory=resident,
        )
    except (StartFailed, StreamError) as error:
        raise StartFailed(f"the server {error}:\n{server.output()}") from None
    finally:
        server.end()


def weight_files(model: Path) -> list[Path]:
    """What a model's file is, or what its folder holds, of weights."""
    return [model] if model.is_file() else sorted([*model.rglob("*.gguf"), *model.rglob("*.safetensors")])


def drop_pages(files: Sequence[Path]) -> None:
    """Asks the kernel to forget its copies of these files; pages that a process has mapped stay."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # dirty pages cannot be dropped
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def resident_bytes(files: Sequence[Path]) -> int:
    """Bytes of these files that lie in the page cache (mincore(2))."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    total = 0
    for file in files:
        if not (length := file.stat().st_size):
            continue
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), length, access=mmap.ACCESS_COPY) as pages:
            first = ctypes.c_char.from_buffer(pages)
            found = ctypes.create_string_buffer(-(-length // mmap.PAGESIZE))
            failed = libc.mincore(ctypes.addressof(first), length, found)
            del first  # the mapping cannot be closed while it is looked at
            if failed:
                raise OSError(ctypes.get_errno(), f"mincore on {file}: {os.strerror(ctypes.get_errno())}")
            total += mmap.PAGESIZE * sum(page & 1 for page in found.raw)
    return total


def print_rounds(console: Console, record: Startup) -> None:
    columns, rows = startup_table(record)
    console.print(table(columns, rows, title="a start"))
    if most := max(each.model_bytes_in_memory for each in rounds_of(record)["cold"]):
        stayed = "MiB of the model stayed in memory before a cold start: another process has it mapped"
        console.print(f"{most / MIB:,.0f} {stayed}")
