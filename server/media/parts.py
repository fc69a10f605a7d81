"""Media as a request names them."""

from typing import Literal

import msgspec

from stentor.engine.model_config.towers.media_spec import Modality

Detail = Literal["auto", "low", "high", "original"]


class Embeds(msgspec.Struct, frozen=True):
    """A picture's embeddings, made by the client; both are base64 of tensors."""

    data: str
    grid: str = ""
    """Frames, rows and columns of its patches, where the model needs them."""


class MediaPart(msgspec.Struct, frozen=True):
    """One picture, sound or video of a conversation, before it has been fetched."""

    modality: Modality
    url: str
    """``data:``, ``https:`` or another that the operator has opened; "" where ``file`` or only ``uuid`` names it."""
    param: str
    """The field that holds it, for errors."""
    uuid: str = ""
    """The client's own name for it: media sent under it before need not be sent again."""
    file: str = ""
    """The id of one of the caller's stored files."""
    detail: Detail = "auto"
    """Resolution at which the image is processed."""
    embeds: Embeds | None = None
    """The client's embeddings in place of the picture."""


class Media(msgspec.Struct, frozen=True):
    """The media of a part, as received."""

    data: bytes
    content_type: str | None
    """The sender's type (``image/png``), in lower case, without parameters; not trusted."""
