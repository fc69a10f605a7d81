"""Takes the place of a video processor in transformers' processors; their own need torchvision."""

from typing import Any, Final


class FrameProcessor:
    """Says what processors ask of it to write the text of a video; frames are made by :mod:`.model_videos`."""

    model_input_names: Final = ()

    def __init__(self, images: Any) -> None:
        """``images``: the image processor that makes the frames."""
        self.merge_size: Final = getattr(images, "merge_size", 1)
        self.temporal_patch_size: Final = getattr(images, "temporal_patch_size", 1)
