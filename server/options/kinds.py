"""Parses the text of an option, from any source.

A kind parses a string (flag, environment) or a TOML value, raises ValueError for anything else, and describes what it
expects; the reader adds source and value to the message.
"""

import ipaddress
import json
import math
import re
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Final, get_args
from urllib.parse import urlsplit

import msgspec

from stentor.protocols.common.errors import BadRequest
from stentor.protocols.common.limits import INT32_MAX
from stentor.protocols.ipc.config import DType, KvEventsConfig, OnlineQuantization, SpeculativeConfig

from ..common.files import FileRefused
from ..common.keys import KeyDigest, read_key_file
from ..config.adapters import AdapterModule
from ..config.config import ANY_ORIGIN, SocketMode, ToolServer
from ..config.media import MAX_MEDIA, MediaCounts
from ..config.models import SamplingOverrides

_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}

_MOST_DIGITS: Final = 32
UNITS: Final = {"": 1, "b": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("kmgt", 1)
    for suffix, base in (("", 1024), ("ib", 1024), ("b", 1000))
}


class Kind(msgspec.Struct, frozen=True):
    """``parse`` raises ValueError for a value that is not ``expected``."""

    expected: str
    parse: Callable[[object], object]
    metavar: str | None = None
    switch: bool = False
    """Also spelt ``no-NAME``, for the opposite."""
    many: bool = False
    """May be given repeatedly: a list in TOML, separated by commas in the environment."""
    secret: bool = False
    """Its value is never shown."""


class Refused(Exception):
    """The value was understood and is refused; the message says why."""


# ---- kinds that a field's type stands for


def _text(raw: object) -> str:
    if not isinstance(raw, str) or not raw.strip():
        raise ValueError(raw)
    return raw


def _texts(raw: object) -> tuple[str, ...]:
    parts = raw.split(",") if isinstance(raw, str) else raw
    if not isinstance(parts, list) or not parts:
        raise ValueError(raw)
    return tuple(_text(part).strip() for part in parts)


def _switch(raw: object) -> bool:
    if isinstance(raw, bool):
        return raw
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if not isinstance(raw, str) or raw.strip().lower() not in words:
        raise ValueError(raw)
    return words[raw.strip().lower()]


TEXT: Final = Kind("some text", _text, "TEXT")
TEXTS: Final = Kind("one or more names, not empty", _texts, "NAME", many=True)
SWITCH: Final = Kind("true or false", _switch, switch=True)


def integer(low: int, high: int) -> Kind:
    def parse(raw: object) -> int:
        if isinstance(raw, bool) or not isinstance(raw, int | str):
            raise ValueError(raw)
        value = int(raw)
        if not low <= value <= high:
            raise ValueError(raw)
        return value

    expected = f"an integer from {low} to {high}" if high < INT32_MAX else f"an integer of at least {low}"
    return Kind(expected, parse, "N")


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


_MEDIA_COUNT: Final = integer(0, MAX_MEDIA)


def choice(values: tuple[str, ...], others: Mapping[str, str] = MappingProxyType({})) -> Kind:
    """``others``: spellings of other servers, with the value that each means; they are not shown."""

    def parse(raw: object) -> str:
        meant = others.get(raw, raw) if isinstance(raw, str) else raw
        if meant not in values:
            raise ValueError(raw)
        return str(meant)

    return Kind(f"{', '.join(values[:-1])} or {values[-1]}", parse, "|".join(values))


# ---- numbers and paths


def _number(expected: str, metavar: str, fits: Callable[[float], bool]) -> Kind:
    def parse(raw: object) -> float:
        if isinstance(raw, bool) or not isinstance(raw, int | float | str):
            raise ValueError(raw)
        value = float(raw)
        if not fits(value):
            raise ValueError(raw)
        return value

    return Kind(expected, parse, metavar)


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


def _path(expected: str, metavar: str, fits: Callable[[Path], bool]) -> Kind:
    def parse(raw: object) -> Path:
        path = Path(_text(raw)).expanduser()
        if not fits(path):
            raise ValueError(raw)
        return path

    return Kind(expected, parse, metavar)


