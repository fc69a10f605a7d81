"""Tiny random models that see patches of pictures of any shape, whose classes transformers does not have: dots.ocr."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
import transformers as untyped_transformers

from stentor.tests.parity.composed import Composed, Published
from stentor.tests.parity.pictures import Kind, Picture, cat
from stentor.tests.support.vision_models import PATCH, SIZES, TEXT, randomised, token

transformers: Any = untyped_transformers
"""Its configs take more than their signatures say."""


def squares(rows: int, columns: int) -> torch.Tensor:
    """int64 [patches, 2]: row and column of each patch, square of four by square of four."""
    at = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).view(rows, columns, 2)
    return at.unflatten(1, (-1, 2)).unflatten(0, (-1, 2)).transpose(1, 2).flatten(0, 3)


def turned(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """x [heads, patches, head_dim], whose halves turn together by angles [patches, head_dim / 2]."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), dim=-1)


class _DotsLayer(torch.nn.Module):
    def __init__(self, hidden: int, inner: int, heads: int, bias: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = (torch.nn.RMSNorm(hidden, 1e-5) for _ in range(2))
        parts = {"qkv": torch.nn.Linear(hidden, 3 * hidden, bias), "proj": torch.nn.Linear(hidden, hidden, bias)}
        self.attn, self.heads = torch.nn.ModuleDict(parts), heads
        into = {name: torch.nn.Linear(hidden, inner, bias) for name in ("fc1", "fc3")}
        self.mlp = torch.nn.ModuleDict({**into, "fc2": torch.nn.Linear(inner, hidden, bias)})

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        q, k, v = self.attn["qkv"](self.norm1(x)).unflatten(1, (3, self.heads, -1)).permute(1, 2, 0, 3)
        scores = turned(q, angles) @ turned(k, angles).mT / q.shape[-1] ** 0.5
        x = x + self.attn["proj"]((scores.softmax(-1) @ v).transpose(0, 1).flatten(1))
        y = self.norm2(x)
        found: torch.Tensor = x + self.mlp["fc2"](torch.nn.functional.silu(self.mlp["fc1"](y)) * self.mlp["fc3"](y))
        return found


class _Dots(torch.nn.Module):
    """The network of AIMv2, rotated by row and column, and products of squares of four patches."""

    def __init__(self, vision: Mapping[str, Any]) -> None:
        super().__init__()
        hidden, bias = vision["embed_dim"], vision["use_bias"]
        sizes = hidden, vision["intermediate_size"], vision["num_attention_heads"], bias
        embed = {"proj": torch.nn.Conv2d(3, hidden, PATCH, PATCH), "norm": torch.nn.RMSNorm(hidden, 1e-5)}
        self.patch_embed = torch.nn.ModuleDict({"patchifier": torch.nn.ModuleDict(embed)})
        self.blocks = torch.nn.ModuleList([_DotsLayer(*sizes) for _ in range(vision["num_hidden_layers"])])
        if vision["post_norm"]:
            self.post_trunk_norm = torch.nn.RMSNorm(hidden, 1e-5)
        joined = 4 * hidden
        products = torch.nn.Linear(joined, joined), torch.nn.GELU(), torch.nn.Linear(joined, vision["hidden_size"])
        parts = {"ln_q": torch.nn.LayerNorm(hidden, 1e-6), "mlp": torch.nn.Sequential(*products)}
        self.merger = torch.nn.ModuleDict(parts)

    def forward(self, pixel_values: torch.Tensor, image_grid_thw: torch.Tensor) -> torch.Tensor:
        pieces = pixel_values.split(image_grid_thw.prod(1).tolist())
        grids = image_grid_thw.tolist()
        return torch.cat([self._picture(*each) for each in zip(pieces, grids, strict=True)])

    def _picture(self, values: torch.Tensor, grid: tuple[int, int, int]) -> torch.Tensor:
        embed: Any = self.patch_embed["patchifier"]
        x = embed["norm"](embed["proj"](values.view(-1, 3, PATCH, PATCH)).flatten(1))
        pairs = x.shape[1] // SIZES["num_attention_heads"] // 2
        frequencies = 10_000.0 ** (-torch.arange(0, pairs, 2) / pairs)
        angles = (squares(*grid[1:])[:, :, None] * frequencies).flatten(1)
        for layer in self.blocks:
            x = layer(x, angles)
        x = self.post_trunk_norm(x) if hasattr(self, "post_trunk_norm") else x
        found: torch.Tensor = self.merger["mlp"](self.merger["ln_q"](x).view(-1, 4 * x.shape[1]))
        return found


def dots_ocr(folder: Path, *, plain: bool = True) -> Composed:
    """``plain``: as published, without biases and with a norm behind the layers."""
    text = transformers.Qwen2Config(**TEXT, tie_word_embeddings=False)
    sizes = {name: value for name, value in SIZES.items() if name != "hidden_size"}
    vision = {**sizes, "embed_dim": 64, "hidden_size": 64, "use_bias": not plain, "post_norm": plain}
    vision |= {"patch_size": PATCH, "spatial_merge_size": 2, "temporal_patch_size": 1, "rms_norm_eps": 1e-5}
    vision |= {"model_type": "dots_vit", "num_channels": 3, "is_causal": False}
    config = {
        **text.to_dict(),
        **{"architectures": ["DotsOCRForCausalLM"], "model_type": "dots_ocr", "vision_config": vision},
        **{"image_token_id": token("<|image_pad|>"), "video_token_id": token("<|video_pad|>")},
    }

    def make() -> Composed:
        return Composed(transformers.Qwen2ForCausalLM(text), _Dots(vision), token("<|image_pad|>"))

    model: Composed = randomised("dots_ocr", make)
    model.save(folder, config, "", lambda name: f"vision_tower.{name}")
    return model


def _of_any_shape(random: torch.Generator, size: int) -> Picture:
    rows, columns = ((4, 6), (6, 4))[size]
    pixels = torch.randn(rows * columns, 3 * PATCH * PATCH, generator=random)
    tensors = {"pixel_values": pixels, "image_grid_thw": torch.tensor([[1, rows, columns]])}
    inside = [token("<|image_pad|>")] * (rows * columns // 4)
    return Picture(tensors, [token("<|vision_start|>"), *inside, token("<|vision_end|>")])


_SHAPED: Final = Kind(_of_any_shape, token("<|image_pad|>"), cat())
IN_GRIDS: Final[Mapping[str, Published]] = {
    "dots_ocr": Published("dots_ocr", dots_ocr, _SHAPED),
    "dots_ocr_biased": Published("dots_ocr", lambda folder: dots_ocr(folder, plain=False), _SHAPED),
}
