"""``stentor bench``: one command a benchmark, imported when it is asked for, each with a ``--help`` of its own."""

import importlib
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final, NamedTuple

MISUSED: Final = 2


class Command(NamedTuple):
    """A module with ``main(argv: list[str]) -> int``, below this package, and what it is for."""

    module: str
    help: str


COMMANDS: Final = {
    "serve": Command(".serving.command", "load a server that speaks OpenAI's API and measure latency and throughput"),
    "sweep": Command(".sweeping", "the same over a range of concurrency, rate or parameters; resumes"),
    "compare": Command(".report.compare", "two saved results side by side"),
    "report": Command(".report.page", "saved results as one self-contained HTML file"),
    "startup": Command(".startup", "time from start to ready, cold and warm, by phase"),
    "latency": Command(".latency", "one batch through the engine, without a server"),
    "throughput": Command(".throughput", "as many tokens a second as the engine gives, without a server"),
    "kernels": Command(".kernels.__main__", "each kernel beside what the machine's memory and arithmetic allow"),
    "voice": Command(".voice.loop", "speech in, speech out: from the last word to the answer, and interruptions"),
    "callers": Command(".voice.sessions", "many callers at once, each transcribed while it speaks"),
    "peers": Command(".peers", "the same load on other servers in turn, and the ratios"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one benchmark and return its exit code: 0 done, 1 failed while running, 2 used wrongly."""
    given = sys.argv[1:] if argv is None else list(argv)
    if not given or given[0] in ("-h", "--help"):
        print(_usage())
        return 0 if given else MISUSED
    command = COMMANDS.get(given[0])
    if command is None:
        near = get_close_matches(given[0], COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(COMMANDS)}"
        print(f"stentor bench: no benchmark is called {given[0]}; {hint}", file=sys.stderr)
        return MISUSED
    module = importlib.import_module(command.module, __package__)  # late: some bring torch
    return int(module.main(given[1:]))


def _usage() -> str:
    lines = ["usage: stentor bench COMMAND [options]", "", "Benchmarks; `stentor bench COMMAND --help` says more."]
    return "\n".join([*lines, "", *(f"  {name:<11} {command.help}" for name, command in COMMANDS.items())])


if __name__ == "__main__":
    sys.exit(main())
