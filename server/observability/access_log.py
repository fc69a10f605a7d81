"""One line for every request, at its end."""

import logging
from typing import Any, Final

from .request import RequestRecord

logger = logging.getLogger("stentor.access")

MOST_PATH: Final = 200
"""Characters of a path that are shown."""


def open_access_log() -> None:
    """They are asked for by an option of their own, so the level of other lines does not hold for them."""
    logger.setLevel(logging.INFO)


def log_request(record: RequestRecord) -> None:
    """Never the query, which may hold keys, nor anything of a body."""
    path = record.path if len(record.path) <= MOST_PATH else record.path[:MOST_PATH] + "…"
    fields: dict[str, Any] = {
        "method": record.method,
        "path": path,
        "status": record.status,
        "seconds": round(record.seconds, 6),
        "prompt_tokens": record.prompt_tokens,
        "output_tokens": record.output_tokens,
    }
    if record.key:
        fields["key"] = record.key
    if record.error:
        fields["error"] = record.error
    logger.info(
        "%s %s %d in %.3f s, %d + %d tokens%s%s",
        record.method,
        path,
        record.status,
        record.seconds,
        fields["prompt_tokens"],
        fields["output_tokens"],
        f", key {record.key}" if record.key else "",
        f", {record.error}" if record.error else "",
        extra={"fields": fields, "request_id": record.request_id},
    )
