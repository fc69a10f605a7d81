"""Pictures of MiniMax-M3: Qwen2-VL's patches of smaller pictures."""

from typing import Any, Final

import transformers as untyped_transformers

transformers: Any = untyped_transformers

_UNUSED_SIZE: Final = [672, 672]
"""What published files say of sizes, which the model was not trained with."""


class MiniMaxM3Images(transformers.Qwen2VLImageProcessorPil):  # type: ignore[misc]  # untyped
    size = {"shortest_edge": 4 * 28 * 28, "longest_edge": 451_584}  # noqa: RUF012  # as its parent's

    def __init__(self, size: Any = None, **settings: Any) -> None:
        super().__init__(size=None if size == _UNUSED_SIZE else size, **settings)
