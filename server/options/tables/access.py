"""Who comes in."""

from typing import Final

from .. import access_kinds as access
from .. import kinds
from ..option import Option

OPTIONS: Final = (
    Option(
        "api-key",
        "access.api_keys",
        access.keys(),
        "a key that clients must send; may be repeated. Others on this "
        "machine can read a command line: rather use STENTOR_API_KEY or --api-key-file",
        "access",
    ),
    Option(
        "api-key-file",
        "access.api_key_file",
        access.key_file(),
        "a file with one key a line, read again on SIGHUP",
        "access",
    ),
    Option(
        "admin-key",
        "access.admin_keys",
        access.keys(),
        "a key for control routes, which are closed without one; it opens all others too; may be repeated",
        "access",
    ),
    Option(
        "admin-key-file",
        "access.admin_key_file",
        access.key_file(),
        "a file with one admin key a line, read again on SIGHUP",
        "access",
    ),
    Option(
        "cors-origin",
        "access.cors_origins",
        access.origins(),
        "an origin whose web pages may use the server, or * for all of them; may be repeated",
        "access",
    ),
    Option(
        "allowed-host",
        "access.allowed_hosts",
        access.hosts(),
        "a name with dots that requests may ask for in `Host`; may be repeated. Without an API key, or once one is "
        "given, all others are refused but addresses, localhost and names without a dot",
        "access",
    ),
    Option(
        "tls-cert",
        "access.tls_cert",
        kinds.file(),
        "a PEM file: the certificate and those between it and its root; read again on SIGHUP, as are the next three",
        "access",
    ),
    Option(
        "tls-key",
        "access.tls_key",
        kinds.file(),
        "a PEM file with the certificate's private key; otherwise it is in the file of the certificate",
        "access",
    ),
    Option(
        "tls-client-ca",
        "access.tls_ca",
        kinds.file(),
        "a PEM file with authorities; clients must then show a certificate that one of them has signed",
        "access",
        aliases=("tls-ca",),
    ),
    Option(
        "tls-key-password-file",
        "access.tls_key_password_file",
        kinds.file(),
        "a file whose first line opens the private key",
        "access",
    ),
    Option(
        "root-path",
        "access.root_path",
        access.root_path(),
        "prefix of every path, for a server behind a proxy; paths without it are answered too",
        "access",
    ),
    Option(
        "uds",
        "access.uds",
        access.socket_path(),
        "a socket in the file system to listen on, instead of --host and --port",
        "access",
    ),
    Option("uds-mode", "access.uds_mode", access.mode(), "permissions of that socket, in octal", "access"),
)
