"""Builds access control from the operator's options."""

from collections.abc import Sequence

import msgspec

from ..common.files import FileRefused, Reloadable
from ..common.keys import Keyring
from ..config.config import AccessConfig, ConfigError
from ..http.tls import ReloadingContext, TlsFiles
from .client_secrets import ClientSecrets
from .hosts import Hosts
from .origins import Origins


class AccessControl(msgspec.Struct, frozen=True):
    """By default the server is open to everyone who can reach it."""

    keys: Keyring = msgspec.field(default_factory=Keyring)
    origins: Origins = msgspec.field(default_factory=Origins)
    root_path: str = ""
    """In front of every path; empty, or begins with a slash and ends without."""
    tls: ReloadingContext | None = None
    secrets: ClientSecrets = msgspec.field(default_factory=ClientSecrets)
    """Client secrets of callers with keys."""
    hosts: Hosts = msgspec.field(default_factory=Hosts)

    @property
    def reloadable(self) -> Sequence[Reloadable]:
        return [self.keys] if self.tls is None else [self.keys, self.tls]


def open_access(config: AccessConfig) -> AccessControl:
    """Reads every file that is named. Raises :class:`..config.config.ConfigError`."""
    try:
        keys = Keyring(
            config.api_keys, config.admin_keys, api_file=config.api_key_file, admin_file=config.admin_key_file
        )
        tls = _open_tls(config)
    except FileRefused as error:
        raise ConfigError(str(error)) from error
    return AccessControl(keys, Origins(config.cors_origins), config.root_path, tls, hosts=Hosts(config.allowed_hosts))


def _open_tls(config: AccessConfig) -> ReloadingContext | None:
    beside = {
        "--tls-key": config.tls_key,
        "--tls-client-ca": config.tls_ca,
        "--tls-key-password-file": config.tls_key_password_file,
    }
    if config.tls_cert is None:
        for option, file in beside.items():
            if file is not None:
                raise ConfigError(f"{option}: it needs --tls-cert beside it")
        return None
    files = TlsFiles(config.tls_cert, config.tls_key, config.tls_ca, config.tls_key_password_file)
    return ReloadingContext.load(files)
