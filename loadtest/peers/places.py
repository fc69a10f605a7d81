"""Where peers and their weights lie: ``$XDG_CACHE_HOME/stentor/peers``, or the same under ``~/.cache``.

<root>/<peer>/env/              the peer's own virtual environment
              installed.json    what is installed, written last
              install.log       what pip, cmake and the compiler said
<root>/weights/<model>-<key>/   forms of one model, made by :mod:`.weights`
"""

import os
from pathlib import Path
from typing import Final

import msgspec

PEERS: Final = ("llama.cpp", "vllm", "transformers", "faster-whisper", "sentence-transformers")
"""Whom ``make peers`` can install."""


class Installed(msgspec.Struct, frozen=True):
    """What a complete installation consists of; another recipe's means: install again."""

    peer: str
    version: str
    recipe: int


def root() -> Path:
    """The folder of all peers; it need not exist."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "stentor" / "peers"


def home(peer: str) -> Path:
    """A peer's folder; it need not exist."""
    return root() / peer


def script(peer: str, name: str) -> Path:
    """A command in a peer's environment."""
    return home(peer) / "env" / "bin" / name


def llama_binary(name: str) -> Path:
    """One of the programs that llama.cpp's build makes."""
    return home("llama.cpp") / "build" / "bin" / name


def installed(peer: str) -> Installed | None:
    """What is installed of a peer; None where nothing is, or not all of it."""
    try:
        return msgspec.json.decode((home(peer) / "installed.json").read_bytes(), type=Installed)
    except (OSError, msgspec.DecodeError):
        return None


def mark_installed(what: Installed) -> None:
    """Says that an installation is complete."""
    target = home(what.peer) / "installed.json"
    beside = target.with_suffix(".partial")
    beside.write_bytes(msgspec.json.encode(what) + b"\n")
    beside.replace(target)
