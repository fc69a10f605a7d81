"""Late-interaction retrievers over pictures of pages: a vision model with a layer on each token (ColPali,
arXiv:2407.01449). Torch-free."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from ..config_fields import ConfigError, Fields
from ..hf.config import BY_TYPE
from ..hf.media_families import MediaFamily
from ..hf.text_part import COLQWEN3, described_part, text_reader
from ..spec.encoder import EncoderConfig
from ..spec.model import ModelSpec, checked, with_mixers
from .hf import encoder_config_from_hf
from .pooling import TokenVectors

Read = Callable[[Mapping[str, object]], EncoderConfig | ModelSpec]


class Retriever(NamedTuple):
    model_type: str
    """Model type of the underlying model."""
    read: Read
    """Reads the text part of that model."""


def _decoder(family: MediaFamily, *, bidirectional: bool, turned: bool = False) -> Read:
    """``bidirectional``: attention in both directions. ``turned``: pictures have positions of their own (m-rope)."""

    def read(inner: Mapping[str, object]) -> ModelSpec:
        spec = checked(text_reader(family, BY_TYPE)(Fields(_causal(inner)), family.model_type))
        rope = spec.layers[0].attention.rope
        if rope is not None and rope.axes and not turned:  # transformers gives pictures text positions here
            spec = with_mixers(spec, rope=replace(rope, axes=()))
        return replace(spec, tie_embeddings=True, bidirectional=bidirectional)

    return read


def _modernbert(inner: Mapping[str, object]) -> EncoderConfig:
    text = Fields({"model_type": "modernbert", **(Fields(inner).table("text_config") or {})})
    if (kind := text.text("model_type")) != "modernbert":
        raise ConfigError(f"text_config.model_type is {kind[:40]!r}, expected 'modernbert'")
    return replace(encoder_config_from_hf(text.values), text_part=True, embeds_media=True)


RETRIEVERS: Final[Mapping[str, Retriever]] = {
    "colpali": Retriever("paligemma", _decoder(MediaFamily("paligemma", "gemma"), bidirectional=True)),
    "colqwen2": Retriever("qwen2_vl", _decoder(MediaFamily("qwen2_vl", "qwen2_vl_text"), bidirectional=False)),
    **dict.fromkeys(
        COLQWEN3,
        Retriever("qwen3_vl", _decoder(MediaFamily("qwen3_vl", "qwen3_vl_text"), bidirectional=False, turned=True)),
    ),
    "colmodernvbert": Retriever("modernvbert", _modernbert),
}
"""By model type."""


def retriever_from_hf(config: Mapping[str, object]) -> tuple[EncoderConfig | ModelSpec, TokenVectors] | None:
    """The text model of a retriever, and its token layer; None for another model.

    Raises :class:`..config_fields.ConfigError`.
    """
    fields = Fields(config)
    kind = fields.text("model_type", "")
    if kind not in RETRIEVERS:
        return None
    inner = described_part(config)
    expected, read = RETRIEVERS[kind]
    if (found := Fields(inner).text("model_type", "")) != expected:
        raise ConfigError(f"vlm_config.model_type is {found[:40]!r}, expected {expected!r}")
    name = (fields.texts("architectures") or (kind,))[0][:80]
    spec = replace(read(inner), architecture=name)
    match kind:
        case "colqwen3":
            return spec, TokenVectors(fields.integer("embed_dim", 320), bias=True)
        case "ops_colqwen3":
            outputs = fields.integer("dims", most=spec.hidden_size)
            return spec, TokenVectors(outputs, bias=True, stored=spec.hidden_size)
        case _:
            return spec, TokenVectors(fields.integer("embedding_dim", 128), bias=True)


def _causal(described: Mapping[str, object]) -> Mapping[str, object]:
    """The config without the direction of attention, which the kind of retriever determines."""
    text = described.get("text_config")
    if not isinstance(text, Mapping):
        return described
    return {**described, "text_config": {name: text[name] for name in text if name != "use_bidirectional_attention"}}
