"""Calls that are JSON objects: a name and arguments, in either order, among other keys."""

import msgspec

from .json_reader import arguments, json_string, json_value
from .output import Output
from .reader import Reader, Steps, nothing


class Keys(msgspec.Struct, frozen=True):
    """Keys of an object's function name and arguments."""

    names: frozenset[str] = frozenset({"name"})
    arguments: frozenset[str] = frozenset({"arguments", "parameters"})
    ids: frozenset[str] = frozenset({"id"})
    certain: bool = True
    """Whether every object here is meant as a call. Otherwise it must have a name, arguments and little else."""
    known: frozenset[str] = frozenset({"type", "index"})
    """Other keys that leave it open whether an object is a call."""
    offered: frozenset[str] | None = None
    """Callable names; None for any. An object with another name is no call."""
    keyed: bool = False
    """Whether the one key is the name, and its value the arguments."""


class CallObject:
    """An object that comes next, as one call. The reader must keep."""

    def __init__(self, reader: Reader, output: Output, keys: Keys) -> None:
        self._reader = reader
        self._output = output
        self._keys = keys
        self._name: str | None = None
        self._id: str | None = None
        self._started = False
        self._ahead: str | None = None
        """Arguments that came before the name."""
        self._given = False

    def read(self) -> Steps[bool]:
        """False where it is none: nothing was handed out. A call that is broken behind its name has no end."""
        reader = self._reader
        if (yield from reader.accept("{")) != "{":
            return False
        while True:
            char = yield from reader.space()
            if char == '"':
                if not (yield from self._member()):
                    return self._started
            elif char == ",":
                yield from reader.character()
            elif char == "}":
                yield from reader.character()
                return self._end()
            elif char and self._started and self._given:
                return self._end()  # a forgotten bracket
            else:
                return self._started

    def _member(self) -> Steps[bool]:
        reader, keys = self._reader, self._keys
        parts: list[str] = []
        if not (yield from json_string(reader, parts.append)):
            return False
        yield from reader.space()
        if not (yield from reader.accept(":")):
            return False
        char = yield from reader.space()
        key = "".join(parts)
        if keys.keyed and self._name is None and key:
            self._name = key
            if not self._is_offered():
                return False
            return (yield from self._arguments(char))
        if key in keys.names and self._name is None and char == '"':
            parts.clear()
            if not (yield from json_string(reader, parts.append)) or not parts:
                return False
            self._name = "".join(parts)
            if not self._is_offered():
                return False
            if keys.certain and self._ahead is None:
                self._start()
            return True
        if key in keys.arguments and not self._given:
            return (yield from self._arguments(char))
        if key in keys.ids and not self._started and char == '"':
            parts.clear()
            whole = yield from json_string(reader, parts.append)
            self._id = "".join(parts) or None
            return whole
        if not (keys.certain or self._started or key in keys.known):
            return False
        return (yield from json_value(reader, nothing))

    def _arguments(self, char: str) -> Steps[bool]:
        if not (self._keys.certain or char in {"{", '"'}):
            return False
        self._given = True
        if self._name is not None:
            self._start()
            return (yield from arguments(self._reader, self._output.arguments))
        ahead: list[str] = []
        whole = yield from arguments(self._reader, ahead.append)
        self._ahead = "".join(ahead)
        return whole

    def _is_offered(self) -> bool:
        return self._keys.offered is None or self._name in self._keys.offered

    def _start(self) -> None:
        if not self._started and self._name is not None:
            self._started = True
            self._reader.forget()
            self._output.start(self._name, self._id)

    def _end(self) -> bool:
        if self._name is None or not (self._given or self._keys.certain):
            return False
        self._start()
        if self._ahead is not None or not self._given:
            self._output.arguments(self._ahead or "{}")
        self._output.end()
        return True
