"""How the text of an option becomes a value, whichever source it came from.

A kind parses a string (flag, environment) or what TOML made of it, raises ValueError for anything
else, and says in words what it expected; the reader puts source and value around those words.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from ..common.files import FileRefused
from ..common.keys import KeyDigest, read_key_file
from ..config.config import ANY_ORIGIN, SocketMode, ToolServer

_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}

_MOST_DIGITS: Final = 32
UNITS: Final = {"": 1, "b": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("kmgt", 1)
    for suffix, base in (("", 1024), ("ib", 1024), ("b", 1000))
}


@dataclass(frozen=True)
class Kind:
    """``parse`` raises ValueError for what is not ``expected``."""

    expected: str
    parse: Callable[[object], object]
    metavar: str | None = None
    switch: bool = False
    """Also spelt ``no-NAME``, for the opposite."""
    many: bool = False
    """May be given repeatedly: a list in TOML, separated by commas in the environment."""
    secret: bool = False
    """What was given is never shown."""


class Refused(Exception):
    """The value was understood and is refused; the message says why."""


def text() -> Kind:
    return Kind("some text", _text, "TEXT")


def texts() -> Kind:
    return Kind("one or more names, not empty", _texts, "NAME", many=True)


def integer(low: int, high: int) -> Kind:
    def parse(raw: object) -> int:
        if isinstance(raw, bool) or not isinstance(raw, int | str):
            raise ValueError(raw)
        value = int(raw)
        if not low <= value <= high:
            raise ValueError(raw)
        return value

    return Kind(f"an integer from {low} to {high}", parse, "N")


def integers(low: int, high: int) -> Kind:
    one = integer(low, high)

    def parse(raw: object) -> tuple[int, ...]:
        parts = raw.split(",") if isinstance(raw, str) else raw
        if isinstance(parts, list):
            parts = [piece for part in parts for piece in (part.split(",") if isinstance(part, str) else [part])]
        if not isinstance(parts, list) or not parts:
            raise ValueError(raw)
        return tuple(sorted({int(str(one.parse(part))) for part in parts}))

    return Kind(f"one or more integers from {low} to {high}", parse, "N,…", many=True)


def fraction() -> Kind:
    def parse(raw: object) -> float:
        if isinstance(raw, bool) or not isinstance(raw, int | float | str):
            raise ValueError(raw)
        value = float(raw)
        if not 0 < value <= 1:
            raise ValueError(raw)
        return value

    return Kind("a number above 0, at most 1", parse, "SHARE")


def part() -> Kind:
    def parse(raw: object) -> float:
        value = float(str(fraction().parse(raw)))
        if value >= 1:
            raise ValueError(raw)
        return value

    return Kind("a number between 0 and 1", parse, "SHARE")


def seconds() -> Kind:
    def parse(raw: object) -> float:
        if isinstance(raw, bool) or not isinstance(raw, int | float | str):
            raise ValueError(raw)
        value = float(raw)
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(raw)
        return value

    return Kind("a number of seconds, 0 or more", parse, "SECONDS")


def some_seconds() -> Kind:
    def parse(raw: object) -> float:
        value = float(str(seconds().parse(raw)))
        if value <= 0:
            raise ValueError(raw)
        return value

    return Kind("a number of seconds above 0", parse, "SECONDS")


def size() -> Kind:
    return Kind("a size such as 2GiB, 512MiB or a number of bytes", _size, "SIZE")


def choice(values: tuple[str, ...]) -> Kind:
    def parse(raw: object) -> str:
        if raw not in values:
            raise ValueError(raw)
        return str(raw)

    return Kind(f"{', '.join(values[:-1])} or {values[-1]}", parse, "|".join(values))


def switch() -> Kind:
    return Kind("true or false", _switch, switch=True)


def file() -> Kind:
    return Kind("a file that exists", _file, "FILE")


def path() -> Kind:
    def parse(raw: object) -> Path:
        text = _text(raw)
        if "\0" in text:
            raise ValueError(raw)
        return Path(text).expanduser()

    return Kind("a path in the file system", parse, "PATH")


def folder() -> Kind:
    return Kind("a folder that exists", _folder, "FOLDER")


def domains() -> Kind:
    return Kind("one or more hosts, such as example.com or *.example.com", _domains, "HOST", many=True)


def server_urls() -> Kind:
    def parse(raw: object) -> tuple[str, ...]:
        from ..tools.url_allowlist import check_prefix  # with all that reads URLs; few name one

        return tuple(_of_url(check_prefix, text) for text in _texts(raw))

    return Kind("one or more beginnings of URLs, such as https://mcp.example.com/", parse, "URL", many=True)


def tool_servers() -> Kind:
    def parse(raw: object) -> tuple[ToolServer, ...]:
        from ..tools.url_allowlist import check_prefix  # as above

        found = []
        for text in _texts(raw):
            name, equals, url = text.partition("=")
            if not equals or not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
                raise ValueError(raw)
            found.append(ToolServer(name, _of_url(check_prefix, url)))
        if len({server.name for server in found}) < len(found):
            raise Refused("two servers have one name")
        return tuple(found)

    return Kind("one or more NAME=URL, such as browser=http://127.0.0.1:9000/mcp", parse, "NAME=URL", many=True)


def _of_url(check: Callable[[str], str], text: str) -> str:
    try:
        return check(text)
    except Exception as refusal:  # of a kind that is imported late
        raise Refused(str(refusal)) from None


def generation_config() -> Kind:
    def parse(raw: object) -> str:
        value = _text(raw)
        if value not in ("auto", "none") and not Path(value).expanduser().exists():
            raise ValueError(raw)
        return value

    return Kind("auto, none or a path that exists", parse, "auto|none|PATH")


def reasoning_format() -> Kind:
    def check(name: str) -> None:
        from ..parsing.output import chosen_reasoning  # with every format there is; few name one

        chosen_reasoning(name)

    return _format(check)


def tool_format() -> Kind:
    def check(name: str) -> None:
        from ..parsing.output import chosen_tools  # as above

        chosen_tools(name)

    return _format(check)


def _format(check: Callable[[str], None]) -> Kind:
    """``check`` raises LookupError, with the names that there are."""

    def parse(raw: object) -> str:
        if not isinstance(raw, str):
            raise ValueError(raw)
        if raw not in ("auto", "none"):
            try:
                check(raw)
            except LookupError as unknown:
                raise Refused(str(unknown)) from None
        return raw

    return Kind("auto, none or the name of a format", parse, "auto|none|NAME")


def remote_code() -> Kind:
    def parse(raw: object) -> bool:
        if _switch(raw):
            raise Refused("no code from a model's repository is run yet; leave it out and use a supported architecture")
        return False

    return Kind("true or false", parse, switch=True)


# ---- access


def keys() -> Kind:
    def parse(raw: object) -> tuple[KeyDigest, ...]:
        given = texts().parse(raw)
        assert isinstance(given, tuple)
        return tuple(KeyDigest(key.encode()) for key in given)

    return Kind("a key that is not empty", parse, "KEY", many=True, secret=True)


def key_file() -> Kind:
    def parse(raw: object) -> Path:
        path = file().parse(raw)
        assert isinstance(path, Path)
        try:
            read_key_file(path)
        except FileRefused as refused:
            raise Refused(str(refused)) from refused
        return path

    return Kind("a readable file with one key a line", parse, "FILE")


def origins() -> Kind:
    def parse(raw: object) -> tuple[str, ...]:
        given = texts().parse(raw)
        assert isinstance(given, tuple)
        found = tuple(origin if origin == ANY_ORIGIN else _origin(origin) for origin in given)
        if ANY_ORIGIN in found and len(found) > 1:
            raise Refused("* already means every origin; give either it or names")
        return found

    return Kind("origins such as https://app.example.com, or *", parse, "ORIGIN", many=True)


def hosts() -> Kind:
    def parse(raw: object) -> tuple[str, ...]:
        given = texts().parse(raw)
        assert isinstance(given, tuple)
        for host in given:
            if not re.fullmatch(r"[\w-]+(\.[\w-]+)*", host, re.ASCII):
                raise ValueError(raw)
        return tuple(host.lower() for host in given)

    return Kind("names such as llm.example.com, without scheme and port", parse, "NAME", many=True)


def root_path() -> Kind:
    def parse(raw: object) -> str:
        if not isinstance(raw, str) or not re.fullmatch(r"(/[\w.~-]+)*/?", raw.strip(), re.ASCII):
            raise ValueError(raw)
        return raw.strip().rstrip("/")

    return Kind("a path such as /llm", parse, "PATH")


def socket_path() -> Kind:
    def parse(raw: object) -> Path:
        if not isinstance(raw, str) or not raw.strip() or "\0" in raw:
            raise ValueError(raw)
        return Path(raw).expanduser()

    return Kind("a path in the file system", parse, "PATH")


def mode() -> Kind:
    def parse(raw: object) -> SocketMode:
        if not isinstance(raw, str) or not re.fullmatch(r"(0o)?[0-7]{3,4}", raw.strip()):
            raise ValueError(raw)
        value = SocketMode(raw.strip().removeprefix("0o"), 8)
        if value > 0o777:
            raise ValueError(raw)
        return value

    return Kind("an octal mode such as 0660, as text", parse, "MODE")


# ---- observability


def collector() -> Kind:
    """An address, refused where what would send to it is not installed."""

    def parse(raw: object) -> str:
        if not isinstance(raw, str):
            raise ValueError(raw)
        parts = urlsplit(raw.strip())
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            raise ValueError(raw)
        if not _installed():
            raise Refused(
                "traces need OpenTelemetry's SDK and exporter: install stentor[otel], or leave the option out"
            )
        return raw.strip()

    # an address may hold a password
    return Kind("an http:// or https:// address such as http://collector:4318", parse, "URL", secret=True)


# ---- parts of them


def _text(raw: object) -> str:
    if not isinstance(raw, str) or not raw.strip():
        raise ValueError(raw)
    return raw


def _texts(raw: object) -> tuple[str, ...]:
    parts = raw.split(",") if isinstance(raw, str) else raw
    if not isinstance(parts, list) or not parts:
        raise ValueError(raw)
    return tuple(_text(part).strip() for part in parts)


def _size(raw: object) -> int:
    if isinstance(raw, bool) or not isinstance(raw, int | str):
        raise ValueError(raw)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", str(raw).lower(), flags=re.ASCII)
    if not match or match[2] not in UNITS:
        raise ValueError(raw)
    if len(match[1]) > _MOST_DIGITS:
        raise ValueError(raw)
    value = int(match[1]) if match[1].isdigit() and not match[2] else int(float(match[1]) * UNITS[match[2]])
    if not 1 <= value < 2**63:
        raise ValueError(raw)
    return value


def _switch(raw: object) -> bool:
    if isinstance(raw, bool):
        return raw
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if not isinstance(raw, str) or raw.strip().lower() not in words:
        raise ValueError(raw)
    return words[raw.strip().lower()]


def _file(raw: object) -> Path:
    path = Path(_text(raw)).expanduser()
    if not path.is_file():
        raise ValueError(raw)
    return path


def _folder(raw: object) -> Path:
    path = Path(_text(raw)).expanduser()
    if not path.is_dir():
        raise ValueError(raw)
    return path


def _domains(raw: object) -> tuple[str, ...]:
    hosts = tuple(host.lower() for host in _texts(raw))
    for host in hosts:
        if not re.fullmatch(r"(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*|[0-9a-f:]*:[0-9a-f:]*", host, flags=re.ASCII):
            raise ValueError(raw)
    return hosts


def _origin(text: str) -> str:
    """As browsers write it: in small letters, without the port that everyone knows."""
    origin = text.lower()
    parts = urlsplit(origin)
    if not (parts.scheme and parts.netloc) or "@" in parts.netloc or origin != f"{parts.scheme}://{parts.netloc}":
        raise ValueError(text)
    return origin.removesuffix(_DEFAULT_PORTS.get(parts.scheme, "/"))


def _installed() -> bool:
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        return False


KINDS: Final[dict[str, Callable[[], Kind]]] = {
    make.__name__: make
    for make in (
        *(seconds, some_seconds, fraction, part, size, file, path, folder),
        *(domains, server_urls, tool_servers, generation_config, reasoning_format, tool_format, remote_code),
        *(keys, key_file, origins, hosts, root_path, socket_path, mode, collector),
    )
}
"""Those that a field asks for by name; the others follow from its type."""
