"""Metadata that clients attach to stored objects."""

from typing import Any, Final

from ..common.bounds import keys_at_most
from ..common.errors import refused, wrong

MAX_METADATA: Final = 16
MAX_METADATA_KEY: Final = 64
MAX_METADATA_VALUE: Final = 512

Metadata = dict[str, str]


def check_metadata(metadata: dict[str, Any] | None) -> None:
    """Raises BadRequest for more than OpenAI takes, and for values that are no strings."""
    keys_at_most(metadata, MAX_METADATA, "metadata")
    for key, value in (metadata or {}).items():
        if not isinstance(value, str):
            raise wrong("metadata", "must have strings as values")
        if len(key) > MAX_METADATA_KEY or len(value) > MAX_METADATA_VALUE:
            raise refused(
                "metadata",
                f"a key may have {MAX_METADATA_KEY} characters and a value {MAX_METADATA_VALUE}",
                "string_above_max_length",
            )
