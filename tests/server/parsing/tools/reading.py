"""Runs a format's parser over a text and gathers what it hands out."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from stentor.server.parsing.interface import CallArguments, CallEnd, CallStart, Content, Piece, Thought, Tool
from stentor.server.parsing.tools.format import ToolFormat

WEATHER = Tool(
    "get_weather",
    "What the sky does.",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "place": {"type": "object"},
            "hours": {"type": "array"},
            "rain": {"type": "boolean"},
        },
        "required": ["city"],
    },
)
NOW = Tool("now", None, None)
TOOLS = (WEATHER, NOW)


@dataclass
class Call:
    name: str
    arguments: str = ""
    whole: bool = False
    id: str | None = field(default=None, compare=False)

    @property
    def value(self) -> Any:
        return json.loads(self.arguments)


@dataclass
class Reading:
    """What a parser made of a text; the order of its parts in ``order``."""

    content: str
    calls: list[Call]
    order: list[str]

    @property
    def named(self) -> list[tuple[str, Any]]:
        return [(call.name, call.value) for call in self.calls]


def pieces(
    format: ToolFormat, parts: Iterable[str], tools: Sequence[Tool] = TOOLS, *, cut_off: bool = False
) -> list[list[Piece]]:
    """What each push brings, and the end."""
    parser = format.parser(tools)
    assert parser.thinking is False
    return [*(parser.push(part) for part in parts), parser.finish(cut=cut_off)]


def joined(found: Iterable[Piece]) -> Reading:
    reading = Reading("", [], [])
    for piece in found:
        match piece:
            case Content(text):
                assert text
                reading.content += text
                if reading.order and reading.order[-1].startswith("text "):
                    reading.order[-1] += text
                else:
                    reading.order.append(f"text {text}")
            case CallStart(name, id):
                assert name
                reading.calls.append(Call(name, id=id))
                reading.order.append(f"call {name}")
            case CallArguments(text):
                assert text
                assert not reading.calls[-1].whole
                reading.calls[-1].arguments += text
            case CallEnd():
                reading.calls[-1].whole = True
                reading.order.append("end")
            case Thought():
                raise AssertionError("A tool parser hands out no thoughts.")
    return reading


def read(format: ToolFormat, *parts: str, tools: Sequence[Tool] = TOOLS, cut_off: bool = False) -> Reading:
    return joined(piece for some in pieces(format, parts, tools, cut_off=cut_off) for piece in some)


def cut(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]
