"""Stands where `stentor bench serve` measures: answers at once, as a server with a known capacity would."""

from collections.abc import Callable, Sequence

from stentor.loadtest.record import Result
from stentor.tests.loadtest.report.synthetic import result, summary


class Scripted:
    """Remembers what it was asked. ``stop_after`` interrupts the run that comes after so many."""

    def __init__(self, answer: Callable[[dict[str, str]], Result] | None = None, stop_after: int | None = None) -> None:
        self.asked: list[dict[str, str]] = []
        self._answer = answer or _answer
        self._stop_after = stop_after

    def __call__(self, options: Sequence[str]) -> Result:
        if len(self.asked) == self._stop_after:
            raise KeyboardInterrupt
        parsed = dict(option.removeprefix("--").partition("=")[::2] for option in options if "=" in option)
        self.asked.append(parsed)
        return self._answer(parsed)

    def asked_with(self, *names: str) -> list[tuple[str, ...]]:
        """The named options of each run."""
        return [tuple(each.get(name, "") for name in names) for each in self.asked]


def _answer(options: dict[str, str]) -> Result:
    return result(name=options["name"], of=summary(100 * float(options.get("concurrency", "1"))))


def capacity(limit: float) -> Callable[[dict[str, str]], Result]:
    """A server whose goodput share falls once the rate is above its limit."""

    def answer(options: dict[str, str]) -> Result:
        rate = float(options["rate"])
        return result(name=options["name"], of=summary(128 * rate, share=1.0 if rate <= limit else limit / rate * 0.9))

    return answer
