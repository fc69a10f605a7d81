"""Readers of text parts of multimodal models that are no text-only models, or differ from them."""

from collections.abc import Callable, Mapping
from typing import Final

from msgspec.structs import replace

from ..config_fields import ConfigError, Fields
from ..spec.attention import AttentionSpec
from ..spec.latent_attention import LatentAttentionSpec
from ..spec.mlp import STACKED, MoESpec
from ..spec.model import ModelSpec, with_mixers, with_mtp
from ..spec.mtp_form import DEEPSEEK
from . import dense as hf_dense
from . import glm5 as hf_glm5
from . import hub as hf_hub
from . import hy4 as hf_hy4
from . import hybrid as hf_hybrid
from . import inkling as hf_inkling
from . import inkling2 as hf_inkling2
from . import latent as hf_latent
from . import latent_variants as hf_latent_variants
from . import mllama as hf_mllama
from . import moe as hf_moe
from . import moe_variants as hf_moe_variants
from . import recent as hf_recent
from . import variants as hf_variants
from .common import expect
from .rope import media_axes
from .text_defaults import text_defaults

Reader = Callable[[Fields, str], ModelSpec]


def _turned(read: Reader, default: tuple[int, int, int], *, interleaved: bool) -> Reader:
    """The reader with m-rope."""

    def reader(fields: Fields, name: str) -> ModelSpec:
        spec = read(fields, name)
        mixer = next(each for layer in spec.layers if isinstance(each := layer.mixer, AttentionSpec))
        assert mixer.rope is not None
        pairs = (mixer.rope.rotary_dim or mixer.head_dim) // 2
        axes = media_axes(fields.values, default, pairs, interleaved=interleaved)
        return with_mixers(spec, rope=replace(mixer.rope, axes=axes))

    return reader


def _qwen3_vl_moe(fields: Fields, name: str) -> ModelSpec:
    """A mixture whose experts are stored with inputs first."""
    spec = hf_moe.qwen3_moe(Fields({"norm_topk_prob": True, **fields.values}), name)
    names = (replace(STACKED, transposed=True),)
    layers = (
        replace(layer, mlp=replace(layer.mlp, names=names)) if isinstance(layer.mlp, MoESpec) else layer
        for layer in spec.layers
    )
    return replace(spec, layers=tuple(layers))


def _qwen3_omni_moe(fields: Fields, name: str) -> ModelSpec:
    return hf_moe.qwen3_moe(Fields({"norm_topk_prob": True, **fields.values}), name)