def _folder_name(raw: object) -> str:
    path = Path(_text(raw)).expanduser().absolute()
    if not path.is_dir():
        raise ValueError(raw)
    return str(path)


FILE: Final = _path("a file that exists", "FILE", Path.is_file)


def _generation_config(raw: object) -> str:
    value = _text(raw)
    if value not in ("auto", "none") and not Path(value).expanduser().exists():
        raise ValueError(raw)
    return value


# ---- names of hosts, and URLs


def _domains(raw: object) -> tuple[str, ...]:
    hosts = tuple(host.lower() for host in _texts(raw))
    for host in hosts:
        if not re.fullmatch(r"(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*|[0-9a-f:]*:[0-9a-f:]*", host, flags=re.ASCII):
            raise ValueError(raw)
    return hosts


def _server_url(text: str) -> str:
    from ..tools.url_allowlist import check_prefix  # with all that reads URLs; few name one

    try:
        return check_prefix(text)
    except Exception as refusal:  # of a kind that is imported late
        raise Refused(str(refusal)) from None


def _server_urls(raw: object) -> tuple[str, ...]:
    return tuple(_server_url(text) for text in _texts(raw))


def _tool_servers(raw: object) -> tuple[ToolServer, ...]:
    found = []
    for text in _texts(raw):
        name, equals, url = text.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
            raise ValueError(raw)
        found.append(ToolServer(name, _server_url(url)))
    if len({server.name for server in found}) < len(found):
        raise Refused("two servers have one name")
    return tuple(found)


def _lora_modules(raw: object) -> tuple[AdapterModule, ...]:
    """``NAME=FOLDER``, or vLLM's JSON object, or several of either."""
    if isinstance(raw, str):
        raw = [raw] if raw.lstrip().startswith("{") else raw.split(",")
    if not isinstance(raw, list) or not raw:
        raise ValueError(raw)
    found = []
    for each in raw:
        fields: object = each
        if isinstance(each, str) and each.lstrip().startswith("{"):
            fields = json.loads(each)
        elif isinstance(each, str):
            before, _, behind = each.partition("=")
            fields = {"name": before.strip(), "path": behind.strip()}
        if not isinstance(fields, dict):
            raise ValueError(raw)
        name, path, base = fields.get("name"), fields.get("path"), fields.get("base_model_name") or ""
        if not isinstance(name, str) or not isinstance(path, str) or not name or not path or not isinstance(base, str):
            raise ValueError(raw)
        found.append(AdapterModule(name, path, base))
    if len({module.name for module in found}) < len(found):
        raise Refused("two adapters have one name")
    return tuple(found)


def _collector(raw: object) -> str:
    """An address; refused if the package that sends traces is not installed."""
    if not isinstance(raw, str):
        raise ValueError(raw)
    parts = urlsplit(raw.strip())
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
        raise ValueError(raw)
    if not _installed():
        raise Refused("traces need OpenTelemetry's SDK and exporter: install stentor[otel], or leave the option out")
    return raw.strip()


def _installed() -> bool:
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        return False


# ---- media


def _media_counts(raw: object) -> MediaCounts:
    """Reads JSON, a TOML table, or NAME=N with commas; of vLLM's objects the ``count``."""
    if isinstance(raw, str) and not raw.lstrip().startswith("{"):
        pairs = [part.partition("=")[::2] for part in raw.split(",")]
        given: object = {name.strip(): count.strip() for name, count in pairs}
        if len(pairs) > len(dict(pairs)):
            raise ValueError(raw)
    else:
        given = json.loads(raw) if isinstance(raw, str) else raw
    if not isinstance(given, dict) or not given or given.keys() - set(MediaCounts.__struct_fields__):
        raise ValueError(raw)
    counts = {name: count.get("count") if isinstance(count, dict) else count for name, count in given.items()}
    return MediaCounts(**{name: int(str(_MEDIA_COUNT.parse(count))) for name, count in counts.items()})


# ---- speculation


def _speculative(raw: object) -> SpeculativeConfig:
    """Reads JSON, or a TOML table."""
    try:
        return msgspec.convert(_json(raw), SpeculativeConfig)
    except msgspec.ValidationError as error:
        raise Refused(str(error)) from None


