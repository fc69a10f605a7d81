"""Stentor: a single-node server for language and speech models."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stentor.server.offline.beams import BeamSearchParams as BeamSearchParams
    from stentor.server.offline.llm import LLM as LLM
    from stentor.server.offline.llm import SamplingParams as SamplingParams
    from stentor.server.offline.llm import StructuredOutputsParams as StructuredOutputsParams

__version__ = "0.1.0"
__all__ = ["LLM", "BeamSearchParams", "SamplingParams", "StructuredOutputsParams", "__version__"]

_LATE = dict.fromkeys(("LLM", "SamplingParams", "StructuredOutputsParams"), "stentor.server.offline.llm")
_LATE["BeamSearchParams"] = "stentor.server.offline.beams"


def __getattr__(name: str) -> Any:
    """Public names that bring the server with them are imported when they are asked for."""
    if name in _LATE:
        from importlib import import_module

        return getattr(import_module(_LATE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
