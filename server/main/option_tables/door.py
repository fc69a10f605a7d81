"""Who comes in."""

from typing import Final

from ...middleware import kinds as door
from .. import option_kinds as kinds
from ..option import Option

OPTIONS: Final = (
    Option(
        "api-key",
        "door.api_keys",
        door.keys(),
        "a key that clients must send; may be repeated. Others on this "
        "machine can read a command line: rather use STENTOR_API_KEY or --api-key-file",
        "door",
    ),
    Option(
        "api-key-file",
        "door.api_key_file",
        door.key_file(),
        "a file with one key a line, read again on SIGHUP",
        "door",
    ),
    Option(
        "admin-key",
        "door.admin_keys",
        door.keys(),
        "a key for control routes, which are closed without one; it opens all others too; may be repeated",
        "door",
    ),
    Option(
        "admin-key-file",
        "door.admin_key_file",
        door.key_file(),
        "a file with one admin key a line, read again on SIGHUP",
        "door",
    ),
    Option(
        "cors-origin",
        "door.cors_origins",
        door.origins(),
        "an origin whose web pages may use the server, or * for all of them; may be repeated",
        "door",
    ),
    Option(
        "allowed-host",
        "door.allowed_hosts",
        door.hosts(),
        "a name with dots that requests may ask for in `Host`; may be repeated. Without an API key, or once one is "
        "given, all others are refused but addresses, localhost and names without a dot",
        "door",
    ),
    Option(
        "tls-cert",
        "door.tls_cert",
        kinds.file(),
        "a PEM file: the certificate and those between it and its root; read again on SIGHUP, as are the next three",
        "door",
    ),
    Option(
        "tls-key",
        "door.tls_key",
        kinds.file(),
        "a PEM file with the certificate's private key; otherwise it is in the file of the certificate",
        "door",
    ),
    Option(
        "tls-client-ca",
        "door.tls_ca",
        kinds.file(),
        "a PEM file with authorities; clients must then show a certificate that one of them has signed",
        "door",
        aliases=("tls-ca",),
    ),
    Option(
        "tls-key-password-file",
        "door.tls_key_password_file",
        kinds.file(),
        "a file whose first line opens the private key",
        "door",
    ),
    Option(
        "root-path",
        "door.root_path",
        door.root_path(),
        "prefix of every path, for a server behind a proxy; paths without it are answered too",
        "door",
    ),
    Option(
        "uds",
        "door.uds",
        door.socket_path(),
        "a socket in the file system to listen on, instead of --host and --port",
        "door",
    ),
    Option("uds-mode", "door.uds_mode", door.mode(), "permissions of that socket, in octal", "door"),
)