def _kv_events(raw: object) -> KvEventsConfig:
    """Reads JSON, or a TOML table."""
    try:
        return msgspec.convert(_json(raw), KvEventsConfig)
    except msgspec.ValidationError as error:
        raise Refused(str(error)) from None


def _sampling(raw: object) -> SamplingOverrides:
    """Reads JSON, or a TOML table."""
    try:
        return msgspec.convert(_json(raw), SamplingOverrides)
    except msgspec.ValidationError as error:
        raise Refused(str(error)) from None


def _template_kwargs(raw: object) -> Mapping[str, object]:
    """Reads JSON, or a TOML table."""
    given = _json(raw)
    if not isinstance(given, dict) or not all(isinstance(name, str) and name.isidentifier() for name in given):
        raise ValueError(raw)
    return MappingProxyType(given)


def _media_kwargs(check: str) -> Callable[[object], Mapping[str, object]]:
    """Reads JSON, or a TOML table, which the function of this name takes from requests too."""

    def parse(raw: object) -> Mapping[str, object]:
        from ..media.processors import processor_options  # few name any

        given = _json(raw)
        if not isinstance(given, dict):
            raise ValueError(raw)
        try:
            getattr(processor_options, check)(given)
        except BadRequest as refused:
            raise Refused(str(refused)) from None
        return MappingProxyType(given)

    return parse


def _json(raw: object) -> object:
    """Raises ValueError for text that is no JSON."""
    return msgspec.json.decode(raw) if isinstance(raw, str) else raw


# ---- formats of a model's output, and its code


def _format(check: Callable[[str], object]) -> Kind:
    """``check`` raises LookupError with the known names."""

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


def _check_reasoning(name: str) -> None:
    from ..parsing.output import chosen_reasoning  # with every format there is; few name one

    chosen_reasoning(name)


def _check_tools(name: str) -> None:
    from ..parsing.output import chosen_tools  # as above

    chosen_tools(name)


def _remote_code(raw: object) -> bool:
    if _switch(raw):
        raise Refused("no code from a model's repository is run yet; leave it out and use a supported architecture")
    return False


# ---- access


def _keys(raw: object) -> tuple[KeyDigest, ...]:
    return tuple(KeyDigest(key.encode()) for key in _texts(raw))


def _key_file(raw: object) -> object:
    path = FILE.parse(raw)
    assert isinstance(path, Path)
    try:
        read_key_file(path)
    except FileRefused as refused:
        raise Refused(str(refused)) from refused
    return path


def _origins(raw: object) -> tuple[str, ...]:
    found = tuple(origin if origin == ANY_ORIGIN else _origin(origin) for origin in _texts(raw))
    if ANY_ORIGIN in found and len(found) > 1:
        raise Refused("* already means every origin; give either it or names")
    return found


def _origin(text: str) -> str:
    """In browsers' spelling: lower case, without the default port."""
    origin = text.lower()
    parts = urlsplit(origin)
    if not (parts.scheme and parts.netloc) or "@" in parts.netloc or origin != f"{parts.scheme}://{parts.netloc}":
        raise ValueError(text)
    return origin.removesuffix(_DEFAULT_PORTS.get(parts.scheme, "/"))


def _hosts(raw: object) -> tuple[str, ...]:
    hosts = _texts(raw)
    if not all(re.fullmatch(r"[\w-]+(\.[\w-]+)*", host, re.ASCII) for host in hosts):
        raise ValueError(raw)
    return tuple(host.lower() for host in hosts)


def _root_path(raw: object) -> str:
    if not isinstance(raw, str) or not re.fullmatch(r"(/[\w.~-]+)*/?", raw.strip(), re.ASCII):
        raise ValueError(raw)
    return raw.strip().rstrip("/")


def _mode(raw: object) -> SocketMode:
    if not isinstance(raw, str) or not re.fullmatch(r"(0o)?[0-7]{3,4}", raw.strip()):
        raise ValueError(raw)
    value = SocketMode(raw.strip().removeprefix("0o"), 8)
    if value > 0o777:
        raise ValueError(raw)
    return value


def _ip_address(raw: object) -> str:
    if not isinstance(raw, str):
        raise ValueError(raw)
    return str(ipaddress.ip_address(raw.strip()))


