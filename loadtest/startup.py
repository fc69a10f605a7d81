"""``stentor bench startup``: how long ``stentor serve`` takes from its first instruction to its first token.

    stentor bench startup --rounds 5 -- --dtype bfloat16

*Cold*: the cache folder is empty, so that the CPU kernels are compiled, and the pages of the model's files are
dropped from the kernel's page cache, so that they are read from the disk. Code that other processes have mapped
(Python, torch) stays in memory. *Warm*: the same start again. Phases are what the server logs, each from its
beginning to that of the next, so that together they are the time until it is ready.
"""

import argparse
import asyncio
import ctypes
import mmap
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.hub import DEFAULT_MODEL, resolve_model

from .offline import wide_console
from .record import Startup, StartupRound, now_iso, save_record
from .serving.machine import describe_machine
from .timed_start import StartFailed, TimedStart
from .worker_options import at_least

MIB = 1 << 20


def main(argv: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if argv is None else list(argv)
    arguments = _parser().parse_args(given)
    console = Console(stderr=True)
    started = now_iso()
    try:
        model = resolve_model(arguments.model)
        rounds = measure(model, weight_files(model), arguments, console)
    except (StartFailed, CheckpointError) as error:
        print(f"stentor bench startup: {error}", file=sys.stderr)
        return 1
    print_rounds(wide_console(), rounds)
    if arguments.save:
        record = Startup(
            name=model.name,
            started_at=started,
            command=["stentor", "bench", "startup", *given],
            machine=describe_machine(),
            rounds=rounds,
        )
        arguments.save.parent.mkdir(parents=True, exist_ok=True)
        save_record(record, arguments.save)
    return 0


def measure(model: Path, files: Sequence[Path], arguments: argparse.Namespace, console: Console) -> list[StartupRound]:
    """Cold and warm starts in turn; the warm ones use the cache that the cold ones filled.

    Raises :class:`.timed_start.StartFailed`.
    """
    rounds: list[StartupRound] = []
    for number in range(arguments.rounds):
        with tempfile.TemporaryDirectory(prefix="stentor-startup-") as cache:
            for cold, counted in starts_of_round(arguments.only):
                with console.status(f"round {number + 1} of {arguments.rounds}, {'cold' if cold else 'warm'}"):
                    measured = _start_once(model, files, arguments.serve, cold, cache, arguments.timeout)
                if counted:
                    rounds.append(measured)
    return rounds


def starts_of_round(only: str | None) -> list[tuple[bool, bool]]:
    """(cold, counted) of each start of a round: one that is warm needs a cold one before it."""
    return [(True, only != "warm")] + ([(False, True)] if only != "cold" else [])


def _start_once(
    model: Path, files: Sequence[Path], serve: Sequence[str], cold: bool, cache: str, timeout: float
) -> StartupRound:
    if cold:
        drop_pages(files)
    resident = resident_bytes(files)
    with TimedStart(model, serve, {"XDG_CACHE_HOME": cache}, timeout) as start:
        listening = start.wait_until_listening()
        ready = start.wait_until_ready()
        first_token = asyncio.run(start.first_token())
        return StartupRound(
            cold,
            start.phases(ready),
            ready,
            listening_s=listening,
            first_token_s=first_token,
            memory=start.memory(),
            model_bytes_in_memory=resident,
        )


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
        length = file.stat().st_size
        if not length:
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


def print_rounds(console: Console, rounds: Sequence[StartupRound]) -> None:
    groups = {name: [each for each in rounds if each.cold == cold] for name, cold in (("cold", True), ("warm", False))}
    groups = {name: group for name, group in groups.items() if group}
    table = Table(title="seconds of a start, medians", title_justify="left")
    table.add_column("")
    for name, group in groups.items():
        table.add_column(f"{name} ({len(group)})", justify="right")
    milestones = {
        "until it listens": lambda each: each.listening_s,
        "until it is ready": lambda each: each.ready_s,
        "until its first token": lambda each: each.first_token_s,
    }
    for title, read in milestones.items():
        table.add_row(title, *(f"{statistics.median(map(read, group)):.2f}" for group in groups.values()))
    table.add_section()
    for phase in dict.fromkeys(phase for each in rounds for phase in each.phases):
        cells = ([each.phases.get(phase, 0.0) for each in group] for group in groups.values())
        table.add_row(phase, *(f"{statistics.median(values):.2f}" for values in cells))
    console.print(table)
    sizes = Table(title="MiB once it has answered", title_justify="left")
    sizes.add_column("process")
    for name in groups:
        sizes.add_column(name, justify="right")
    processes = dict.fromkeys(process for each in rounds for process in each.memory)
    for process in processes:
        cells = ([each.memory.get(process, 0) for each in group] for group in groups.values())
        sizes.add_row(process, *(f"{statistics.median(values) / MIB:,.0f}" for values in cells))
    totals = ([sum(each.memory.values()) for each in group] for group in groups.values())
    sizes.add_section()
    sizes.add_row("all", *(f"{statistics.median(values) / MIB:,.0f}" for values in totals))
    console.print(sizes)
    if any(each.cold and each.model_bytes_in_memory for each in rounds):
        most = max(each.model_bytes_in_memory for each in rounds if each.cold)
        console.print(
            f"{most / MIB:,.0f} MiB of the model stayed in memory before a cold start: another process has it mapped"
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stentor bench startup",
        description="Time from the start of `stentor serve` to its first token, cold and warm, by phase.",
        epilog="What follows -- goes to `stentor serve` as it is: stentor bench startup -- --dtype bfloat16",
    )
    parser.add_argument(
        "--model", default=DEFAULT_MODEL, help="as of `stentor serve`, fetched before the clock starts (%(default)s)"
    )
    parser.add_argument("--rounds", type=at_least(1), default=5, metavar="N", help="starts of each kind (5)")
    parser.add_argument("--only", choices=("cold", "warm"), help="measure starts of one kind")
    parser.add_argument("--timeout", type=float, default=300.0, metavar="SECONDS", help="for one start (300)")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write every round here")
    parser.add_argument("serve", nargs="*", metavar="OPTION", help="for `stentor serve`, after --")
    return parser


if __name__ == "__main__":
    sys.exit(main())
