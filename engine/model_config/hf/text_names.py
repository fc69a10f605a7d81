"""Names of the tensors of a multimodal model's text part: checkpoints have them under a prefix, beside those of media
encoders."""

import re
from typing import Final

from ..spec.mtp_form import HUNYUAN_V4
from . import inkling as hf_inkling
from .mistral_names import usual_name

_PREFIXES: Final = (
    ("language_model.lm_head.", "lm_head."),
    ("thinker.lm_head.", "lm_head."),
    ("thinker.model.language_model.", "model."),
    ("thinker.model.", "model."),
    ("model.language_model.lm_head.", "lm_head."),
    ("model.language_model.model.", "model."),
    ("language_model.model.blocks.", "model.layers."),
    ("language_model.", ""),
    ("language.", ""),
    ("llm.", ""),
    ("decoder.model.", "model."),
    ("decoder.lm_head.", "lm_head."),
    ("model.language_model.", "model."),
    ("model.text_model.", "model."),
    ("text_model.lm_head.", "lm_head."),
    ("text_model.model.", "model."),
    ("model.transformer.blocks.", "model.layers."),
    ("model.transformer.ln_f.", "model.norm."),
    ("model.transformer.ff_out.", "lm_head."),
    ("model.transformer.wte.", "model.embed_tokens."),
    ("model.vision_embed_tokens.wte.", "model.embed_tokens."),
    *(
        (f"transformer.{part}", f"transformer.{part}")
        for part in ("embedding.", "encoder.", "output_layer.", "rotary_pos_emb.")
    ),
    *(
        (f"model.{part}.", f"model.{part}.")
        for part in ("layers", "embed_tokens", "word_embeddings", "norm", "rotary_emb", "hc_head", "hc_pre")
    ),
    *((f"{part}.", f"model.{part}.") for part in ("layers", "embed_tokens", "norm")),
)
"""Published prefixes, transformers' later ones, and its form of Kimi K2.5's (``blocks``)."""
RETRIEVER: Final = "vlm."
"""Prefix of a retriever's model."""
_ENCODER: Final = f"{RETRIEVER}text_model."
"""Prefix of an encoder as the text part."""
_TOKEN_VECTORS: Final = ("embedding_proj_layer.", "custom_text_proj.", "multi_vector_projector.")
_OF_TEXTS: Final = ("text_model.", "text_projection.", "score.")
"""A text tower beside a vision tower, and the scores of both."""
_OWN: Final = ("embed.weight", "head.weight")
"""Embeddings and head of a text model whose layers have no prefix (DeepSeek V4.1)."""
_GENERATES: Final = re.compile(
    r"\A(talker|token2wav|code2wav|audio_invert_tower|proj_in|proj_out|time_embedder|(audio|action)_proj_(in|out))\."
    r"|\A(audio|action)_modality_embed\Z"
    r"|\.(add_[qkv]_proj|to_add_out|norm_added_[qk])\.|moe_gen|_for_gen\."
    r"|\.lora_[AB]\.(vision|speech)\."
)
"""Of parts that generate speech, pictures or actions, and adapters within the files (Phi-4-multimodal), which are
ignored."""
_ADAPTED: Final = ".base_layer."
"""In the names of matrices that have adapters within the files."""
_DIFFUSERS: Final = re.compile(r"\.self_attn\.(?:to_([qkv])|to_(out)|norm_([qk]))\.")
"""Names of Diffusers within attention (Cosmos 3)."""


_DRAFTS: Final = ("mtp.", "mtp_dspark.", HUNYUAN_V4.prefix, hf_inkling.DRAFTS)
"""Heads that draft, beside the text model."""
_MOLMO: Final = re.compile(r"\A(model\.transformer\.blocks\.\d+)\.(?=att_proj\.|attn_out\.|[qk]_norm\.)")
"""Tensors of attention that Molmo stores beside those of the network."""


def is_of_tower(stored: str) -> bool:
    """Whether a tensor belongs to a media encoder."""
    return text_name(stored) is None and not _GENERATES.search(stored)


def _as_usual(part: re.Match[str]) -> str:
    projected, out, normed = part.groups()
    return f".self_attn.{f'{normed}_norm' if normed else f'{projected or out[0]}_proj'}."


def text_name(stored: str) -> str | None:
    """A tensor's name in a text-only model; None if it belongs to another part."""
    if _GENERATES.search(stored):
        return None
    stored = _DIFFUSERS.sub(_as_usual, stored).replace(_ADAPTED, ".")
    stored = _MOLMO.sub(r"\1.self_attn.", stored)
    if stored.startswith(_ENCODER):
        return stored.removeprefix(_ENCODER)
    stored = stored.removeprefix(RETRIEVER)
    if stored.startswith(_TOKEN_VECTORS):
        return f"linear.{stored.partition('.')[2]}"
    if (usual := usual_name(stored) or hf_inkling.usual_name(stored)) is not None:
        return usual
    for prefix, own in _PREFIXES:
        if stored.startswith(prefix):
            return own + stored.removeprefix(prefix)
    return stored if stored in _OWN or stored.startswith(("lm_head.", *_DRAFTS, *_OF_TEXTS)) else None
