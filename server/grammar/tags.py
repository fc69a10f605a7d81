"""Structural tags as expressions."""

from collections.abc import Sequence
from typing import assert_never

from stentor.protocols.common.errors import refused
from stentor.protocols.openai import structural_tags as tags

from .client_grammar import checked_lark
from .ebnf import is_ebnf, lark_of_ebnf
from .lark import ANY_TEXT, Lark


def grammar_expression(lark: Lark, source: str, field: str) -> str:
    """A client's grammar, in EBNF or Lark. Raises BadRequest."""
    if is_ebnf(source):
        return lark.grammar(lark_of_ebnf(source, field, lark.literal))
    return lark.grammar(checked_lark(source, field, lark.whitespace))


def tags_expression(lark: Lark, tag: tags.StructuralTag, field: str) -> str:
    """Raises BadRequest for a form that cannot be enforced."""
    match tag:
        case tags.ConstString():
            return lark.literal(tag.value)
        case tags.JsonContent():
            return lark.json(tag.json_schema, field)
        case tags.AnyText():
            return lark.rule(ANY_TEXT)
        case tags.Pattern():
            return lark.regex(tag.pattern, field)
        case tags.Grammar():
            return grammar_expression(lark, tag.grammar, field)
        case tags.Sequence():
            return lark.rule(" ".join(_elements(lark, tag.elements, field)))
        case tags.Or():
            return lark.either([tags_expression(lark, element, field) for element in tag.elements])
        case tags.Tag() | tags.TagBody():
            return _tag(lark, tag, tag.begin, field)
        case tags.TriggeredTags():
            return _triggered(lark, tag, field)
        case tags.TagsWithSeparator():
            return _separated(lark, tag, field)
        case _:
            assert_never(tag)


def _elements(lark: Lark, elements: Sequence[tags.StructuralTag], field: str) -> list[str]:
    """One after the other; text that is followed by a certain text ends where that comes first."""
    written: list[str] = []
    taken = False
    for element, following in zip(elements, [*elements[1:], None], strict=True):
        if taken:
            taken = False
        elif isinstance(element, tags.AnyText) and isinstance(following, tags.ConstString) and following.value:
            written.append(lark.text_until(following.value))
            taken = True
        else:
            written.append(tags_expression(lark, element, field))
    return written


def _tag(lark: Lark, tag: tags.Tag | tags.TagBody, begin: str, field: str) -> str:
    """One tag, of whose beginning ``begin`` is still to come."""
    if isinstance(tag.content, tags.AnyText) and tag.end:
        return lark.rule(f"{lark.literal(begin)} {lark.text_until(tag.end)}")
    return lark.rule(f"{lark.literal(begin)} {tags_expression(lark, tag.content, field)} {lark.literal(tag.end)}")


def _triggered(lark: Lark, tag: tags.TriggeredTags, field: str) -> str:
    begun: list[str] = []
    left = list(tag.tags)
    for trigger in tag.triggers:
        mine = [one for one in left if one.begin.startswith(trigger)]
        left = [one for one in left if not one.begin.startswith(trigger)]
        if mine:
            rests = [_tag(lark, one, one.begin[len(trigger) :], field) for one in mine]
            begun.append(lark.rule(f"{lark.text_until(trigger)} {lark.either(rests)}"))
    if left:
        where = f"{field}.triggers"
        raise refused(where, "a tag begins with none of them", "invalid_value")
    one = lark.either(begun)
    text = lark.rule(ANY_TEXT)
    if tag.stop_after_first:
        return one if tag.at_least_one else lark.rule(f"{one} | {text}")
    return lark.rule(f"{one}{'+' if tag.at_least_one else '*'} {text}")


def _separated(lark: Lark, tag: tags.TagsWithSeparator, field: str) -> str:
    one = lark.either([_tag(lark, body, body.begin, field) for body in tag.tags])
    every = one if tag.stop_after_first else lark.rule(f"{one} ({lark.literal(tag.separator)} {one})*")
    return every if tag.at_least_one else lark.rule(f"{every}?")
