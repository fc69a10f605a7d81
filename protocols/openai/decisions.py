"""``/v1/decisions``: questions about an input, answered by the probabilities of their options."""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from ..common import limits
from ..common.bounds import chars_at_most, items_at_most, total_chars_at_most
from ..common.errors import BadRequest, wrong
from ..common.limits import Limits
from .responses.request import Input
from .sampling import Name

IGNORED_FIELDS: Final = ("safety_identifier", "prompt_cache_key", "prompt_cache_options")
_ITEMS: Final = ("message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output")
_PARTS: Final = ("input_text", "input_image", "input_json", "output_text", "refusal")


class QuestionPart(msgspec.Struct, frozen=True):
    type: Literal["input_text", "input_json"]
    text: str = ""
    data: Any = None

    @property
    def written(self) -> str:
        return self.text if self.type == "input_text" else written_json(self.data)


class _Asked(msgspec.Struct, frozen=True, tag_field="type", forbid_unknown_fields=True, kw_only=True):
    instructions: str | list[QuestionPart]
    name: str | None = None

    @property
    def text(self) -> str:
        if isinstance(self.instructions, str):
            return self.instructions
        return "\n".join(part.written for part in self.instructions)


class Predicate(_Asked, frozen=True, tag="predicate"):
    """Is it true?"""


class ChoiceOption(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    value: str | bool
    description: str = ""


class Choice(_Asked, frozen=True, tag="choice"):
    choices: list[ChoiceOption]
    """At least 2."""


class Level(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    label: str
    description: str = ""


class Score(_Asked, frozen=True, tag="score"):
    levels: list[Level]
    """At least 2, from the lowest to the highest."""


class DecisionRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    model: Name | None = None
    input: Input
    questions: Annotated[list[Predicate | Choice | Score], Meta(min_length=1)]
    cache_salt: Annotated[str, Meta(min_length=1, max_length=limits.MAX_NAME_LENGTH)] | None = None
    """vLLM's."""
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_options: Any = None

    def check(self, limits: Limits) -> None:
        """Raises BadRequest."""
        items_at_most(self.questions, limits.max_prompts, "questions")
        total_chars_at_most(sum(len(one.text) for one in self.questions), limits.max_prompt_chars, "questions")
        for index, question in enumerate(self.questions):
            match question:
                case Choice(choices=choices):
                    if len({(type(option.value), option.value) for option in choices}) < max(2, len(choices)):
                        raise wrong(f"questions[{index}].choices", "must have at least 2 values, all different")
                case Score(levels=levels) if len(levels) < 2:
                    raise wrong(f"questions[{index}].levels", "must be at least 2")
                case _:
                    pass
        if isinstance(self.input, str):
            chars_at_most(self.input, limits.max_prompt_chars, "input")
        else:
            self.input = [_evidence(item, f"input[{index}]") for index, item in enumerate(self.input)]
            _check_outputs(self.input)


def written_json(data: Any) -> str:
    """A value as the model reads it."""
    return msgspec.json.encode(data).decode()


def _evidence(item: dict[str, Any], field: str) -> dict[str, Any]:
    """An item of a response's input, in which JSON is text. Raises BadRequest for one that a decision does not take."""
    kind = item.get("type", "message")
    if kind not in _ITEMS:
        raise wrong(f"{field}.type", f"must be one of {', '.join(_ITEMS)}", "invalid_value")
    name = "output" if kind.endswith("_output") else "content"
    parts = item.get(name)
    if not isinstance(parts, list):
        return item
    return {**item, name: [_part(*each, f"{field}.{name}") for each in enumerate(parts)]}


def _part(index: int, part: Any, field: str) -> Any:
    where = f"{field}[{index}]"
    if not isinstance(part, dict) or part.get("type") not in _PARTS:
        raise wrong(f"{where}.type", f"must be one of {', '.join(_PARTS)}", "invalid_value")
    if part["type"] == "input_image" and not part.get("image_url"):
        raise wrong(f"{where}.image_url", "is required", "missing_required_parameter")
    if part["type"] != "input_json":
        return part
    if not isinstance(part.get("data"), dict | list):
        raise wrong(f"{where}.data", "must be an object or a list of objects", "invalid_value")
    return {"type": "input_text", "text": written_json(part["data"])}


def _check_outputs(items: Sequence[dict[str, Any]]) -> None:
    called = set()
    for index, item in enumerate(items):
        kind = str(item.get("type", ""))
        if kind.endswith("_call"):
            called.add(item.get("call_id"))
        elif kind.endswith("_output") and item.get("call_id") not in called:
            raise BadRequest(
                f"`input[{index}].call_id` is that of no call before it; send the call, too.", f"input[{index}].call_id"
            )


class PredicateAnswer(msgspec.Struct, tag="predicate", tag_field="type", frozen=True):
    name: str | None
    probability: float


class ChoiceProbability(msgspec.Struct, frozen=True):
    value: str | bool
    probability: float


class ChoiceAnswer(msgspec.Struct, tag="choice", tag_field="type", frozen=True):
    name: str | None
    choice: str | bool
    probabilities: list[ChoiceProbability]
    confidence: float


class LevelProbability(msgspec.Struct, frozen=True):
    value: int
    label: str
    probability: float


class ScoreAnswer(msgspec.Struct, tag="score", tag_field="type", frozen=True):
    name: str | None
    score: float
    probabilities: list[LevelProbability]
    confidence: float


class DecisionInputDetails(msgspec.Struct, frozen=True):
    cached_tokens: int
    cache_write_tokens: int = 0


class DecisionOutputDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int = 0


class DecisionUsage(msgspec.Struct, frozen=True):
    input_tokens: int
    input_tokens_details: DecisionInputDetails
    output_tokens: int
    """One of each question."""
    output_tokens_details: DecisionOutputDetails
    total_tokens: int


class DecisionResponse(msgspec.Struct, frozen=True):
    model: str
    answers: list[PredicateAnswer | ChoiceAnswer | ScoreAnswer]
    usage: DecisionUsage


decoder: Final = msgspec.json.Decoder(DecisionRequest)
