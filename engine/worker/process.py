"""The worker process: tied to its owner first, and only then loaded with all that is heavy."""

import argparse
import gc
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

from ..channel import Endpoint, PeerDied
from ..processes.process import become_child

_SHAPES: Final = "torch._meta_registrations"
_WANT_SHAPES: Final = ("transformers", "torch._decomp", "torch._dynamo")


class _ShapesLater(MetaPathFinder, Loader):
    """Postpones the rules that tell shapes of torch's results where there are no numbers, with all that they import: a
    quarter of torch's import, and a worker has numbers. They are imported before what asks for them, transformers'
    models among it, and for whoever takes a name from them."""

    def __init__(self) -> None:
        self._wanted = False

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name in _WANT_SHAPES and not self._wanted:
            self._import()
        return ModuleSpec(name, self) if name == _SHAPES and not self._wanted else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Postponed(spec.name, self._import)

    def exec_module(self, module: ModuleType) -> None:
        """It is empty."""

    def _import(self) -> ModuleType:
        self._wanted = True
        sys.modules.pop(_SHAPES, None)
        return import_module(_SHAPES)


class _Postponed(ModuleType):
    def __init__(self, name: str, find: Callable[[], ModuleType]) -> None:
        super().__init__(name)
        self._find = find

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked of every module by whoever looks for the one of a function
            raise AttributeError(name)
        return getattr(self._find(), name)


def preload() -> None:
    """Imports what a worker needs, before it is forked."""
    sys.meta_path.insert(0, _ShapesLater())
    from . import service  # noqa: F401  # late, as in main


def main() -> int:
    inherited = become_child("stentor-worker")
    parser = argparse.ArgumentParser(prog="stentor-worker", allow_abbrev=False)
    parser.add_argument("--weights-fd", type=int)
    parser.add_argument("--lease-fd", type=int)
    parser.add_argument("--arena-fd", type=int)
    parser.add_argument("--meeting-fd", type=int)
    given = parser.parse_args(inherited.arguments)
    # collections while a million objects are imported find nothing, and what was imported stays
    gc.disable()
    if _SHAPES not in sys.modules:
        preload()
    from .service import Worker  # late: torch takes seconds, in which a worker not yet tied would outlive its owner

    gc.freeze()
    gc.enable()

    engine = Endpoint.attach(inherited.fds, inherited.parent_pid)
    try:
        return Worker(engine, given.weights_fd, given.lease_fd, given.arena_fd, given.meeting_fd).run()
    except PeerDied:
        return 0


if __name__ == "__main__":
    sys.exit(main())
