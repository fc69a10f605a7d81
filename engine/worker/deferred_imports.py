"""Modules that ``import torch`` imports and a worker seldom needs: each is imported when something first uses it.

torch ends its import with operations' shapes for tensors without values, defined in Python, and with ``torch.export``:
with what they import in turn, a quarter of the time it takes. A worker's own tensors without values are only made and
measured, for which torch needs neither.
"""

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, Final

DEFERRED: Final = ("torch._meta_registrations", "torch.export")
NEEDED_BY: Final = ("torch._decomp", "torch._dynamo", "transformers")
"""What calls any operation with tensors without values: fake tensors, compiled models, and models of others."""


def defer_imports() -> None:
    """Does nothing where torch is imported already."""
    if "torch" not in sys.modules:
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name in NEEDED_BY:
            for deferred in map(sys.modules.get, DEFERRED):
                if isinstance(deferred, _Deferred):
                    deferred.load()
        elif name in DEFERRED and (spec := PathFinder.find_spec(name, path, target)) is not None:
            assert spec.loader is not None
            spec.loader = _DeferringLoader(spec.loader)
            return spec
        return None


class _DeferringLoader(Loader):
    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Deferred(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


class _Deferred(ModuleType):
    """Runs its code when an attribute is asked for that it has not got, and is a usual module then."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what the import system and ``inspect`` ask of every module
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        self.load()
        return getattr(self, name)

    def load(self) -> None:
        spec = self.__spec__
        assert spec is not None
        assert isinstance(spec.loader, _DeferringLoader)
        self.__loader__ = spec.loader = spec.loader.loader
        self.__class__ = ModuleType  # type: ignore[assignment]
        spec.loader.exec_module(self)
