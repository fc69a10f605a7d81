"""Shared by the server's own image processors."""

from typing import Any

from transformers.image_processing_backends import PilBackend


class OwnImages(PilBackend):
    """Has the interface of transformers' image processors. Settings are class attributes, which a model's files may
    override."""

    do_resize = do_rescale = do_normalize = do_convert_rgb = True

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
