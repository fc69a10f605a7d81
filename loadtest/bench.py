"""``stentor bench``: one command a benchmark, imported when it is asked for, each with a ``--help`` of its own."""

import importlib
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final, NamedTuple

MISUSED: Final = 2


class Command(NamedTuple):
    """A module below this package, what the command is for, and the module's function from options to exit code."""

    module: str
    help: str
    function: str = "main"


COMMANDS: Final = {
    "serve": Command(".serving.command", "load a server that speaks OpenAI's API and measure latency and throughput"),
    "sweep": Command(".sweeping.command", "the same over a range of concurrency, rate or parameters; resumes"),
    "compare": Command(".report.compare", "two saved results side by side"),
    "report": Command(".report.page", "saved results as one self-contained HTML file, or plots as SVG"),
    "peers": Command(".peers.command", "the same load on other servers in turn, and the ratios"),
    "install-peers": Command(".peers.install", "install those servers and libraries, each into its own environment"),
    "start": Command(".startup", "time from start to ready, cold and warm, by phase"),
    "latency": Command(".offline", "one batch through the engine, without a server", "latency"),
    "throughput": Command(".offline", "as many tokens a second as the engine gives, without a server", "throughput"),
    "voice": Command(".voice.loop", "speech in, speech out: from the last word to the answer, and interruptions"),
    "callers": Command(".voice.sessions", "many callers at once, each transcribed while it speaks"),
    "speech": Command(".voice.speaking", "texts spoken alone and many at once: when sound begins, and how fast"),
    "transcription": Command(".voice.transcription", "speed of transcription beside faster-whisper", "transcription"),
    "wer": Command(".voice.transcription", "word error rate of spoken sentences beside faster-whisper", "wer"),
    "embeddings": Command(".embedding.command", "texts a second beside sentence-transformers; a sentence beside a job"),
    "quality": Command(".quality.command", "perplexity of a fixed text beside transformers in float32"),
    "kernels": Command(".kernels.command", "each kernel beside what the machine's memory and arithmetic allow"),
    "model": Command(".model_speed", "a model's steps with made-up weights beside what the machine can do"),
    "vision": Command(".vision_speed", "pictures a second through a model's vision tower beside transformers"),
    "vision-serving": Command(".vision_serving", "pictures over HTTP, of one random model, beside llama.cpp's server"),
    "speculation": Command(".speculation", "tokens a second with drafts and without, beside llama.cpp's"),
    "adapters": Command(".adapter_load", "streams with LoRA adapters beside streams without; what loads do to streams"),
    "media": Command(".media_load", "pictures beside streams, a picture's second question, files that are refused"),
    "steps": Command(".step_cost", "step time of the CPU worker against batch and context"),
    "grid": Command(".series", "kernels or model once for every combination of parameters, as one CSV", "grid"),
    "gpu": Command(".gpu.command", "on a machine with a GPU: its first minutes, every test, every benchmark"),
    "server-cost": Command(".server_cost", "CPU time of server and engine a streamed token"),
    "scheduler-cost": Command(".scheduler_cost", "CPU time of the engine a step, without a model"),
    "grammar-cost": Command(".grammar_cost", "time of a mask on a model's vocabulary"),
    "recovery": Command(".recovery", "how long streams stand still when a worker or an engine is killed"),
    "picture": Command(".picture", "what a command shows on a terminal, as SVG"),
}
OLDER: Final = {"startup": "start", "gpu-smoke": "gpu"}
"""Names of earlier versions."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one benchmark and return its exit code: 0 done, 1 failed while running, 2 used wrongly."""
    given = sys.argv[1:] if argv is None else list(argv)
    if not given or given[0] in ("-h", "--help"):
        print(_usage())
        return 0 if given else MISUSED
    command = COMMANDS.get(OLDER.get(given[0], given[0]))
    if command is None:
        near = get_close_matches(given[0], COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(COMMANDS)}"
        print(f"stentor bench: no benchmark is called {given[0]}; {hint}", file=sys.stderr)
        return MISUSED
    try:
        module = importlib.import_module(command.module, __package__)  # late: some bring torch
    except ModuleNotFoundError as error:
        if error.name not in ("cycler", "matplotlib"):
            raise
        print(f"stentor bench {given[0]}: it needs matplotlib: install stentor[plots]", file=sys.stderr)
        return MISUSED
    return int(getattr(module, command.function)(given[1:]))


def _usage() -> str:
    lines = ["usage: stentor bench COMMAND [options]", "", "Benchmarks; `stentor bench COMMAND --help` says more."]
    return "\n".join([*lines, "", *(f"  {name:<15} {command.help}" for name, command in COMMANDS.items())])


if __name__ == "__main__":
    sys.exit(main())
