"""Checks a decoded request against the operator's limits. A refusal names the field and the limit."""

from collections.abc import Sequence, Sized
from typing import Any, Final

import msgspec

from .errors import BadRequest, wrong
from .limits import MAX_TOKEN_RULES

LIST_TOO_LONG: Final = "array_above_max_length"
TEXT_TOO_LONG: Final = "string_above_max_length"
OBJECT_TOO_LARGE: Final = "object_above_max_properties"
NUMBER_TOO_LARGE: Final = "integer_above_max_value"
ANSWER_TOO_LARGE: Final = "response_too_large"

TOKEN_ID_BYTES: Final = 7
TOKEN_TEXT_BYTES: Final = 4


def at_most(value: int | None, most: int, field: str) -> None:
    if value is not None and value > most:
        raise wrong(field, f"is {value}; this server allows at most {most}", NUMBER_TOO_LARGE)


def items_at_most(items: Sequence[Any] | None, most: int, field: str) -> None:
    if items is not None and len(items) > most:
        raise wrong(field, f"has {len(items)} items; this server allows at most {most}", LIST_TOO_LONG)


def keys_at_most(mapping: dict[str, Any] | None, most: int, field: str) -> None:
    if mapping is not None and len(mapping) > most:
        raise wrong(field, f"has {len(mapping)} entries; this server allows at most {most}", OBJECT_TOO_LARGE)


def rules_at_most(rules: Sized | None, prompts: int, field: str) -> None:
    """Checks the number of rules, which each of several prompts gets."""
    if rules is not None and prompts > 1 and len(rules) * prompts > MAX_TOKEN_RULES:
        raise wrong(
            field,
            f"has {len(rules)} entries, which for {prompts} prompts are more than the {MAX_TOKEN_RULES} that one "
            "request may have; send fewer prompts",
            LIST_TOO_LONG,
        )


def chars_at_most(text: str | None, most: int, field: str) -> None:
    total_chars_at_most(0 if text is None else len(text), most, field)


def total_chars_at_most(count: int, most: int, field: str) -> None:
    """Checks the characters of several texts in ``field``, together."""
    if count > most:
        raise wrong(field, f"has {count} characters; this server allows at most {most}", TEXT_TOO_LONG)


def texts_at_most(texts: str | list[str] | None, most: int, most_chars: int, field: str) -> None:
    """One text, or a list of ``most`` texts, of ``most_chars`` characters each."""
    if isinstance(texts, str):
        chars_at_most(texts, most_chars, field)
    elif texts is not None:
        items_at_most(texts, most, field)
        for index, text in enumerate(texts):
            chars_at_most(text, most_chars, f"{field}[{index}]")


def prompt_chars_at_most(prompts: Sequence[object], most: int, field: str = "prompt") -> None:
    """Checks the characters of the prompts that are texts, together."""
    total_chars_at_most(sum(len(prompt) for prompt in prompts if isinstance(prompt, str)), most, field)


def message_chars_at_most(messages: Sequence[dict[str, Any]], most: int, field: str = "messages") -> None:
    total = 0
    for message in messages:
        content = message.get("content")
        parts = content if isinstance(content, list) else [{"text": content}]
        texts = [part.get("text") for part in parts if isinstance(part, dict)]
        total += sum(len(text) for text in texts if isinstance(text, str))
    total_chars_at_most(total, most, field)


def depth_at_most(request: msgspec.Struct, most: int) -> None:
    """Checks the nesting of the decoded request; the body itself is the first level."""
    for field in request.__struct_fields__:
        depth = 1
        level = _containers([getattr(request, field)])
        while level:
            depth += 1
            if depth > most:
                raise too_deep(most, field)
            level = [inner for outer in level for inner in _containers(outer)]


def _containers(values: Any) -> list[Any]:
    if isinstance(values, msgspec.Struct):
        values = [getattr(values, field) for field in values.__struct_fields__]
    inside = values.values() if isinstance(values, dict) else values
    return [value for value in inside if isinstance(value, dict | list | msgspec.Struct)]


def too_deep(most: int, field: str | None) -> BadRequest:
    where = f"`{field}`" if field else "The JSON"
    return BadRequest(f"{where} is nested too deeply; this server allows {most} levels.", field)


class AnswerSize(msgspec.Struct, frozen=True, kw_only=True):
    """Estimate of an answer's size in bytes, for tokens of usual length.

    Longer answers are noticed while they are written.
    """

    n: int
    """Choices of each prompt."""
    prompts: int = 1
    prompt_tokens: int
    """Of all prompts together."""
    prompt_bytes: int
    """Bytes of all prompts that the answer repeats or describes."""
    repeated: bool = True
    """Each choice has that of its own."""
    most_tokens: int = 0
    """Most generated tokens for one choice of each prompt, together."""
    token_bytes: int = 0
    """For each of them."""
    scores: int | None = None
    """Requested alternatives for each token."""
    scores_field: str = "logprobs"
    tokens_field: str = "max_tokens"
    prompt_field: str = "prompt"

    @property
    def fixed(self) -> int:
        """Before anything has been generated."""
        return self.prompt_bytes * (self.n if self.repeated else 1)

    @property
    def bytes(self) -> int:
        return self.fixed + self.n * self.most_tokens * self.token_bytes

    def check(self, most: int) -> None:
        """Raises BadRequest that names the field to reduce."""
        if self.bytes <= most:
            return
        scores = "" if self.scores is None else f", {self.scores} log-probabilities a token"
        raise BadRequest(
            f"The answer would have about {self.bytes} bytes ({self.prompts} prompts of {self.prompt_tokens} tokens "
            f"together, n={self.n}, at most {self.most_tokens} tokens generated{scores}); this server writes at most "
            f"{most}. Lower `{self._culprit(most)}`.",
            self._culprit(most),
            ANSWER_TOO_LARGE,
        )

    def _culprit(self, most: int) -> str:
        if self.n > 1 and self.bytes // self.n <= most:
            return "n"
        if self.prompts > 1:
            return self.prompt_field
        if self.fixed <= most:
            return self.tokens_field
        return self.prompt_field if self.scores is None else self.scores_field


def listed_bytes(top: int) -> int:
    """Bytes of a token's log-probabilities in the four lists of completions; its own entry is always included."""
    return 48 + 32 * (top + 1)


def ranked_bytes(top: int) -> int:
    """In ``prompt_logprobs``."""
    return 80 * (top + 1)


def described_bytes(top: int) -> int:
    """The same in chat completions and responses."""
    return 120 + 88 * top
