"""Models of late interaction over pictures of pages: one that sees, and a layer on each of its tokens (ColPali,
arXiv:2407.01449). Torch-free."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from .config_fields import ConfigError, Fields
from .hf_config import BY_TYPE
from .hf_text_part import Seeing, described_part, text_reader
from .model_spec import ModelSpec, checked, with_mixers
from .pooling_config import TokenVectors


class Retriever(NamedTuple):
    seeing: Seeing
    """The model that it is made of."""
    bidirectional: bool
    """Whether tokens see those behind them too."""


RETRIEVERS: Final[Mapping[str, Retriever]] = {
    "colpali": Retriever(Seeing("paligemma", "gemma"), bidirectional=True),
    "colqwen2": Retriever(Seeing("qwen2_vl", "qwen2_vl_text"), bidirectional=False),
}
"""By model type."""


def retriever_from_hf(config: Mapping[str, object]) -> tuple[ModelSpec, TokenVectors] | None:
    """What reads the text of such a model, and the layer on its tokens; None for another model. Raises
    :class:`.config_fields.ConfigError`."""
    fields = Fields(config)
    kind = fields.text("model_type", "")
    if kind not in RETRIEVERS:
        return None
    inner = Fields(_causal(described_part(config)))
    seeing, bidirectional = RETRIEVERS[kind]
    if (found := inner.text("model_type", "")) != seeing.model_type:
        raise ConfigError(f"vlm_config.model_type is {found[:40]!r}, expected {seeing.model_type!r}")
    name = (fields.texts("architectures") or (kind,))[0][:80]
    spec = checked(text_reader(seeing, BY_TYPE)(inner, name))
    rope = spec.layers[0].attention.rope
    if rope is not None and rope.axes:  # transformers counts positions of pictures as those of text here
        spec = with_mixers(spec, rope=replace(rope, axes=()))
    spec = replace(spec, architecture=name, tie_embeddings=True, bidirectional=bidirectional)
    return spec, TokenVectors(fields.integer("embedding_dim", 128), bias=True)


def _causal(described: Mapping[str, object]) -> Mapping[str, object]:
    """The same as readers of decoders take it: what tokens see, the kind of retriever says."""
    text = described.get("text_config")
    if not isinstance(text, Mapping):
        return described
    return {**described, "text_config": {name: text[name] for name in text if name != "use_bidirectional_attention"}}
