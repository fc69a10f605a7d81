"""Tiny random encoder-decoders from a picture to text of transformers' own making."""

import copy
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import torch
import transformers as untyped_transformers

from stentor.engine.models.towers.payload import Payload, write_payload
from stentor.tests.parity.published_parse import SIDES, Parse

transformers: Any = untyped_transformers

VOCAB: Final = 200
SIDE: Final = 32
_COMPUTED: Final = (
    "norm_mean",
    "norm_std",
    "inv_freq",
    "embed_scale",
    "position_ids",
    "pos_idx_to_embed",
    "position_index",
)
"""Ends of the names of buffers that are no weights."""
_VIT: Final[dict[str, Any]] = {
    **{"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 80},
    **{"image_size": SIDE, "patch_size": 8},
}
_SWIN: Final[dict[str, Any]] = {
    **{"embed_dim": 12, "depths": [2, 2, 1], "num_heads": [2, 2, 4], "window_size": 2, "mlp_ratio": 2.0},
    **{"image_size": [SIDE, 2 * SIDE], "patch_size": 4},
}
_TOKENS: Final[dict[str, Any]] = {
    **{"vocab_size": VOCAB, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 3},
    **{"is_decoder": True, "add_cross_attention": True, "attn_implementation": "eager"},
}
_DECODER: Final[dict[str, Any]] = {
    **_TOKENS,
    **{"d_model": 48, "decoder_layers": 3, "decoder_attention_heads": 4, "decoder_ffn_dim": 96},
    **{"max_position_embeddings": 64, "decoder_start_token_id": 2},
}


def _enlarged(model: Any) -> Any:
    """In float32, with weights large enough for every part to count."""
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if "norm" in name and name.endswith("weight"):
                tensor.uniform_(0.6, 1.4)
            elif tensor.is_floating_point() and not name.endswith(_COMPUTED):
                tensor.normal_(0, 0.15)
    return model.float().eval()


def paired(encoder: str, decoder: str, sizes: dict[str, Any], **changes: Any) -> Any:
    """A model of transformers' ``encoder``, such as ``ViT``, of these ``sizes``, and ``decoder``, such as ``MBart``,
    with these ``changes``."""
    torch.manual_seed(0)
    sides = (
        getattr(transformers, f"{encoder}Config")(**sizes, attn_implementation="eager"),
        getattr(transformers, f"{decoder}Config")(**{**(_TOKENS if decoder == "GPT2" else _DECODER), **changes}),
    )
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(*sides)
    config.decoder_start_token_id, config.eos_token_id, config.pad_token_id = 2, 3, 1
    return _enlarged(transformers.VisionEncoderDecoderModel(config))


def formulas() -> Any:
    """PP-FormulaNet."""
    torch.manual_seed(0)
    vision = {**_VIT, "image_size": 2 * SIDE, "mlp_dim": 80, "window_size": 3, "global_attn_indexes": [1]}
    vision |= {"output_channels": 16, "decoder_hidden_size": 48}
    vision |= {f"post_conv_{which}_channels": size for which, size in (("in", 16), ("mid", 24), ("out", 32))}
    text = {**_DECODER, "encoder_layers": 1, "encoder_attention_heads": 4}
    for name in ("is_decoder", "add_cross_attention", "attn_implementation"):
        del text[name]
    config = transformers.PPFormulaNetConfig(vision_config=vision, text_config=text, attn_implementation="eager")
    return _enlarged(transformers.PPFormulaNetForConditionalGeneration(config))


def florence(**changes: Any) -> Any:
    """Florence-2, with ``changes`` of its text part."""
    torch.manual_seed(0)
    vision: dict[str, Any] = {"embed_dim": [8, 16], "num_heads": [2, 2], "num_groups": [2, 2], "depths": [1, 1]}
    vision |= {"patch_size": [7, 3], "patch_stride": [16, 2], "patch_padding": [3, 1], "patch_prenorm": [False, True]}
    vision |= {"window_size": 3, "projection_dim": 48}
    text = {**_DECODER, "encoder_layers": 2, "encoder_attention_heads": 3, "encoder_ffn_dim": 80}
    text |= {"max_position_embeddings": 700, "model_type": "bart", **changes}
    for name in ("is_decoder", "add_cross_attention", "attn_implementation"):
        del text[name]
    config = transformers.Florence2Config(
        vision_config=vision, text_config=text, image_token_id=text["vocab_size"] - 1, attn_implementation="eager"
    )
    return _enlarged(transformers.Florence2ForConditionalGeneration(config))


def captions(**changes: Any) -> Any:
    """BLIP, with ``changes`` of its decoder; its states have another size than its pictures'."""
    torch.manual_seed(0)
    text = {"hidden_size": 32, "encoder_hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 3}
    text |= {"num_attention_heads": 4, "max_position_embeddings": 64, "vocab_size": VOCAB, "bos_token_id": 2}
    text |= {"sep_token_id": 3, "pad_token_id": 0, **changes}
    config = transformers.BlipConfig(text_config=text, vision_config=_VIT, attn_implementation="eager")
    return _enlarged(transformers.BlipForConditionalGeneration(config))


def patches(**changes: Any) -> Any:
    """Pix2Struct, with ``changes`` of its decoder."""
    torch.manual_seed(0)
    text = {"hidden_size": 32, "d_kv": 8, "d_ff": 80, "num_layers": 3, "num_heads": 4, "vocab_size": VOCAB}
    text |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20, **changes}
    vision = {"hidden_size": 32, "patch_embed_hidden_size": 3 * 8 * 8, "d_ff": 48, "d_kv": 8, "num_hidden_layers": 2}
    vision |= {"num_attention_heads": 4, "seq_len": 50}
    config = transformers.Pix2StructConfig(text_config=text, vision_config=vision, attn_implementation="eager")
    return _enlarged(transformers.Pix2StructForConditionalGeneration(config))


def flattened(pixels: torch.Tensor) -> torch.Tensor:
    """[1, patches, 2 + values], as transformers' processor has patches of Pix2Struct: behind their row and column."""
    parts = [
        torch.cat([torch.tensor([row + 1.0, column + 1.0]), patch.permute(1, 2, 0).flatten().float()])
        for row, line in enumerate(pixels[0].split(8, 1))
        for column, patch in enumerate(line.split(8, 2))
    ]
    return torch.stack(parts)[None].to(pixels.dtype)


def parse(*, tied: bool = False, **changes: Any) -> Any:
    """Nemotron Parse, with ``changes`` of its decoder."""
    torch.manual_seed(0)
    text = {**_DECODER, "encoder_layers": 1, "scale_embedding": True, **changes}
    return _enlarged(Parse(text, tied=tied)).unplaced()


DONUT: Final = partial(paired, "DonutSwin", "MBart", _SWIN, scale_embedding=True)
TROCR: Final = partial(paired, "ViT", "TrOCR", {**_VIT, "hidden_size": 32}, cross_attention_hidden_size=32)


def of_gpt2() -> Any:
    """ViT and GPT-2, whose scores each layer divides by its number."""
    sizes = {"n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 64, "scale_attn_by_inverse_layer_idx": True}
    return paired("ViT", "GPT2", _VIT, **sizes)


KINDS: Final[dict[str, Callable[[], Any]]] = {
    "trocr": TROCR,
    "trocr, small": partial(
        paired, "DeiT", "TrOCR", {**_VIT, "hidden_size": 32}, layernorm_embedding=False, scale_embedding=True
    ),
    "trocr, of sinusoids": partial(TROCR, use_learned_position_embeddings=False, activation_function="relu"),
    "donut": DONUT,
    "of swin and bart": partial(paired, "Swin", "Bart", _SWIN, tie_word_embeddings=False),
    "of beit and mbart": partial(paired, "Beit", "MBart", {**_VIT, "use_absolute_position_embeddings": True}),
    "of vit and gpt2": of_gpt2,
    "formulas": formulas,
    "florence": florence,
    "captions": captions,
    "captions, of one size": partial(captions, hidden_size=48, hidden_act="relu"),
    "patches": patches,
    "parse": parse,
    "parse, tied": partial(parse, tied=True),
}
READING: Final = ("florence",)
"""Those whose encoder reads a text behind the picture."""
_OF_SWIN: Final = [(SIDE, 2 * SIDE), (28, 36), (SIDE, SIDE)]
_PIXELS: Final[dict[str, list[tuple[int, int]]]] = {
    "florence": [(64, 64), (96, 64), (128, 128)],
    "formulas": [(2 * SIDE, 2 * SIDE)],
    "parse": [SIDES],
    "parse, tied": [SIDES],
    "patches": [(SIDE, SIDE), (8, 8 * 49), (7 * 8, 5 * 8)],
    "donut": _OF_SWIN,
    "of swin and bart": _OF_SWIN,
}


def picture(kind: str, seed: int) -> torch.Tensor:
    """Pixels [1, 3, height, width]; of several sizes, if the kind takes them."""
    sizes = _PIXELS.get(kind, [(SIDE, SIDE)])
    return torch.randn(1, 3, *sizes[seed % len(sizes)], generator=torch.Generator().manual_seed(seed))


def window(kind: str, pixels: torch.Tensor, text: Sequence[int] = ()) -> bytes:
    """A picture, and a text, as the worker gets them."""
    payload = write_payload(Payload("image", {"pixel_values": pixels}))
    return array("i", [len(text), *text]).tobytes() + payload if kind in READING else payload


def _fresh(model: Any, kind: str) -> Any:
    """The model; one with Swin's layers as it was before any picture, since small pictures change these."""
    return copy.deepcopy(model) if _PIXELS.get(kind) is _OF_SWIN else model


def encoded_by(model: Any, kind: str, pixels: torch.Tensor, text: Sequence[int] = ()) -> torch.Tensor:
    """What the decoder attends to, [1, states, size]."""
    model = _fresh(model, kind)
    with torch.inference_mode():
        if kind == "florence":
            inner = model.model
            seen = inner.get_image_features(pixels).pooler_output
            words = inner.get_input_embeddings()(torch.tensor([[*text]], dtype=torch.int64))
            found = inner.language_model.encoder(inputs_embeds=torch.cat([seen, words], 1)).last_hidden_state
        elif kind.startswith("captions"):
            found = model.vision_model(pixels).last_hidden_state
        elif kind == "patches":
            found = model.encoder(flattened(pixels)).last_hidden_state
        elif kind == "formulas":
            found = model.model.encoder(pixels).pooler_output
        else:
            found = model.encoder(pixels)
            found = getattr(found, "last_hidden_state", found)
            if hasattr(model, "enc_to_dec_proj"):
                found = model.enc_to_dec_proj(found)
    states: torch.Tensor = found
    return states


def logits_of(model: Any, kind: str, pixels: torch.Tensor, text: Sequence[int], outputs: Sequence[int]) -> torch.Tensor:
    """float32 [outputs, vocabulary] behind each token of the decoder."""
    model, tokens = _fresh(model, kind), torch.tensor([list(outputs)])
    with torch.inference_mode():
        if kind == "florence":
            states = model.model.get_image_features(pixels).pooler_output.shape[1]
            ids = torch.tensor([[*[model.config.image_token_id] * states, *text]])
            made = model(input_ids=ids, pixel_values=pixels, decoder_input_ids=tokens)
        elif kind.startswith("captions"):
            made = model(pixel_values=pixels, input_ids=tokens)
        elif kind == "patches":
            made = model(flattened_patches=flattened(pixels), decoder_input_ids=tokens)
        else:
            made = model(pixel_values=pixels, decoder_input_ids=tokens)
    found: torch.Tensor = made.logits[0].float()
    return found
