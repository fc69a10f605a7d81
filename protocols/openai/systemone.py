"""``/v1/systemone``: questions about a state, answered by the probabilities of their options (vLLM)."""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from ..common import limits
from ..common.bounds import chars_at_most, items_at_most, total_chars_at_most
from ..common.errors import wrong
from ..common.limits import Limits
from .sampling import Name, not_served

REFUSED: Final = ("audio", "videos", "joint")
MAX_LEVELS: Final = 10
"""Of a score: the label of each is its digit."""

Kind = Literal["choice", "noul", "score"]


class SystemOneQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Kind
    instructions: Any = ""
    """Text, or JSON that is read as text."""
    criteria: Any = None
    """Of a choice the names of its options, each with a description or null; of a yes-or-no question what ``true`` and
    ``false`` mean; of a score its levels, from the lowest."""

    @property
    def text(self) -> str:
        return written(self.instructions)

    def options(self, field: str) -> list[tuple[str, str]]:
        """Names and descriptions, which may be empty. Raises BadRequest."""
        where, given = f"{field}.criteria", self.criteria
        match self.type:
            case "choice":
                if not isinstance(given, dict) or not given:
                    raise wrong(where, "must be an object of options, each with a description or null", "invalid_value")
                return [(name, written(described)) for name, described in given.items()]
            case "noul":
                given = {} if given is None else given
                if not isinstance(given, dict) or not given.keys() <= {"true", "false"}:
                    raise wrong(where, "must be an object with `true` and `false`", "invalid_value")
                return [(name, written(given.get(side))) for name, side in (("yes", "true"), ("no", "false"))]
            case _:
                if not isinstance(given, list) or not 2 <= len(given) <= MAX_LEVELS:
                    raise wrong(where, f"must be a list of 2 to {MAX_LEVELS} levels, from the lowest", "invalid_value")
                return [(written(level), "") for level in given]


class SystemOneRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    state: Any
    """Text, or JSON that is read as text."""
    questions: dict[str, SystemOneQuestion]
    """By name, in the order of the answers."""
    model: Name | None = None
    instructions: str | None = None
    """Of the system, before the state."""
    images: list[str] | None = None
    """URLs."""
    audio: list[str] | None = None
    videos: list[str] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    joint: bool = False
    cache_salt: Annotated[str, Meta(min_length=1, max_length=limits.MAX_NAME_LENGTH)] | None = None
    priority: limits.Priority = 0
    request_id: Annotated[str, Meta(max_length=limits.MAX_REQUEST_ID)] | None = None

    def check(self, limits: Limits) -> None:
        """Raises BadRequest."""
        if not self.questions:
            raise wrong("questions", "must have at least one", "invalid_value")
        items_at_most(list(self.questions), limits.max_prompts, "questions")
        chars_at_most(written(self.state), limits.max_prompt_chars, "state")
        total_chars_at_most(
            sum(len(question.text) for question in self.questions.values()), limits.max_prompt_chars, "questions"
        )
        for name in REFUSED:
            if getattr(self, name):
                raise not_served(name)
        kwargs = self.chat_template_kwargs or {}
        if kwargs.get("enable_thinking") or kwargs.get("thinking"):
            raise wrong("chat_template_kwargs", "must leave thinking off: an answer is read from its first token")

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation that the questions end."""
        begin = [] if not self.instructions else [{"role": "system", "content": self.instructions}]
        state: Any = written(self.state)
        if self.images:
            pictures = [{"type": "image_url", "image_url": {"url": url}} for url in self.images]
            state = [*pictures, {"type": "text", "text": state}]
        return [*begin, {"role": "user", "content": state}]


def written(value: Any) -> str:
    """A text as it is, null as none, and any other value as JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    return msgspec.json.encode(value).decode()


class SystemOneChoice(msgspec.Struct, tag="choice", tag_field="type", frozen=True):
    choice: str
    probabilities: dict[str, float]
    confidence: float


class SystemOneNoul(msgspec.Struct, tag="noul", tag_field="type", frozen=True):
    noul: float
    """The probability of yes."""
    probabilities: dict[str, float]
    confidence: float


class SystemOneScore(msgspec.Struct, tag="score", tag_field="type", frozen=True):
    score: float
    """The mean level, from 0 on."""
    legend: dict[str, str]
    probabilities: dict[str, float]
    confidence: float


class SystemOneUsage(msgspec.Struct, frozen=True):
    input_tokens: int
    output_tokens: int


class SystemOneDiagnostics(msgspec.Struct, frozen=True):
    label_mass: float
    """The probability that the answer is a label at all."""
    argmax_is_label: bool


class SystemOneResponse(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["structured_decision"] = "structured_decision"
    created: int
    model: str
    answers: dict[str, SystemOneChoice | SystemOneNoul | SystemOneScore]
    usage: SystemOneUsage
    diagnostics: dict[str, SystemOneDiagnostics]


decoder: Final = msgspec.json.Decoder(SystemOneRequest)
