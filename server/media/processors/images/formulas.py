"""Pictures of PP-FormulaNet: as Nougat's, without torchvision."""

from typing import Any

import transformers as untyped_transformers

transformers: Any = untyped_transformers


class FormulaImages(transformers.NougatImageProcessorPil):  # type: ignore[misc]  # untyped
    """Crops margins, fits the rest into a square, and fills that up."""

    image_mean = [0.7931] * 3  # as its parent's
    image_std = [0.1738] * 3
    size = {"height": 768, "width": 768}  # noqa: RUF012
