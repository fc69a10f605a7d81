"""Embedders, rerankers and late-interaction retrievers (ColPali, arXiv:2407.01449) of pictures: a vision model that is
described within theirs, or under another model type. Torch-free."""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeGuard

from msgspec.structs import replace

from ..config_fields import ConfigError, Fields
from ..hf.common import expect
from ..hf.config import BY_TYPE
from ..hf.media_families import MediaFamily
from ..hf.text_part import (
    COLQWEN3,
    COLQWEN3_5,
    JINA_V4,
    NEMOTRON_COLEMBED,
    NEMOTRON_EMBED,
    described_part,
    text_reader,
)
from ..spec.encoder import EncoderConfig
from ..spec.model import ModelSpec, checked, with_mixers
from .hf import encoder_config_from_hf
from .pooling import TokenVectors

COLQWEN3_5_NAME: Final = "ColQwen3_5"
"""Its architecture."""
_CONTRACT: Final = "retrieval_attention_contract"
_DIMENSIONS: Final = ("embed_dim", "dims", "dim", "projection_dim", "colbert_dim")
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
        if turned:
            return replace(spec, tie_embeddings=True, bidirectional=bidirectional)
        rope = spec.layers[0].attention.rope
        if rope is not None and rope.axes:  # transformers gives pictures text positions here
            spec = with_mixers(spec, rope=replace(rope, axes=()))
        return replace(spec, tie_embeddings=True, bidirectional=bidirectional)

    return read


def _modernbert(inner: Mapping[str, object]) -> EncoderConfig:
    text = Fields({"model_type": "modernbert", **(Fields(inner).table("text_config") or {})})
    if (kind := text.text("model_type")) != "modernbert":
        raise ConfigError(f"text_config.model_type is {kind[:40]!r}, expected 'modernbert'")
    return replace(encoder_config_from_hf(text.values), text_part=True, embeds_media=True)


def _pages_qwen3_5(inner: Mapping[str, object]) -> ModelSpec:
    """ColQwen3.5, whose files say whether its layers of attention see both sides; its recurrent layers do not."""
    told = {Fields(part).text(_CONTRACT) for part in (inner, inner.get("text_config")) if _states(part)}
    if told not in ({"causal"}, {"bidirectional"}):
        said = " and ".join(sorted(told))[:60] or "missing"
        raise ConfigError(f"{_CONTRACT} is {said}, expected 'causal' or 'bidirectional', alike wherever it is said")
    both = told == {"bidirectional"}
    spec = _decoder(MediaFamily("qwen3_5", "qwen3_5_text"), bidirectional=both, turned=True)(inner)
    assert isinstance(spec, ModelSpec)
    return spec if both else replace(with_mixers(spec, causal=True), by_text=True)


def _jina_v4(inner: Mapping[str, object]) -> ModelSpec:
    """jina-embeddings-v4 (arXiv:2506.18902). The adapters of its tasks keep prompts apart, so that they share no
    cache."""
    expect(Fields(inner), {"single_vector_pool_strategy": "mean"})
    family = MediaFamily("qwen2_5_vl", "qwen2_5_vl_text", own_text=True)
    spec = _decoder(family, bidirectional=False, turned=True)(inner)
    assert isinstance(spec, ModelSpec)
    return replace(with_mixers(spec, causal=True), by_text=True)


def _states(part: object) -> TypeGuard[Mapping[str, object]]:
    return isinstance(part, Mapping) and part.get(_CONTRACT) is not None


def _pages_nemotron(inner: Mapping[str, object]) -> ModelSpec:
    """NVIDIA's retriever: a Qwen3-VL that looks both ways, of whose last layer the output is not normed."""
    expect(Fields(inner), {"pooling": "colbert"})
    spec = _decoder(MediaFamily("qwen3_vl", "qwen3_vl_text"), bidirectional=True, turned=True)(inner)
    assert isinstance(spec, ModelSpec)
    return replace(spec, final_norm="", unused=(*spec.unused, f"{spec.final_norm}.weight"))


RETRIEVERS: Final[Mapping[str, Retriever]] = {
    "colpali": Retriever("paligemma", _decoder(MediaFamily("paligemma", "gemma"), bidirectional=True)),
    "colqwen2": Retriever("qwen2_vl", _decoder(MediaFamily("qwen2_vl", "qwen2_vl_text"), bidirectional=False)),
    **dict.fromkeys(
        COLQWEN3,
        Retriever("qwen3_vl", _decoder(MediaFamily("qwen3_vl", "qwen3_vl_text"), bidirectional=False, turned=True)),
    ),
    "colmodernvbert": Retriever("modernvbert", _modernbert),
    COLQWEN3_5: Retriever("qwen3_5", _pages_qwen3_5),
    NEMOTRON_COLEMBED: Retriever("qwen3_vl", _pages_nemotron),
    JINA_V4: Retriever("qwen2_5_vl", _jina_v4),
    **{
        kind: Retriever(kind, _decoder(MediaFamily(kind, "llama", own_text=True), bidirectional=True))
        for kind in NEMOTRON_EMBED
    },
}
"""By model type, or by architecture where files describe the underlying model."""


def retriever_kind(config: Mapping[str, object]) -> str:
    """The model type of a retriever, by its architecture where its files name its model's; that of the file for other
    models."""
    fields = Fields(config)
    named = fields.texts("architectures") or ()
    if JINA_V4 in named:
        return JINA_V4
    return COLQWEN3_5 if COLQWEN3_5_NAME in named else fields.text("model_type", "")


def retriever_from_hf(config: Mapping[str, object]) -> tuple[EncoderConfig | ModelSpec, TokenVectors | None] | None:
    """The text model of a retriever, and its token layer if it has one; None for another model.

    Raises :class:`..config_fields.ConfigError`.
    """
    fields = Fields(config)
    kind = retriever_kind(config)
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
        case "colqwen3_5":
            return spec, TokenVectors(_outputs(fields), bias=True)
        case "qwen3_vl_nemotron_embed":
            return spec, TokenVectors(spec.hidden_size, bias=False, layer=False)
        case "JinaEmbeddingsV4Model":
            return spec, TokenVectors(fields.integer("multi_vector_projector_dim", 128), bias=True)
        case _ if kind in NEMOTRON_EMBED:
            return spec, None
        case _:
            return spec, TokenVectors(fields.integer("embedding_dim", 128), bias=True)


def _outputs(fields: Fields) -> int:
    """The length of ColQwen3.5's vectors, under any of the names that files have for it."""
    if fields.has("head_dims"):
        if not fields.flag("mrl_prefix"):
            raise ConfigError("mrl_prefix is false beside head_dims, expected one layer whose first outputs are used")
        return int(max(fields.numbers("head_dims")))
    name = next((name for name in _DIMENSIONS if fields.has(name)), _DIMENSIONS[0])
    return fields.integer(name, 128)


def _causal(described: Mapping[str, object]) -> Mapping[str, object]:
    """The config without the direction of attention, which the kind of retriever determines."""
    text = described.get("text_config")
    if not isinstance(text, Mapping):
        return described
    return {**described, "text_config": {name: text[name] for name in text if name != "use_bidirectional_attention"}}
