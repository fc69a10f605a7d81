"""All models of one server, by clients' names and by role."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from stentor.protocols.common.errors import BadRequest
from stentor.protocols.ipc.adapters import AdapterRef

from .adapters import AdapterRegistry
from .adapters import ModelRole as ModelRole  # re-exported

ARTICLES: Final[Mapping[ModelRole, str]] = {
    "chat": "a chat model",
    "transcription": "a transcription model",
    "speech": "a speech model",
    "embedding": "an embedding model",
}
OPTIONS_OF: Final[Mapping[ModelRole, str]] = {
    "chat": "MODEL",
    "transcription": "--transcription-model",
    "speech": "--speech-model",
    "embedding": "--embedding-model",
}
_SHOWN_CHARS: Final = 128
_MOST_CHARS: Final = 512
"""Characters of a name that is matched with patterns."""


class ServedModel(msgspec.Struct, frozen=True):
    kind: ModelRole
    names: tuple[str, ...]
    """Never empty; the first is the one that responses and metrics carry."""
    root: str = ""
    """The operator's name of the model; empty means the first name."""
    also: tuple[ModelRole, ...] = ()
    """Further roles; if there is a separate model for one, requests without a name use that."""
    parent: str = ""
    """For an adapter: the name of its base model."""
    patterns: tuple[str, ...] = ()
    """Patterns with ``*`` for any text; names that no model has and that match one mean this model too."""


class ModelRegistry:
    """No two models have a name in common; where a name fits patterns of several, the kind that is needed decides.
    Immutable but for ``adapters`` of some, each of which is a model to clients."""

    def __init__(self, models: Sequence[ServedModel], adapters: AdapterRegistry | None = None) -> None:
        """At most one model of a kind. Raises ValueError, in a line for the operator, where two have one name."""
        self.adapters = AdapterRegistry() if adapters is None else adapters
        self._models = tuple(models)
        self._by_kind = {kind: model for model in models for kind in model.also}
        self._by_kind |= {model.kind: model for model in models}
        self._by_name: dict[str, ServedModel] = {}
        for model in models:
            for name in model.names:
                other = self._by_name.setdefault(name, model)
                if other is not model:
                    raise ValueError(f"{ARTICLES[other.kind]} and {ARTICLES[model.kind]} are both served as {name!r}")
        self._patterns = {model.kind: _compiled(model.patterns) for model in models if model.patterns}
        for adapter in self.adapters:
            if adapter.name in self._by_name:
                raise ValueError(f"an adapter and a model are both served as {adapter.name!r}")

    def __iter__(self) -> Iterator[ServedModel]:
        """Without adapters."""
        return iter(self._models)

    def __contains__(self, name: object) -> bool:
        """Whether a model has exactly this name."""
        return name in self._by_name or (isinstance(name, str) and self._adapted(name) is not None)

    @property
    def adapted(self) -> list[ServedModel]:
        """The base model with each known adapter."""
        return [model for adapter in self.adapters if (model := self._adapted(adapter.name)) is not None]

    def adapter_of(self, name: str) -> AdapterRef | None:
        """The adapter of a request for this name; None for a model's own name."""
        return None if name in self._by_name else self.adapters.get(name)

    def _adapted(self, name: str) -> ServedModel | None:
        base = self._by_kind.get(self.adapters.kind_of(name))
        adapter = None if base is None or name in self._by_name else self.adapters.get(name)
        if base is None or adapter is None:
            return None
        return ServedModel(base.kind, (name,), adapter.path, parent=base.names[0])

    def of_kind(self, kind: ModelRole) -> ServedModel | None:
        return self._by_kind.get(kind)

    def fitting(self, name: str, kind: ModelRole | None) -> ServedModel | None:
        """The model one of whose patterns ``name`` fits, best the one that is for nothing but ``kind``."""
        if len(name) > _MOST_CHARS:  # with several ``*`` a pattern takes the square of the time, or more
            return None
        of_kind = [self._by_kind[kind]] if kind in self._by_kind else []
        for model in (*of_kind, *self._models):
            pattern = self._patterns.get(model.kind)
            if pattern is not None and (kind is None or kind in (model.kind, *model.also)) and pattern.fullmatch(name):
                return model
        return None

    def find(self, name: str, param: str = "model", kind: ModelRole | None = None) -> ServedModel:
        """The model of this ``name``, whatever its role; by a pattern only one for ``kind``, if given. Raises
        BadRequest (404)."""
        model = self._by_name.get(name) or self._adapted(name) or self.fitting(name, kind)
        if model is None:
            raise BadRequest(f"The model `{_shown(name)}` does not exist.", param, "model_not_found", status=404)
        return model

    def resolve(self, name: str | None, kind: ModelRole, param: str = "model") -> str:
        """A request's name for a model of this kind; None means its first name.

        Raises BadRequest for an unknown name (404), and for a model of another kind, or if there is none of this kind
        (400). ``param`` names the field.
        """
        if name is not None:
            model = self.find(name, param, kind)
            if kind in (model.kind, *model.also):
                return name
            what = f"`{_shown(name)}` is {ARTICLES[model.kind]}; this needs {ARTICLES[kind]}"
        elif kind in self._by_kind:
            return self._by_kind[kind].names[0]
        else:
            what = f"This needs {ARTICLES[kind]}"
        fitting = self._by_kind.get(kind)
        way = (
            f"none is served, which {OPTIONS_OF[kind]} of `stentor serve` would change"
            if fitting is None
            else f"use `{fitting.names[0]}`"
        )
        raise BadRequest(f"{what}: {way}.", param, "model_not_supported")


def _compiled(patterns: Sequence[str]) -> re.Pattern[str]:
    parts = (map(re.escape, re.split(r"\*+", pattern)) for pattern in patterns)
    return re.compile("|".join(map(".*".join, parts)), re.DOTALL)


def _shown(name: str) -> str:
    return name if len(name) <= _SHOWN_CHARS else name[:_SHOWN_CHARS] + "…"
