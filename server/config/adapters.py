"""The adapters that clients may name in place of a model, by those names."""

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from stentor.engine.loading.adapter_files import GGUF, adapter_identity
from stentor.engine.loading.errors import CheckpointError
from stentor.protocols.ipc.adapters import AdapterRef
from stentor.protocols.ipc.flag import Flag

ModelRole = Literal["chat", "transcription", "speech", "embedding"]
_NAME: Final = re.compile(r"[\w.-]{1,128}", re.ASCII)
"""Name of an adapter in the folder: never a path."""


class AdapterModule(msgspec.Struct, frozen=True):
    """An adapter that the operator offers."""

    name: str
    path: str
    base: str = ""
    """A name of the model that it is added to; "" is the main one."""


class AdaptersConfig(msgspec.Struct, frozen=True):
    """Options of LoRA adapters."""

    modules: Annotated[
        tuple[AdapterModule, ...],
        Flag(
            'an adapter to load at start: NAME=PATH or {"name": NAME, "path": PATH}, a folder with PEFT\'s '
            "adapter_config.json and adapter_model.safetensors, or a .gguf file; base_model_name in the JSON "
            "names the transcription model if the adapter is for that; may be repeated",
            kind="lora_modules",
            name="lora-modules",
            group="model",
        ),
    ] = ()
    folder: Annotated[
        Path | None,
        Flag(
            "a folder of adapters, loaded when a request first names one, or by /v1/load_lora_adapter; "
            "nothing outside it is read",
            kind="path",
            name="lora-folder",
            group="model",
        ),
    ] = None

    def of_base(self, names: Collection[str]) -> bool:
        """Whether any is for a model of these names."""
        return any(module.base and module.base in names for module in self.modules)

    def registry(
        self, *, enabled: bool, main: ModelRole = "chat", kinds: Mapping[str, ModelRole] | None = None
    ) -> "AdapterRegistry":
        """Adapters of the ``main`` model, and of others, by their names. Raises
        :class:`stentor.engine.loading.errors.CheckpointError`, in a line for the operator."""
        if not enabled and (self.modules or self.folder is not None):
            raise CheckpointError("--lora-modules and --lora-folder name adapters, which --enable-lora serves: add it")
        known = {"": main, **(kinds or {})}
        for module in self.modules:
            if module.base not in known:
                raise CheckpointError(
                    f"--lora-modules {module.name}: base_model_name is {module.base!r}; expected is a name of the main "
                    "or the transcription model"
                )
        try:
            paths = {module.name: module.path for module in self.modules}
            of_others = {module.name: known[module.base] for module in self.modules}
            return AdapterRegistry(paths, self.folder, main, of_others)
        except OSError as error:
            raise CheckpointError(f"--lora-folder {self.folder}: {error.strerror or error}") from error


class AdapterRegistry:
    """Owned by the server process; changes while it serves. A name that is loaded again is another adapter."""

    def __init__(
        self,
        modules: Mapping[str, str] | None = None,
        folder: Path | None = None,
        kind: ModelRole = "chat",
        kinds: Mapping[str, ModelRole] | None = None,
    ) -> None:
        """``modules``: paths of the operator, by name; ``kind``: role of their model, which ``kinds`` overrides by
        name. Raises :class:`stentor.engine.loading.errors.CheckpointError`, OSError."""
        self._kind: Final = kind
        self._kinds = dict(kinds or {})
        self._by_name: dict[str, AdapterRef] = {}
        self._next = 0
        self.root = "" if folder is None else str(folder.resolve(strict=True))
        """The folder of adapters that may be loaded while the server runs; empty if there is none."""
        for name, path in (modules or {}).items():
            self._next += 1
            self._by_name[name] = AdapterRef(self._next, name, path, "", adapter_identity("", path))

    def kind_of(self, name: str) -> ModelRole:
        """Role of the adapter's base model."""
        return self._kinds.get(name, self._kind)

    def __iter__(self) -> Iterator[AdapterRef]:
        return iter(list(self._by_name.values()))

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def get(self, name: str) -> AdapterRef | None:
        """The adapter of this name, also one in the folder that is named for the first time; None if there is none."""
        found = self._by_name.get(name)
        if found is not None or not self.root or _NAME.fullmatch(name) is None:
            return found
        for path in (name, f"{name}{GGUF}"):
            try:
                identity = adapter_identity(self.root, path)
            except CheckpointError:
                continue
            found = self._by_name[name] = self.new(name, path, identity)
            return found
        return None

    def new(self, name: str, path: str, identity: str) -> AdapterRef:
        """An adapter of the folder, which does not go by ``name`` before :meth:`add`."""
        self._next += 1
        return AdapterRef(self._next, name, path, self.root, identity)

    def add(self, adapter: AdapterRef) -> None:
        """Registers the adapter under its name."""
        self._by_name[adapter.name] = adapter
        self._kinds.pop(adapter.name, None)  # those that come later are all for the main model

    def remove(self, name: str) -> bool:
        """Removes the name; running requests keep the adapter. False if there was none."""
        return self._by_name.pop(name, None) is not None

    def name_of(self, number: int) -> str:
        """Name of an adapter by its number; "" for one that was removed."""
        return next((adapter.name for adapter in self._by_name.values() if adapter.number == number), "")
