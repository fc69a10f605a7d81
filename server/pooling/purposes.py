"""Prompt and adapter of a text, by the purpose of its vector."""

from typing import Final

from stentor.engine.model_config.encoders.pooling import QUERY, PoolingConfig
from stentor.protocols.common.errors import refused

_SAME: Final = (
    ("query", "search_query", "retrieval.query", "s2p_query", "retrieval_query"),
    ("document", "passage", "search_document", "retrieval.passage", "retrieval_document", "corpus"),
    ("classification", "Classification"),
    ("clustering", "Clustering", "separation"),
    ("text-matching", "STS", "sts", "semantic_similarity"),
)
"""Equivalent purposes of OpenAI's, Cohere's, Jina's and Voyage's clients, and of models."""
_MOST_SHOWN: Final = 16


def prompt_of(config: PoolingConfig, purpose: str | None, field: str = "") -> str:
    """The model's prompt of the name ``purpose``, or with None its default.

    A purpose that clients know without a prompt in the model gives none. Raises BadRequest for any other name in
    ``field``.
    """
    modules = config.modules
    prompts = modules.prompts
    if purpose is None:
        return "" if modules.default_prompt is None else prompts[modules.default_prompt]
    if purpose in prompts:
        return prompts[purpose]
    names = _same(purpose)
    if len(names) > 1 or purpose in config.adapters:
        return next((prompts[name] for name in names if name in prompts), "")
    task, _, side = purpose.rpartition(".")
    if task in config.adapters:
        return prompt_of(config, side, field)
    known = [*dict.fromkeys([*prompts, *config.adapters])] or [name for names in _SAME for name in names[:2]]
    shown = ", ".join(known[:_MOST_SHOWN])
    raise refused(field, f"the model has no prompt for `{purpose[:64]}`; it knows {shown}", "invalid_value")


def adapter_of(config: PoolingConfig, purpose: str | None) -> str:
    """The model's adapter for ``purpose``, a task or a task and a side (``code.query``); "" where it has none."""
    if purpose is None:
        return ""
    if config.modules.queries and QUERY in _same(purpose):
        return QUERY
    names = (purpose, *_same(purpose), purpose.rpartition(".")[0])
    return next((name for name in names if name in config.adapters), "")


def _same(purpose: str) -> tuple[str, ...]:
    """All its names."""
    return next((names for names in _SAME if purpose in names), (purpose,))
