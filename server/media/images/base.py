"""What the server's own image processors have in common."""

from typing import Any

from transformers.image_processing_backends import PilBackend


class OwnImages(PilBackend):
    """Takes pictures as transformers' own do. Its settings are class attributes, which a model's files may change."""

    do_resize = do_rescale = do_normalize = do_convert_rgb = True

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
