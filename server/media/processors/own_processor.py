"""The base of the processors that are written here."""

from typing import Any

from transformers.processing_utils import ProcessorMixin


class OwnProcessor(ProcessorMixin):
    """transformers' mixin, which finds its parts by the parameters of ``__init__``, with types."""

    def __init__(self, *parts: Any, **named: Any) -> None:
        super().__init__(*parts, **named)  # type: ignore[no-untyped-call]
