"""Certificates for tests, made by the ``openssl`` command: an authority, and what it signs."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Pair:
    cert: Path
    key: Path


class Authority:
    """Files in ``folder``; skips the test where there is no ``openssl``."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        if shutil.which("openssl") is None:
            pytest.skip("needs the openssl command to make certificates")
        self._folder = folder
        key, self.cert = folder / f"{name}.key", folder / f"{name}.pem"
        self._pair = Pair(self.cert, key)
        _new_key(key)
        _openssl("req", "-x509", "-key", key, "-out", self.cert, "-days", "2", "-subj", f"/CN={name}")

    def sign(self, name: str) -> Pair:
        """Good for localhost and 127.0.0.1, and for a client called ``name``."""
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        request, extensions = self._folder / f"{name}.csr", self._folder / f"{name}.ext"
        extensions.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        _new_key(pair.key)
        _openssl("req", "-new", "-key", pair.key, "-out", request, "-subj", f"/CN={name}")
        _openssl(
            *("x509", "-req", "-in", request, "-out", pair.cert, "-days", "2", "-extfile", extensions),
            *("-CA", self.cert, "-CAkey", self._pair.key, "-CAcreateserial"),
        )
        return pair


def lock(pair: Pair, password: str) -> Pair:
    """The same with a key that ``password`` opens."""
    locked = pair.key.with_suffix(".locked")
    _openssl("ec", "-in", pair.key, "-out", locked, "-aes256", "-passout", f"pass:{password}")
    return Pair(pair.cert, locked)


def _new_key(path: Path) -> None:
    _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", path)


def _openssl(*arguments: str | Path) -> None:
    done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
