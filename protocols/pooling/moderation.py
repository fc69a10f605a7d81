"""``/v1/moderations``: the output of a classifier in OpenAI's shape."""

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from ..common.errors import missing, wrong
from ..openai.sampling import Name, not_served
from .common import InputFields

_PART: Final = "\n"
"""Between the texts of one input that comes in parts."""


class ModerationRequest(msgspec.Struct, kw_only=True):
    input: str | Annotated[list[str | dict[str, Any]], Meta(min_length=1)]
    """Texts, each with a result of its own; or the parts of one content."""
    model: Name | None = None

    @property
    def fields(self) -> InputFields:
        """The same as fields of a classification request. Raises BadRequest."""
        if isinstance(self.input, str):
            return InputFields(input=self.input)
        texts: list[Any] = [each for each in self.input if isinstance(each, str)]
        parts = [(index, each) for index, each in enumerate(self.input) if isinstance(each, dict)]
        if texts and parts:
            raise wrong("input", "must hold texts or parts, not both", "invalid_value")
        return InputFields(input=texts or _PART.join(_text(part, f"input[{index}]") for index, part in parts))


def _text(part: dict[str, Any], where: str) -> str:
    kind, text = part.get("type"), part.get("text")
    if kind != "text":
        raise not_served(f"{where}.type", f"`{where}`: a part of type `{str(kind)[:40]}`; only texts are classified")
    if text is None:
        raise missing(f"{where}.text")
    if not isinstance(text, str):
        raise wrong(f"{where}.text", "must be a string", "invalid_value")
    return text


class ModerationResult(msgspec.Struct, frozen=True):
    flagged: bool
    categories: dict[str, bool]
    """By the model's own labels."""
    category_scores: dict[str, float]
    category_applied_input_types: dict[str, list[str]]


class ModerationResponse(msgspec.Struct, frozen=True):
    id: str
    model: str
    results: list[ModerationResult]


decoder: Final = msgspec.json.Decoder(ModerationRequest)
