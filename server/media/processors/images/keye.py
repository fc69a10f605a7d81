"""Pictures of Keye-VL: PaddleOCR-VL's, with bounds that its files name."""

from typing import Any, Final

from transformers import PaddleOCRVLImageProcessorPil

_BOUNDS: Final = ("min_pixels", "max_pixels")


class KeyeImages(PaddleOCRVLImageProcessorPil):
    def __init__(self, **settings: Any) -> None:
        """Raises ValueError if a bound is missing: its authors' default is in their code alone."""
        size = dict(settings.pop("size", None) or {})
        bounds = {name: settings.pop(name, size.get(name)) for name in _BOUNDS}
        if missing := [name for name, value in bounds.items() if value is None]:
            raise ValueError(f"{missing[0]} is missing in preprocessor_config.json, expected pixels of a picture")
        super().__init__(**bounds, **settings)
