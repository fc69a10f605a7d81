"""How options about observing are read."""

from importlib.util import find_spec
from urllib.parse import urlsplit

from .kinds import Kind, Refused


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


def _installed() -> bool:
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        return False
