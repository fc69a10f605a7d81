"""Where peers and their weights lie: ``$XDG_CACHE_HOME/stentor/peers``, or the same under ``~/.cache``.

<root>/<peer>/env/              the peer's own virtual environment
              installed.json    what is installed, written last
              install.log       what pip, cmake and the compiler said
<root>/weights/<model>-<key>/   forms of one model, made by :mod:`.weights`
"""

from pathlib import Path

import msgspec

from stentor.engine.loading.download.hub import default_cache


def cache(name: str) -> Path:
    """A folder of benchmarks below the user's cache; it need not exist."""
    return default_cache().parent / name


def root() -> Path:
    """The folder of all peers."""
    return cache("peers")


def home(peer: str) -> Path:
    """A peer's folder; it need not exist."""
    return root() / peer


def script(peer: str, name: str) -> Path:
    """A command in a peer's environment."""
    return home(peer) / "env" / "bin" / name


def llama_binary(name: str) -> Path:
    """One of the programs that llama.cpp's build makes."""
    return home("llama.cpp") / "build" / "bin" / name


def installed(peer: str) -> str | None:
    """The version that is installed of a peer; None where nothing is, or not all of it."""
    try:
        return msgspec.json.decode((home(peer) / "installed.json").read_bytes(), type=dict[str, str])["version"]
    except (OSError, msgspec.DecodeError, KeyError):
        return None
