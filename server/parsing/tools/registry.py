"""Every format of tool calls by name, and the choice by a model's chat template."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from . import deepseek, gemma, json_formats, markup_formats, mistral, python_calls
from .format import ToolFormat

FORMATS: Final[tuple[ToolFormat, ...]] = (
    *deepseek.FORMATS,
    *markup_formats.FORMATS,
    *gemma.FORMATS,
    *mistral.FORMATS,
    *json_formats.MESSAGE_FORMATS,
    *python_calls.FORMATS,
    *json_formats.FORMATS,
)
"""In the order in which a template is held against them; so they stand in each module, too."""

_ALIASES: Final = {
    "qwen": "hermes",
    "qwen3_json": "hermes",
    "mimo": "hermes",
    "granite4": "hermes",
    "qwen3_xml": "qwen3_coder",
    "nemotron_v3": "qwen3_coder",
    "step3p5": "qwen3_coder",
    "llama4_json": "llama3_json",
    "hunyuan_a13b": "jamba",
    "minimax_m1": "minimax",
    "ling3": "glm45",
    "cohere_command4": "cohere_command3",
}
_NAMED: Final = {format.name: format for format in FORMATS}
TOOL_FORMATS: Final[Mapping[str, ToolFormat]] = MappingProxyType(
    {**_NAMED, **{alias: _NAMED[name] for alias, name in _ALIASES.items()}}
)


def detected(template_source: str) -> ToolFormat:
    """The format of a model with this chat template; the plain one where the template says nothing of calls."""
    return next((format for format in FORMATS if format.detects(template_source)), _NAMED["plain"])
