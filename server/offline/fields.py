"""Arguments of calls that become fields of their requests."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ..options.reading import nearest

_DROPPED: Final = ("use_tqdm", "concurrency_limit", "chat_template_content_format")
"""vLLM's: none changes an answer here."""
_OTHERWISE: Final = {
    "lora_request": "name an adapter of `lora_modules` as `model`",
    "pooling_params": "give its fields as arguments",
    "tokenization_kwargs": "give its fields as arguments",
}
"""vLLM's, and what stands for them."""


class RequestRefused(ValueError):
    """A request cannot be served as it is; the message says why and names the field."""


def known_fields(given: Mapping[str, Any], request: type[msgspec.Struct]) -> dict[str, Any]:
    """The arguments that are fields of ``request``. None stands for a field that is absent.

    Raises RequestRefused for one that the request does not have: over HTTP it would be ignored.
    """
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name in _DROPPED or value is None:
            continue
        if name in _OTHERWISE:
            raise RequestRefused(f"`{name}` is not supported: {_OTHERWISE[name]}.")
        if name not in request.__struct_fields__:
            raise RequestRefused(f"there is no argument `{name}`{nearest(name, list(request.__struct_fields__))}")
        found[name] = value
    return found
