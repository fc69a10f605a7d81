"""``/v1/models`` as Anthropic has it: cards."""

from typing import Literal

import msgspec


class ModelInfo(msgspec.Struct, frozen=True):
    id: str
    display_name: str
    created_at: str
    """RFC 3339."""
    max_input_tokens: int | None
    """null until the model has been loaded, as is the next."""
    max_tokens: int | None
    lifecycle: Literal["active"] = "active"
    type: Literal["model"] = "model"


class ModelPage(msgspec.Struct, frozen=True):
    """All models are on one page."""

    data: list[ModelInfo]
    first_id: str | None
    last_id: str | None
    has_more: bool = False
