"""TLS 1.2 and newer, from files that may be replaced while connections are open."""

import ssl
from functools import partial
from pathlib import Path
from typing import Final

import anyio.to_thread
import msgspec

from ..common.files import FileRefused, read_text

HANDSHAKE_SECONDS: Final = 10.0
"""Time limit of a handshake, from the connection's beginning."""
PROBE_HANDSHAKE_SECONDS: Final = 2.0
"""The same for a connection that may only send a probe, of which there are few."""


class TlsFiles(msgspec.Struct, frozen=True):
    """All PEM."""

    cert: Path
    """The certificate, and those between it and its root."""
    key: Path | None = None
    """None: the certificate's file contains it."""
    ca: Path | None = None
    """Clients must then show a certificate that one of these has signed."""
    password: Path | None = None
    """File whose first line is the key's password."""


class ReloadingContext(ssl.SSLContext):
    """A server's context that hands each new connection to the context made last.

    Nothing is changed in a context that is in use: OpenSSL would keep half of a pair of files that do not belong
    together, could not forget an authority, and would go on with sessions that clients began under the old ones.
    """

    name: Final = "TLS certificates"

    _files: TlsFiles
    _current: ssl.SSLContext

    @classmethod
    def load(cls, files: TlsFiles) -> "ReloadingContext":
        """Raises FileRefused."""
        context = cls(ssl.PROTOCOL_TLS_SERVER)
        context._files = files
        context._current = make_context(files)
        return context

    async def reload(self) -> str:
        """Reads the files again and says which. Raises FileRefused, and then nothing has changed."""
        self._current = await anyio.to_thread.run_sync(make_context, self._files)
        return f"new connections get {self._files.cert}"

    # Event loops call these for each connection.
    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        return self._current.wrap_bio(incoming, outgoing, server_side, server_hostname, session)


def make_context(files: TlsFiles) -> ssl.SSLContext:
    """Raises FileRefused."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols(["http/1.1"])
    _check_certificates(files.cert)
    key = files.key or files.cert
    try:
        context.load_cert_chain(files.cert, key, partial(_password, key, files.password))
    except ssl.SSLError as error:
        raise FileRefused(f"{key}: {_what_is_wrong(error, files)}") from error
    except OSError as error:
        raise FileRefused(f"{key}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise FileRefused(f"{files.password}: {error}") from error
    if files.ca is not None:
        _check_certificates(files.ca)
        context.load_verify_locations(files.ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _check_certificates(file: Path) -> None:
    """OpenSSL's own complaint does not say which of two files it means."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(file)
    except ssl.SSLError as error:
        raise FileRefused(f"{file}: expected a certificate in PEM form, found none") from error
    except OSError as error:
        raise FileRefused(f"{file}: cannot be read: {error.strerror}") from error


def _password(key: Path, file: Path | None) -> str:
    """Asked for only where the key is locked; without one OpenSSL would ask on the terminal."""
    if file is None:
        raise FileRefused(f"{key}: the key is locked; give --tls-key-password-file")
    return read_text(file).partition("\n")[0].rstrip("\r")


def _what_is_wrong(error: ssl.SSLError, files: TlsFiles) -> str:
    reason = error.reason or ""
    if reason == "KEY_VALUES_MISMATCH":
        return f"the key does not belong to the certificate in {files.cert}"
    if "TOO_SMALL" in reason or "TOO_WEAK" in reason:
        return f"too weak to be used ({reason.lower().replace('_', ' ')})"
    hint = "" if files.password is None else f", or {files.password} does not open it"
    return f"expected a private key in PEM form, found none{hint}"
