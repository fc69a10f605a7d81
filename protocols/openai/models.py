"""``/v1/models``: cards."""

from typing import Literal

import msgspec


class ModelCard(msgspec.Struct, frozen=True):
    id: str
    created: int
    root: str
    max_model_len: int | None
    """Longest sequence, prompt and output; null until the model has been loaded, and for one that does not chat."""
    parent: str | None = None
    kind: Literal["chat", "transcription", "speech", "embedding"] = "chat"
    """What it is for; not OpenAI's."""
    object: Literal["model"] = "model"
    owned_by: str = "stentor"


class ModelList(msgspec.Struct, frozen=True):
    data: list[ModelCard]
    object: Literal["list"] = "list"
