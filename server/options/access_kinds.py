"""How the text of an option about access becomes a value."""

import re
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from ..common.files import FileRefused
from ..common.keys import KeyDigest, read_key_file
from ..config.config import ANY_ORIGIN, SocketMode
from .kinds import Kind, Refused, file, texts

_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}


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


def _origin(text: str) -> str:
    """As browsers write it: in small letters, without the port that everyone knows."""
    origin = text.lower()
    parts = urlsplit(origin)
    if not (parts.scheme and parts.netloc) or "@" in parts.netloc or origin != f"{parts.scheme}://{parts.netloc}":
        raise ValueError(text)
    return origin.removesuffix(_DEFAULT_PORTS.get(parts.scheme, "/"))