def _port_range(raw: object) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,5})-(\d{1,5})", raw.strip()) if isinstance(raw, str) else None
    if match is None or not 1 <= int(match[1]) <= int(match[2]) <= 65535:
        raise ValueError(raw)
    return int(match[1]), int(match[2])


KINDS: Final = {
    "dtype": choice(get_args(DType), {"half": "float16", "float": "float32"}),
    "quantization": msgspec.structs.replace(
        choice(get_args(OnlineQuantization)), expected="none, fp8 or int8 (a quantised checkpoint needs no option)"
    ),
    "seconds": _number("a number of seconds, 0 or more", "SECONDS", lambda n: math.isfinite(n) and n >= 0),
    "some_seconds": _number("a number of seconds above 0", "SECONDS", lambda n: math.isfinite(n) and n > 0),
    "fraction": _number("a number above 0, at most 1", "SHARE", lambda n: 0 < n <= 1),
    "part": _number("a number between 0 and 1", "SHARE", lambda n: 0 < n < 1),
    "size": Kind("a size such as 2GiB, 512MiB or a number of bytes", _size, "SIZE"),
    "file": FILE,
    "path": _path("a path in the file system", "PATH", lambda path: "\0" not in str(path)),
    "folder": _path("a folder that exists", "FOLDER", Path.is_dir),
    "folder_name": Kind("a folder that exists", _folder_name, "FOLDER"),
    "generation_config": Kind("auto, none or a path that exists", _generation_config, "auto|none|PATH"),
    "domains": Kind("one or more hosts, such as example.com or *.example.com", _domains, "HOST", many=True),
    "media_counts": Kind('a count of each medium, such as image=4,video=0 or {"image": 4}', _media_counts, "COUNTS"),
    "speculative": Kind('JSON such as {"method": "ngram", "num_speculative_tokens": 4}', _speculative, "JSON"),
    "kv_events": Kind('JSON such as {"enable_kv_cache_events": true, "topic": "kv"}', _kv_events, "JSON"),
    "sampling": Kind('JSON such as {"temperature": 0.6, "top_p": 0.95}', _sampling, "JSON"),
    "processor_kwargs": Kind('JSON such as {"max_pixels": 1000000}', _media_kwargs("processor_options"), "JSON"),
    "loading_kwargs": Kind('JSON such as {"video": {"num_frames": 16}}', _media_kwargs("loading_options"), "JSON"),
    "template_kwargs": Kind('JSON such as {"enable_thinking": false}', _template_kwargs, "JSON"),
    "server_urls": Kind(
        "one or more beginnings of URLs, such as https://mcp.example.com/", _server_urls, "URL", many=True
    ),
    "tool_servers": Kind(
        "one or more NAME=URL, such as browser=http://127.0.0.1:9000/mcp", _tool_servers, "NAME=URL", many=True
    ),
    "lora_modules": Kind(
        "one or more NAME=FOLDER, or JSON objects with name and path", _lora_modules, "NAME=FOLDER", many=True
    ),
    # an address may hold a password
    "collector": Kind("an http:// or https:// address such as http://collector:4318", _collector, "URL", secret=True),
    "reasoning_format": _format(_check_reasoning),
    "tool_format": _format(_check_tools),
    "remote_code": Kind("true or false", _remote_code, switch=True),
    "keys": Kind("a key that is not empty", _keys, "KEY", many=True, secret=True),
    "key_file": Kind("a readable file with one key a line", _key_file, "FILE"),
    "origins": Kind("origins such as https://app.example.com, or *", _origins, "ORIGIN", many=True),
    "hosts": Kind("names such as llm.example.com, without scheme and port", _hosts, "NAME", many=True),
    "root_path": Kind("a path such as /llm", _root_path, "PATH"),
    "ip_address": Kind("an IP address such as 203.0.113.7", _ip_address, "ADDRESS"),
    "port_range": Kind("two ports, such as 40000-40099", _port_range, "LOW-HIGH"),
    "mode": Kind("an octal mode such as 0660, as text", _mode, "MODE"),
}
"""Kinds that fields name; others follow from the field's type."""
