"""A tiny random GLM-4V, whose class transformers does not have: the GLM that is, and EVA2-CLIP plainly."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
import transformers as untyped_transformers
from safetensors.torch import save_file

from stentor.tests.parity import hub
from stentor.tests.parity.composed import Composed, Published
from stentor.tests.parity.pictures import Kind, Picture, cat
from stentor.tests.support.vision_models import PAD, PATCH, SIDE, SIZES, TEXT, randomised, token

transformers: Any = untyped_transformers
"""Its configs take more than their signatures say."""

_EMBEDDED: Final = token(PAD)
_BEGIN, _END = token("<img>"), token("</img>")
_SCALING: Final = 4
_WIDTH, _HEADS = SIZES["hidden_size"], SIZES["num_attention_heads"]


class _EvaLayer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention: Any = torch.nn.Module()
        self.attention.query_key_value = torch.nn.Linear(_WIDTH, 3 * _WIDTH)
        self.attention.dense = torch.nn.Linear(_WIDTH, _WIDTH)
        inner = SIZES["intermediate_size"]
        self.mlp = torch.nn.ModuleDict({"fc1": torch.nn.Linear(_WIDTH, inner), "fc2": torch.nn.Linear(inner, _WIDTH)})
        self.input_layernorm, self.post_attention_layernorm = (torch.nn.LayerNorm(_WIDTH, 1e-6) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.attention.query_key_value(x).unflatten(-1, (3, _HEADS, -1)).permute(2, 0, 3, 1, 4)
        found = torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.input_layernorm(self.attention.dense(found))
        inner = self.mlp["fc2"](torch.nn.functional.gelu(self.mlp["fc1"](x)))
        made: torch.Tensor = x + self.post_attention_layernorm(inner)
        return made


class _Eva(torch.nn.Module):
    """With the names that published files have behind ``transformer.vision.``."""

    def __init__(self) -> None:
        super().__init__()
        self.patch_embedding: Any = torch.nn.Module()
        self.patch_embedding.proj = torch.nn.Conv2d(3, _WIDTH, PATCH, PATCH)
        self.patch_embedding.cls_embedding = torch.nn.Parameter(torch.zeros(1, _WIDTH))
        self.patch_embedding.position_embedding = torch.nn.Embedding((SIDE // PATCH) ** 2 + 1, _WIDTH)
        self.transformer: Any = torch.nn.Module()
        self.transformer.layers = torch.nn.Sequential(*(_EvaLayer() for _ in range(SIZES["num_hidden_layers"])))
        hidden, wide = TEXT["hidden_size"], TEXT["intermediate_size"]
        self.conv = torch.nn.Conv2d(_WIDTH, hidden, 2, 2)
        self.linear_proj = torch.nn.ModuleDict(
            {
                "linear_proj": torch.nn.Linear(hidden, hidden, bias=False),
                "norm1": torch.nn.LayerNorm(hidden),
                "gate_proj": torch.nn.Linear(hidden, wide, bias=False),
                "dense_h_to_4h": torch.nn.Linear(hidden, wide, bias=False),
                "dense_4h_to_h": torch.nn.Linear(wide, hidden, bias=False),
            }
        )
        self.boi, self.eoi = (torch.nn.Parameter(torch.zeros(1, 1, hidden)) for _ in range(2))

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """[pictures, embeddings, hidden] without those of the marks."""
        into, parts = self.patch_embedding, self.linear_proj
        x = into.proj(pixel_values).flatten(2).transpose(1, 2)
        x = torch.cat((into.cls_embedding.expand(len(x), 1, -1), x), 1) + into.position_embedding.weight
        side = SIDE // PATCH
        x = self.transformer.layers(x)[:, 1:].transpose(1, 2).unflatten(2, (side, side))
        x = self.conv(x).flatten(2).transpose(1, 2)
        x = torch.nn.functional.gelu(parts["norm1"](parts["linear_proj"](x)))
        x = torch.nn.functional.silu(parts["gate_proj"](x)) * parts["dense_h_to_4h"](x)
        found: torch.Tensor = parts["dense_4h_to_h"](x) / _SCALING
        return found


class _AtOnePlace(Composed):
    """All patches of a picture have one position, and the tower's embeddings of its marks stand around them."""

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, use_cache: bool, **media: Any) -> Any:
        inside = input_ids == self.placeholder
        joined = inside & torch.nn.functional.pad(inside, (1, 0))[:, :-1]
        embeddings = self.text.get_input_embeddings()(input_ids)
        if media:
            embeddings[inside] = self.tower(**media).flatten(0, 1)
        for mark, made in ((_BEGIN, self.tower.boi), (_END, self.tower.eoi)):
            embeddings[input_ids == mark] = made[0] / _SCALING  # type: ignore[index]
        places = (~joined).cumsum(1) - 1
        return self.text(
            inputs_embeds=embeddings, attention_mask=attention_mask, position_ids=places, use_cache=use_cache
        )


def chatglm_4v(folder: Path, *, architecture: str) -> Composed:
    """``architecture``: that of its text alone, as in published files, or vLLM's."""
    text = transformers.GlmConfig(**TEXT, head_dim=16, attention_bias=True, tie_word_embeddings=False)
    model: Composed = randomised(
        "chatglm_4v", lambda: _AtOnePlace(transformers.GlmForCausalLM(text), _Eva(), _EMBEDDED)
    )
    vision = {**SIZES, "num_heads": _HEADS, "patch_size": PATCH, "image_size": SIDE, "hidden_act": "gelu"}
    vision |= {"num_positions": (SIDE // PATCH) ** 2 + 1, "scaling_factor": _SCALING, "layer_norm_eps": 1e-6}
    vision |= {"in_channels": 3, "dropout_prob": 0.0}
    config = {
        **hub.described("chatglm", text),
        **{"architectures": [architecture], "vision_config": vision, "pad_token_id": _EMBEDDED},
        **{"boi_token_id": _BEGIN, "eoi_token_id": _END, "seq_length": 2048},
    }
    stored = hub.stored("chatglm", model.text.state_dict(), text)
    stored |= {f"transformer.vision.{name}": tensor for name, tensor in model.tower.state_dict().items()}
    save_file({name: tensor.contiguous() for name, tensor in stored.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return model


def _picture(random: torch.Generator, size: int) -> Picture:
    side = SIDE // PATCH // 2
    tokens = [_BEGIN, *[_EMBEDDED] * side**2, _END]
    return Picture({"pixel_values": torch.randn(1, 3, SIDE, SIDE, generator=random)}, tokens, (1, side, side))


_KIND: Final = Kind(_picture, _EMBEDDED, cat())
CHATGLMS: Final[Mapping[str, Published]] = {
    "chatglm_4v": Published("chatglm_4v", partial(chatglm_4v, architecture="ChatGLMModel"), _KIND, "GLM4VForCausalLM"),
    "chatglm_4v_base": Published("chatglm_4v", partial(chatglm_4v, architecture="GLM4VForCausalLM"), _KIND),
}
