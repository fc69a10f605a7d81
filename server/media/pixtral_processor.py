"""The text that stands for a picture of Pixtral and Mistral 3, whose own processor needs torchvision to be imported.

A picture is rows of ``[IMG]``, one for each patch after merging; ``[IMG_BREAK]`` ends a row, ``[IMG_END]`` the last.
"""

from typing import Any

from transformers.processing_utils import ProcessorMixin


class PixtralProcessor(ProcessorMixin):
    def __init__(
        self,
        image_processor: Any = None,
        tokenizer: Any = None,
        patch_size: int = 16,
        spatial_merge_size: int = 1,
        chat_template: str | None = None,
        image_token: str = "[IMG]",
        image_break_token: str = "[IMG_BREAK]",
        image_end_token: str = "[IMG_END]",
    ) -> None:
        super().__init__(image_processor, tokenizer, chat_template=chat_template)  # type: ignore[no-untyped-call]
        self.image_token = image_token
        self._merged = patch_size * spatial_merge_size
        """Pixels on each side of what one token stands for."""
        self._break = image_break_token
        self._end = image_end_token

    def _process_images(self, images: Any, **arguments: Any) -> Any:
        return super()._process_images(images, **{**arguments, "patch_size": self._merged})

    def replace_image_token(self, image_inputs: Any, image_idx: int, **_: Any) -> str:
        height, width = (int(length) // self._merged for length in image_inputs["image_sizes"][image_idx])
        row = self.image_token * width
        return self._break.join([row] * height) + self._end
