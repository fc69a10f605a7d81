"""Structural tags: text in which some stretches, between a beginning and an end, follow a form of their own.

The shape is xgrammar's, which vLLM takes as ``{"type": "structural_tag", "format": …}``, with its older one of
``structures`` and ``triggers``.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ..common.decoding import converted

Text = Annotated[str, Meta(min_length=1)]


class ConstString(msgspec.Struct, frozen=True, tag="const_string"):
    value: str


class JsonContent(msgspec.Struct, frozen=True, tag="json_schema"):
    json_schema: dict[str, Any] | bool


class AnyText(msgspec.Struct, frozen=True, tag="any_text"):
    pass


class Pattern(msgspec.Struct, frozen=True, tag="regex"):
    pattern: str


class Grammar(msgspec.Struct, frozen=True, tag="grammar"):
    grammar: str


class Sequence(msgspec.Struct, frozen=True, tag="sequence"):
    elements: Annotated[list["StructuralTag"], Meta(min_length=1)]


class Or(msgspec.Struct, frozen=True, tag="or"):
    elements: Annotated[list["StructuralTag"], Meta(min_length=1)]


class Tag(msgspec.Struct, frozen=True, tag="tag"):
    begin: str
    content: "StructuralTag"
    end: str


class TagBody(msgspec.Struct, frozen=True):
    """A tag within a list of nothing but tags, which need not say that they are."""

    begin: Text
    content: "StructuralTag"
    end: str


class TriggeredTags(msgspec.Struct, frozen=True, tag="triggered_tags"):
    """Any text, and where one of the triggers has come, one of the tags that begin with it."""

    triggers: Annotated[list[Text], Meta(min_length=1)]
    tags: Annotated[list[TagBody], Meta(min_length=1)]
    at_least_one: bool = False
    stop_after_first: bool = False


class TagsWithSeparator(msgspec.Struct, frozen=True, tag="tags_with_separator"):
    tags: Annotated[list[TagBody], Meta(min_length=1)]
    separator: str
    at_least_one: bool = False
    stop_after_first: bool = False


StructuralTag = (
    ConstString | JsonContent | AnyText | Pattern | Grammar | Sequence | Or | Tag | TriggeredTags | TagsWithSeparator
)


class _Structure(msgspec.Struct, frozen=True):
    begin: Text
    schema: dict[str, Any] | bool
    end: str


class _Triggers(msgspec.Struct, frozen=True):
    structures: Annotated[list[_Structure], Meta(min_length=1)]
    triggers: Annotated[list[Text], Meta(min_length=1)]


def from_triggers(value: dict[str, Any], field: str) -> TriggeredTags:
    """Converts the older shape to the newer. Raises BadRequest naming missing fields."""
    old = converted(value, _Triggers, field)
    tags = [TagBody(one.begin, JsonContent(one.schema), one.end) for one in old.structures]
    return TriggeredTags(old.triggers, tags)
