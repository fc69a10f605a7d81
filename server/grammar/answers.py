"""From the required form of an answer to a grammar expression."""

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
    """An expression that matches exactly the allowed answers. Raises BadRequest for a form that cannot be enforced."""
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
    """llguidance's white space options; None if the client leaves them to the server. Raises BadRequest."""
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
    """The source of a grammar in which the expression ``body`` follows the model's reasoning.

    ``thinking_end`` is the marker, text or special token, that ends reasoning; None for models without it. ``opened``:
    the prompt has begun reasoning, so the marker must come. Otherwise the model begins it with ``thinking_begin``, or
    answers at once; without that marker it cannot reason, since any text might be reasoning. ``newlines``: at most two
    may stand between, as models write them; they are no part of the answer.
    """
    if thinking_end is None or not (opened or thinking_begin):
        return lark.source(body)
    thought = lark.text_until(thinking_end)
    if newlines:
        thought = f'{thought} ("\\n" | "\\n\\n")?'
    if not opened:
        thought = f"({lark.literal(thinking_begin or '')} {thought})?"
    return lark.source(f"{thought} {lark.rule(body)}")
