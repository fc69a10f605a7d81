"""Tiny random models of Molmo, whose code comes with their checkpoints: a tower in plain torch before decoders of
transformers."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
import transformers as untyped_transformers
from safetensors.torch import save_file
from torch.nn.functional import scaled_dot_product_attention, silu

from stentor.tests.parity.composed import Composed, Published
from stentor.tests.parity.pictures import Kind, Picture, cat
from stentor.tests.support.vision_models import PATCH, SIDE, TEXT, VOCAB, randomised, token

transformers: Any = untyped_transformers
"""Its configs take more than their signatures say."""

_PLACE: Final = token("<image>")
_WIDTH, _HEADS, _LAYERS, _INNER = 32, 2, 10, TEXT["intermediate_size"]
_MARGIN: Final = 2
"""Patches that tiles share, before and behind."""
_GRID: Final = SIDE * 2 // PATCH
"""Patches on each side of a tile."""


class _Attention(torch.nn.Module):
    """Attention as in the tower; ``inputs``: size of what it reads."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.wq, self.wk, self.wv = (torch.nn.Linear(inputs, _WIDTH) for _ in range(3))
        self.wo = torch.nn.Linear(_WIDTH, _WIDTH)

    def forward(self, asking: torch.Tensor, asked: torch.Tensor) -> torch.Tensor:
        """[pictures, asking, inputs] and [pictures, asked, inputs] → [pictures, asking, width]"""
        q, k, v = (
            each.unflatten(2, (_HEADS, -1)).transpose(1, 2)
            for each in (self.wq(asking), self.wk(asked), self.wv(asked))
        )
        found: torch.Tensor = self.wo(scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return found


class _Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = _Attention(_WIDTH)
        self.feed_forward = torch.nn.ModuleDict({"w1": torch.nn.Linear(_WIDTH, 48), "w2": torch.nn.Linear(48, _WIDTH)})
        self.attention_norm, self.ffn_norm = (torch.nn.LayerNorm(_WIDTH, 1e-5) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.attention_norm(x)
        x = x + self.attention(normed, normed)
        inner = self.feed_forward["w1"](self.ffn_norm(x))
        found: torch.Tensor = x + self.feed_forward["w2"](inner * torch.sigmoid(1.702 * inner))
        return found


class _Seeing(torch.nn.Module):
    """Molmo's ``vision_backbone``: patches have their channels last."""

    def __init__(self) -> None:
        super().__init__()
        vit: Any = torch.nn.Module()
        self.image_vit = vit
        vit.class_embedding = torch.nn.Parameter(torch.zeros(_WIDTH))
        vit.positional_embedding = torch.nn.Parameter(torch.zeros(_GRID * _GRID + 1, _WIDTH))
        vit.patch_embedding = torch.nn.Linear(PATCH * PATCH * 3, _WIDTH, bias=False)
        vit.pre_ln = torch.nn.LayerNorm(_WIDTH, 1e-5)
        vit.transformer = torch.nn.ModuleDict({"resblocks": torch.nn.ModuleList(_Block() for _ in range(_LAYERS))})
        self.image_pooling_2d = _Attention(2 * _WIDTH)
        self.image_projector = torch.nn.ModuleDict(
            {
                "w1": torch.nn.Linear(_WIDTH, _INNER, bias=False),
                "w2": torch.nn.Linear(_INNER, 64, bias=False),
                "w3": torch.nn.Linear(_WIDTH, _INNER, bias=False),
            }
        )
        self.pad_embed = torch.nn.Parameter(torch.zeros(2, 2 * _WIDTH))

    def forward(self, pixel_values: torch.Tensor, image_masks: torch.Tensor, image_sizes: torch.Tensor) -> torch.Tensor:
        """The embeddings of several pictures, each the whole and its tiles, in the order of their places."""
        features = self._seen(pixel_values)  # [tiles, patches, 2 * width]
        shares = image_masks[..., None]
        features = features + self.pad_embed[0] * (shares == 0)
        features = features + self.pad_embed[1] * ((shares < 1) & (shares != 0))
        half = _GRID // 2
        squares = features.view(-1, half, 2, half, 2, 2 * _WIDTH).transpose(2, 3).reshape(-1, 4, 2 * _WIDTH)
        pooled = self.image_pooling_2d(squares.mean(1, keepdim=True), squares)[:, 0]
        projector = self.image_projector
        made = projector["w2"](silu(projector["w1"](pooled)) * projector["w3"](pooled)).view(-1, half * half, 64)
        found, first = [], 0
        for height, width in image_sizes.tolist():
            rows, columns = (_tiles(length) for length in (height, width))
            order = torch.cat((torch.arange(half * half), half * half + _places(rows, columns).flatten()))
            own = made[first : first + 1 + rows * columns].flatten(0, 1)
            places = torch.full((1 + int(order.max()), 64), torch.nan)
            known = torch.cat((torch.ones(half * half), (_places(rows, columns) >= 0).flatten())).bool()
            places[order[known]] = own[known]
            found.append(places)
            first += 1 + rows * columns
        return torch.cat(found)

    def _seen(self, pixels: torch.Tensor) -> torch.Tensor:
        vit: Any = self.image_vit
        cut = pixels.unfold(2, PATCH, PATCH).unfold(3, PATCH, PATCH)  # [tiles, 3, rows, columns, patch, patch]
        x = vit.patch_embedding(cut.permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(1, 2))
        x = torch.cat((vit.class_embedding.expand(len(x), 1, -1), x), 1) + vit.positional_embedding
        x, outputs = vit.pre_ln(x), []
        for block in vit.transformer["resblocks"]:
            x = block(x)
            outputs.append(x[:, 1:])
        return torch.cat((outputs[-2], outputs[-9]), -1)


def _tiles(length: int) -> int:
    return (length // PATCH - 2 * _MARGIN) // (_GRID - 2 * _MARGIN)


def _places(rows: int, columns: int) -> torch.Tensor:
    """[tiles, side, side]: the place on the canvas of each embedding of a tile, row by row; far below 0 for those that
    a neighbour has."""
    half, margin = _GRID // 2, _MARGIN // 2
    window = half - 2 * margin
    wide = columns * window + 2 * margin
    found = torch.full((rows * columns, half, half), -1 << 20)
    for tile in range(rows * columns):
        row, column = divmod(tile, columns)
        for y in range(margin if row else 0, half if row == rows - 1 else half - margin):
            for x in range(margin if column else 0, half if column == columns - 1 else half - margin):
                found[tile, y, x] = (row * window + y) * wide + column * window + x
    return found


class _Molmo(Composed):
    """Embeddings of media are added to those of their placeholders."""

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, use_cache: bool, **media: Any) -> Any:
        embeddings = self.text.get_input_embeddings()(input_ids)
        if media:
            embeddings[input_ids == self.placeholder] += self.tower(**media)
        made = self.text(inputs_embeds=embeddings, attention_mask=attention_mask, use_cache=use_cache)
        made.logits = made.logits[..., :_PLACE]  # further tokens have none
        return made


def molmo(folder: Path, *, olmo: bool = False) -> Composed:
    """``olmo``: with the norms of OLMo 2 behind the parts of a layer, otherwise Qwen 2."""
    kind = "Olmo2" if olmo else "Qwen2"
    text = getattr(transformers, f"{kind}Config")(**TEXT, tie_word_embeddings=False)

    def make() -> _Molmo:
        return _Molmo(getattr(transformers, f"{kind}ForCausalLM")(text), _Seeing(), _PLACE)

    model: _Molmo = randomised(f"molmo_{kind}", make)
    stored = {f"model.vision_backbone.{name}": each for name, each in model.tower.state_dict().items()}
    stored |= _as_published(model.text.state_dict(), text.num_hidden_layers)
    save_file({name: tensor.contiguous() for name, tensor in stored.items()}, folder / "model.safetensors")
    config = {
        **{"architectures": ["MolmoForCausalLM"], "model_type": "molmo", "layer_norm_type": "rms", "clip_qkv": None},
        **{"attention_layer_norm": olmo, "norm_after": olmo, "qkv_bias": not olmo, "layer_norm_eps": text.rms_norm_eps},
        **{"embedding_size": _PLACE, "vocab_size": _PLACE - 8, "hidden_size": 64, "intermediate_size": 2 * _INNER},
        **{"num_attention_heads": text.num_attention_heads, "num_key_value_heads": text.num_key_value_heads},
        **{"num_hidden_layers": text.num_hidden_layers, "max_position_embeddings": text.max_position_embeddings},
        **{"rope_theta": text.rope_parameters["rope_theta"], "tie_word_embeddings": False, "weight_tying": False},
        **{"use_position_ids": True, "use_cache": True, "image_token_id": _PLACE},
        "additional_vocab_size": VOCAB - _PLACE,
        "vision_config": {
            **{"image_emb_dim": _WIDTH, "image_num_heads": _HEADS, "image_num_layers": _LAYERS, "image_mlp_dim": 48},
            **{"image_patch_size": PATCH, "image_default_input_size": [2 * SIDE, 2 * SIDE]},
            "overlap_margins": [_MARGIN, _MARGIN],
        },
    }
    (folder / "config.json").write_text(json.dumps(config))
    return model


_OF_LAYERS: Final[Mapping[str, str]] = {
    **{"self_attn.o_proj": "attn_out", "self_attn.q_norm": "q_norm", "self_attn.k_norm": "k_norm"},
    **{"input_layernorm": "attn_norm", "post_attention_layernorm": "ff_norm", "mlp.down_proj": "ff_out"},
    "post_feedforward_layernorm": "ff_norm",
}


def _as_published(tensors: Mapping[str, torch.Tensor], layers: int) -> dict[str, torch.Tensor]:
    """A decoder's tensors under Molmo's names, with the embeddings of its last tokens apart."""
    words = tensors["model.embed_tokens.weight"]
    found = {
        "wte.embedding": words[:_PLACE],
        "wte.new_embedding": words[_PLACE:],
        "ln_f.weight": tensors["model.norm.weight"],
    }
    found["ff_out.weight"] = tensors["lm_head.weight"][:_PLACE]
    for layer in range(layers):
        own, block = f"model.layers.{layer}.", f"blocks.{layer}."
        names = {**_OF_LAYERS}
        if f"{own}post_feedforward_layernorm.weight" in tensors:
            names["post_attention_layernorm"] = "attn_norm"
        for usual, published in names.items():
            if (tensor := tensors.get(f"{own}{usual}.weight")) is not None:
                found[f"{block}{published}.weight"] = tensor
        for ending in ("weight", "bias"):
            parts = [tensors.get(f"{own}self_attn.{part}_proj.{ending}") for part in "qkv"]
            if parts[0] is not None:
                found[f"{block}att_proj.{ending}"] = torch.cat([part for part in parts if part is not None])
        gates = [tensors[f"{own}mlp.{part}_proj.weight"] for part in ("up", "gate")]
        found[f"{block}ff_proj.weight"] = torch.cat(gates)
    return {f"model.transformer.{name}": tensor for name, tensor in found.items()}


def _tiled(random: torch.Generator, size: int) -> Picture:
    """The whole and one tile, or a canvas of two by three."""
    rows, columns = ((1, 1), (2, 3))[size]
    count, window = 1 + rows * columns, _GRID - 2 * _MARGIN
    shares = torch.tensor([0.0, 0.3, 1.0, -1.0])
    tensors = {
        "pixel_values": torch.randn(count, 3, 2 * SIDE, 2 * SIDE, generator=random),
        "image_masks": shares[torch.randint(4, (count, _GRID * _GRID), generator=random)],
        "image_sizes": torch.tensor([[(each * window + 2 * _MARGIN) * PATCH for each in (rows, columns)]]),
    }
    places = int(_places(rows, columns).max()) + 1
    return Picture(tensors, [_PLACE] * ((_GRID // 2) ** 2 + places))


_MOLMO: Final = Kind(_tiled, _PLACE, cat())
POOLED: Final[Mapping[str, Published]] = {
    "molmo": Published("molmo", molmo, _MOLMO),
    "molmo_olmo": Published("molmo", partial(molmo, olmo=True), _MOLMO),
}
