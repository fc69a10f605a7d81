"""``stentor bench serve`` as a sweep uses it: in this process, by its own options."""

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from ..record import Result
from ..serving.options import build_load, build_parser
from ..serving.run import LoadError, measure
from ..serving.secrets import masked
from ..serving.view import LiveView
from ..tool import UsageError
from .runs import Interrupted, RunError

_TAKEN: Final = ("save", "csv", "html", "self_test")
"""What a sweep sees to itself."""


class ServeError(ValueError):
    """Options that serve refuses; the message is one line for the operator."""


def check(options: Sequence[str], *, whole: bool = True) -> argparse.Namespace:
    """What serve makes of its options. ``whole`` also reads what they name, such as a data set.

    Raises :class:`ServeError`.
    """
    try:
        parsed = build_parser().parse_args(list(options))
        if whole:
            build_load(parsed, [])
    except UsageError as error:
        raise ServeError(str(error).replace("stentor bench serve --help", "stentor bench sweep --help")) from None
    except OSError as error:
        raise ServeError(f"{error.filename}: {error.strerror}") from None
    for name in _TAKEN:
        if getattr(parsed, name):
            raise ServeError(f"--{name.replace('_', '-')} is for `stentor bench serve`: a sweep writes into --out")
    return parsed


class Serve:
    """Measures once a call, and shows how it goes where there is a terminal."""

    def __init__(self, live: bool) -> None:
        self._live = live

    def __call__(self, options: Sequence[str]) -> Result:
        load = build_load(build_parser().parse_args(list(options)), ["stentor", "bench", "serve", *masked(options)])
        try:
            if self._live and sys.stdout.isatty():
                with LiveView() as view:
                    outcome = measure(load, view)
            else:
                outcome = measure(load)
        except LoadError as error:
            raise RunError(str(error)) from None
        if outcome.interrupted:
            raise Interrupted
        return outcome.result