def _glm4v(fields: Fields, name: str) -> ModelSpec:
    values = {"partial_rotary_factor": 1.0, "rms_norm_eps": 1e-5, **fields.values}
    heads = fields.integer("num_attention_heads")
    return hf_variants.glm4(Fields({"head_dim": fields.integer("hidden_size") // heads, **values}), name)


def _glm_ocr(fields: Fields, name: str) -> ModelSpec:
    spec = _glm4v(Fields({**fields.values, "attention_bias": False}), name)
    return with_mtp(spec, DEEPSEEK, fields.integer("num_nextn_predict_layers", 1, least=0))


def _paddleocr(fields: Fields, name: str) -> ModelSpec:
    """ERNIE 4.5 with halves of heads rotating together."""
    spec = hf_variants.ernie(fields, name)
    mixer = spec.layers[0].attention
    assert mixer.rope is not None
    return with_mixers(spec, rope=replace(mixer.rope, interleaved=False))


_HUNYUAN_NAMES: Final[Mapping[str, str]] = {"attention_head_dim": "head_dim", "org_vocab_size": "vocab_size"}


def _hunyuan_vl(fields: Fields, name: str) -> ModelSpec:
    """HunYuan with pictures that are numbered (:data:`..towers.media_spec.MediaAxes`). Sections may leave out the
    index. A pair turns by one axis, as in its authors' code and in vLLM; in transformers its halves turn by two.
    """
    values = {**{new: fields.get(old) for old, new in _HUNYUAN_NAMES.items() if fields.has(old)}, **fields.values}
    rope = {**(fields.table("rope_scaling") or fields.table("rope_parameters") or {})}
    kind, old = rope.pop("type", "default"), rope.pop("xdrope_section", None)
    kind = rope.get("rope_type", kind)
    sections = Fields({"mrope_section": rope.get("mrope_section") or old}).numbers("mrope_section")
    if len(sections) == 3:
        sections = (0.0, *sections)
    rope |= {"rope_type": "dynamic" if kind == "xdrope" else kind, "mrope_section": sections}
    fields = Fields({**values, "rope_scaling": None, "rope_parameters": rope})
    spec = hf_variants.hunyuan(fields, name)
    mixer = spec.layers[0].attention
    assert mixer.rope is not None
    axes = media_axes(fields.values, (), mixer.head_dim // 2, interleaved=False, count=4)
    return with_mixers(spec, rope=replace(mixer.rope, axes=axes))


def _ling3_vl(fields: Fields, name: str) -> ModelSpec:
    """Ling 3.0 as published, whose latent attention turns by column and row, which alternate, and behind these by
    frame. The numbers of pairs are the whole model's."""
    sections = [int(each) for each in fields.numbers("mrope_section")] or [12, 10, 10]
    told = Fields({**(fields.table("rope_parameters") or {}), **(fields.table("rope_scaling") or {})})
    expect(told, {"rope_type": "default", "type": "default"})
    if told.has("mrope_section") and [int(each) for each in told.numbers("mrope_section")] != sections:
        raise ConfigError("mrope_section of text_config is not that of the whole model")
    spec = replace(hf_latent.ling(fields, hf_latent.PUBLISHED_LING), architecture=name)
    mixer = next(each for layer in spec.layers if isinstance(each := layer.mixer, LatentAttentionSpec))
    assert mixer.rope is not None
    if len(sections) != 3 or min(sections) < 0 or sections[1] != sections[2] or 2 * sum(sections) != mixer.rope_dim:
        raise ConfigError(
            f"mrope_section is {sections}, expected three numbers of {mixer.rope_dim // 2} rotating pairs in all, of "
            f"which the last two are equal"
        )
    axes = (*(1, 2) * sections[1], *(0,) * sections[0])
    turned = replace(mixer, rope=replace(mixer.rope, axes=axes))
    layers = (replace(layer, mixer=turned) if layer.mixer == mixer else layer for layer in spec.layers)
    return replace(spec, layers=tuple(layers))


def _isaac(fields: Fields, name: str) -> ModelSpec:
    """Qwen3 whose pairs turn by index, row and column of a picture: half of them, and a quarter each. They are
    consecutive whatever ``mrope_interleaved`` says, as in its makers' code."""
    spec = hf_dense.qwen3(fields, name)
    pairs = spec.layers[0].attention.head_dim // 2
    quarter = pairs // 4
    return _turned(hf_dense.qwen3, (pairs - 2 * quarter, quarter, quarter), interleaved=False)(fields, name)


def _cosmos3_edge(fields: Fields, name: str) -> ModelSpec:
    """Arcee with another base of rotary frequencies; its network is stored as Arcee's."""
    rope = {"rope_theta": 1e8, **(fields.table("rope_parameters") or {})}
    return hf_variants.arcee(Fields({**fields.values, "rope_parameters": rope}), name)


def _chatglm_4v(fields: Fields, name: str) -> ModelSpec:
    """The ChatGLM of GLM-4V. All patches of a picture turn by one index, the next one behind the mark before them, as
    in its authors' code; in vLLM each has an index of its own."""
    spec = hf_hub.chatglm(
        Fields({field: each for field, each in fields.values.items() if field != "vision_config"}), name
    )
    mixer = spec.layers[0].attention
    assert mixer.rope is not None
    return with_mixers(spec, rope=replace(mixer.rope, axes=(0,) * ((mixer.rope.rotary_dim or mixer.head_dim) // 2)))


def _deepseek_v2(fields: Fields, name: str) -> ModelSpec:
    if fields.text("topk_method", "") == "noaux_tc":
        return hf_latent.deepseek_v3(fields, name)
    return (hf_latent.deepseek_v2 if fields.flag("use_mla", True) else hf_latent.deepseek_ocr)(fields, name)


_MINICPM_DECODERS: Final = {"2.6": "qwen2", "4.0": "llama", "4": "llama", "4.5": "qwen3"}
"""Model types by version."""
_DECODERS: Final[Mapping[str, Reader]] = {"qwen2": hf_dense.qwen2, "llama": hf_dense.llama, "qwen3": hf_dense.qwen3}


def _minicpmv(fields: Fields, name: str) -> ModelSpec:
    version = str(fields.get("version"))
    if version not in _MINICPM_DECODERS:
        raise ConfigError(f"version is {version[:40]!r}, expected one of {', '.join(_MINICPM_DECODERS)}")
    kind = _MINICPM_DECODERS[version]
    return _DECODERS[kind](Fields({**text_defaults("minicpmv", kind), **fields.values}), name)


def _mistral_own(fields: Fields, name: str) -> ModelSpec:
    """A Mistral whose heads turn pair by pair, as in its makers' files."""
    spec = hf_dense.mistral(fields, name)
    rope = spec.layers[0].attention.rope
    assert rope is not None
    return with_mixers(spec, rope=replace(rope, interleaved=True))


PARTS: Final[Mapping[str, Reader]] = {
    "qwen2_vl_text": _turned(hf_dense.qwen2, (16, 24, 24), interleaved=False),
    "qwen2_5_vl_text": _turned(hf_dense.qwen2, (16, 24, 24), interleaved=False),
    "qwen2_5_omni_text": _turned(hf_dense.qwen2, (16, 24, 24), interleaved=False),
    "qwen3_omni_moe_text": _turned(_qwen3_omni_moe, (24, 20, 20), interleaved=True),
    "qwen3_vl_text": _turned(hf_dense.qwen3, (24, 20, 20), interleaved=True),
    "qwen3_vl_moe_text": _turned(_qwen3_vl_moe, (24, 20, 20), interleaved=True),
    "qwen3_5_text": _turned(hf_hybrid.qwen3_5, (11, 11, 10), interleaved=True),
    "qwen3_5_moe_text": _turned(hf_hybrid.qwen3_5_moe, (11, 11, 10), interleaved=True),
    "cosmos3_edge_text": _turned(_cosmos3_edge, (24, 20, 20), interleaved=True),
    "qwen4_exp_text": _turned(hf_hybrid.qwen4, (11, 11, 10), interleaved=True),
    "openpangu_vl_text": hf_hub.pangu_vl,
    "paddleocr_vl_text": _turned(_paddleocr, (16, 24, 24), interleaved=False),
    "bailing_moe_v3_vl_text": _ling3_vl,
    "chameleon": hf_variants.chameleon,
    "chatglm_4v_text": _chatglm_4v,
    "deepseek_ocr2_text": hf_latent.deepseek_ocr,
    "deepseek_v2": _deepseek_v2,
    "emu3_text_model": hf_dense.llama,
    "ernie4_5_vl_moe_text": hf_moe_variants.ernie_vl_moe,
    **dict.fromkeys(("granite4_vision_text", "granite_docling_text"), hf_dense.granite),
    "hunyuan_vl_text": _hunyuan_vl,
    "hy_v4_vl_text": hf_hy4.hunyuan_v4_vl,
    "inkling_text": hf_inkling.inkling,
    "inkling2_text": hf_inkling2.inkling2,
    "inkling2_loop_text": hf_inkling2.inkling2_loop,
    "isaac_text": _isaac,
    "keye_text": _turned(hf_dense.qwen3, (16, 24, 24), interleaved=False),
    "minicpmv_text": _minicpmv,
    "mimo_v2": hf_moe_variants.mimo_v2,
    "mllama_text_model": hf_mllama.mllama,
    "molmo": hf_variants.molmo,
    "molmo2_text": hf_variants.molmo2,
    "muse_glimmer_text": hf_recent.muse_glimmer,
    "muse_spark_text": hf_recent.muse_spark,
    "glm4v_text": _turned(_glm4v, (8, 12, 12), interleaved=False),
    "glm5_next_text": hf_glm5.glm5_next,
    "glm_ocr_text": _turned(_glm_ocr, (8, 12, 12), interleaved=False),
    "dots3_note_text": hf_latent_variants.dots3_note,
    "mistral_large3": hf_latent.mistral_large3,
    "mistral_own": _mistral_own,
    "mistral_large4_text": hf_latent_variants.mistral_large4,
    "unlimited_ocr_text": hf_latent.unlimited_ocr,
    "glm4v_moe_text": _turned(hf_moe.glm4_moe, (8, 12, 12), interleaved=False),
}
"""By model type."""
