"""From the form that a request wants of its answer to an expression of a grammar."""

from collections.abc import Mapping
from typing import Any

from stentor.protocols.openai.structured import (
    Answer,
    ChoiceAnswer,
    GrammarAnswer,
    JsonAnswer,
    RegexAnswer,
    TagsAnswer,
)

from .lark import Lark
from .tags import grammar_expression, tags_expression
from .whitespace import WHITESPACE, bounded_whitespace


def answer_expression(lark: Lark, answer: Answer) -> str:
    """Matches what the answer may be, and nothing else. Raises BadRequest for what cannot be held."""
    match answer:
        case JsonAnswer():
            return lark.json(answer.schema, answer.field, json_whitespace(answer), closed=answer.closed)
        case RegexAnswer():
            return lark.regex(answer.pattern, answer.field)
        case ChoiceAnswer():
            return lark.one_of(answer.choices)
        case GrammarAnswer():
            return grammar_expression(lark, answer.source, answer.field)
        case TagsAnswer():
            return tags_expression(lark, answer.tag, answer.field)


def json_whitespace(answer: JsonAnswer) -> Mapping[str, Any] | None:
    """llguidance's options for it; None where the client leaves them to the server. Raises BadRequest."""
    if answer.whitespace_pattern is not None:
        field = answer.field.rpartition(".")[0]
        where = f"{field}.whitespace_pattern" if field else "whitespace_pattern"
        pattern = bounded_whitespace(answer.whitespace_pattern, where)
        return {"whitespace_pattern": pattern} if pattern else WHITESPACE["none"]
    return WHITESPACE["none"] if answer.compact else None


def compose(
    lark: Lark,
    *,
    thinking_end: str | None,
    opened: bool,
    body: str,
    thinking_begin: str | None = None,
    newlines: bool = False,
) -> str:
    """The source of a grammar in which the expression ``body`` follows upon what the model thinks.

    ``thinking_end`` is the marker, text or special token, up to which any text is thought; None where the model does
    not think. ``opened``: the prompt has begun it, so the marker must come. Otherwise the model begins it itself with
    ``thinking_begin``, or answers at once; without that marker it cannot, for any text might then be a thought.
    ``newlines``: two at most may stand between, as models write them; they are no part of the answer.
    """
    if thinking_end is None or not (opened or thinking_begin):
        return lark.source(body)
    thought = lark.text_until(thinking_end)
    if newlines:
        thought = f'{thought} ("\\n" | "\\n\\n")?'
    if not opened:
        thought = f"({lark.literal(thinking_begin or '')} {thought})?"
    return lark.source(f"{thought} {lark.rule(body)}")
