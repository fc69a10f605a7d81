"""Every format of tool calls by name, and the choice by a model's chat template."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from .deepseek import DEEPSEEK_V3, DEEPSEEK_V4, DEEPSEEK_V31, DEEPSEEK_V32
from .format import ToolFormat
from .gemma import FUNCTIONGEMMA, GEMMA4
from .json_formats import (
    APERTUS,
    COHERE,
    ERNIE45,
    GIGACHAT3,
    GIGACHAT31,
    GRANITE,
    GRANITE_20B_FC,
    HERMES,
    INTERNLM,
    JAMBA,
    LLAMA3_JSON,
    LONGCAT,
    NEMOTRON,
    PHI4_MINI,
    PLAIN,
    XLAM,
)
from .markup_formats import GLM45, GLM47, HY_V3, HY_V3_OPEN, MINIMAX, MINIMAX_M2, QWEN3_CODER, SEED_OSS, STEP3
from .mistral import MISTRAL, MISTRAL_ARRAY
from .others import FUNCTIONARY, KIMI_K2, MINICPM5, SOLAR
from .python_calls import LFM2, LLAMA4_PYTHONIC, OLMO3, PYTHONIC

FORMATS: Final[tuple[ToolFormat, ...]] = (
    DEEPSEEK_V32,
    DEEPSEEK_V4,
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    KIMI_K2,
    STEP3,
    SOLAR,
    MINIMAX_M2,
    MINIMAX,
    SEED_OSS,
    QWEN3_CODER,
    MINICPM5,
    FUNCTIONARY,
    HY_V3_OPEN,
    HY_V3,
    GLM45,
    GLM47,
    FUNCTIONGEMMA,
    GEMMA4,
    MISTRAL,
    MISTRAL_ARRAY,
    GIGACHAT31,
    GIGACHAT3,
    INTERNLM,
    LFM2,
    LLAMA4_PYTHONIC,
    OLMO3,
    PYTHONIC,
    APERTUS,
    COHERE,
    NEMOTRON,
    XLAM,
    GRANITE,
    GRANITE_20B_FC,
    PHI4_MINI,
    LONGCAT,
    JAMBA,
    ERNIE45,
    HERMES,
    LLAMA3_JSON,
    PLAIN,
)
"""In the order in which a template is held against them."""

_ALIASES: Final[dict[str, ToolFormat]] = {
    "qwen": HERMES,
    "qwen3_json": HERMES,
    "mimo": HERMES,
    "granite4": HERMES,
    "qwen3_xml": QWEN3_CODER,
    "nemotron_v3": QWEN3_CODER,
    "step3p5": QWEN3_CODER,
    "llama4_json": LLAMA3_JSON,
    "hunyuan_a13b": JAMBA,
    "minimax_m1": MINIMAX,
    "ling3": GLM45,
    "cohere_command4": COHERE,
}
_NAMED: Final[dict[str, ToolFormat]] = {format.name: format for format in FORMATS}
TOOL_FORMATS: Final[Mapping[str, ToolFormat]] = MappingProxyType({**_NAMED, **_ALIASES})


def detected(template_source: str) -> ToolFormat:
    """The format of a model with this chat template; the plain one where the template says nothing of calls."""
    return next((format for format in FORMATS if format.detects(template_source)), PLAIN)
