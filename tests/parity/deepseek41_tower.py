"""A tiny DeepSeek V4.1 that sees, by its definition, a picture at a time."""

import json
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from stentor.tests.parity import deepseek41
from stentor.tests.parity.composed import Published
from stentor.tests.parity.pictures import Kind, Picture, cat
from stentor.tests.support.vision_models import PATCH, TEXT, token

_HIDDEN, _HEADS, _INNER, _SIDE = 32, 2, 40, 3
"""Of the tower: hidden size, heads, units of a network, and patches of an embedding's side."""
_PICTURE: Final = "<|image_pad|>"
_GRIDS: Final = ((4, 7), (3, 3), (1, 8), (6, 2))
"""Rows and columns of patches of each size of picture."""


def _turned(x: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """x [patches, heads, dim]: half of the pairs turn by a patch's row, half by its column; halves go together."""
    dim = x.shape[2]
    rates = 10000.0 ** (-torch.arange(0, dim // 2, 2) / (dim // 2))
    row, column = torch.arange(rows).repeat_interleave(columns), torch.arange(columns).repeat(rows)
    angles = torch.cat((row[:, None] * rates, column[:, None] * rates), dim=1)[:, None]
    first, second = x.chunk(2, dim=2)
    return torch.cat(
        (first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()), dim=2
    )


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wqkv, self.wo = nn.Linear(_HIDDEN, 3 * _HIDDEN), nn.Linear(_HIDDEN, _HIDDEN)

    def forward(self, x: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        q, k, v = self.wqkv(x).view(len(x), 3, _HEADS, -1).unbind(1)
        q, k = _turned(q, rows, columns), _turned(k, rows, columns)
        scores = torch.einsum("qhd,khd->hqk", q, k) * (_HIDDEN // _HEADS) ** -0.5
        found: torch.Tensor = self.wo(torch.einsum("hqk,khd->qhd", scores.softmax(2), v).flatten(1))
        return found


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w2 = nn.Linear(_HIDDEN, 2 * _INNER, bias=False), nn.Linear(_INNER, _HIDDEN, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.w1(x).chunk(2, dim=1)
        found: torch.Tensor = self.w2(functional.silu(gate) * up)
        return found


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(_HIDDEN, 1e-6), nn.RMSNorm(_HIDDEN, 1e-6)
        self.attn, self.mlp = Attention(), Network()

    def forward(self, x: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        x = x + self.attn(self.norm1(x), rows, columns)
        return torch.add(x, self.mlp(self.norm2(x)))


class Vision(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch_embed = nn.ModuleDict({"proj": nn.Linear(3 * PATCH * PATCH, _HIDDEN)})
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(2)), nn.RMSNorm(_HIDDEN, 1e-6)

    def forward(self, pixels: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        x = self.patch_embed["proj"](pixels.flatten(1))
        for block in self.blocks:
            x = block(x, rows, columns)
        found: torch.Tensor = self.norm(x)
        return found


class Aligner(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.w1, self.w2 = nn.Linear(_SIDE * _SIDE * _HIDDEN, hidden), nn.Linear(hidden, hidden)

    def forward(self, squares: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.w2(functional.gelu(self.w1(squares)))
        return found


class Tower(nn.Module):
    """Under the published names."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.vision, self.aligner = Vision(), Aligner(hidden)
        self.image_start, self.image_newline, self.image_end = (nn.Parameter(torch.empty(hidden)) for _ in range(3))

    def forward(self, pixel_values: torch.Tensor, image_grid_thw: torch.Tensor) -> torch.Tensor:
        grids = [(rows, columns) for _, rows, columns in image_grid_thw.tolist()]
        parts = pixel_values.split([rows * columns for rows, columns in grids])
        return torch.cat([self._embedded(part, *grid) for part, grid in zip(parts, grids, strict=True)])

    def _embedded(self, pixels: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        image = self.vision(pixels, rows, columns).view(rows, columns, -1).permute(2, 0, 1)
        image = functional.pad(image, (0, -columns % _SIDE, 0, -rows % _SIDE))
        squares = functional.unfold(image[None], _SIDE, stride=_SIDE)[0].T
        made = self.aligner(squares)
        lines = made.view(-(-rows // _SIDE), -1, made.shape[1])
        parts = [self.image_start[None]]
        for line in lines:
            parts += [line, self.image_newline[None]]
        return torch.cat([*parts, self.image_end[None]])


class Seeing(nn.Module):
    def __init__(self, text: Any, tower: Tower) -> None:
        super().__init__()
        self.text, self.tower = text, tower

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, use_cache: bool, **media: Any) -> Any:
        if not media:
            return self.text(input_ids)
        embeddings, seen = self.text.embed(input_ids), input_ids == token(_PICTURE)
        embeddings[seen] = self.tower(**media)
        return self.text(input_ids, inputs_embeds=embeddings, seen=seen)


def _picture(random: torch.Generator, size: int) -> Picture:
    rows, columns = _GRIDS[size]
    pixels = torch.randn(rows * columns, 3, PATCH, PATCH, generator=random)
    count = -(-rows // _SIDE) * (-(-columns // _SIDE) + 1) + 2
    grid = torch.tensor([[1, rows, columns]])
    return Picture({"pixel_values": pixels, "image_grid_thw": grid}, [token(_PICTURE)] * count)


@torch.no_grad()
def make(folder: Path) -> Seeing:
    torch.manual_seed(3)
    config = deepseek41.configs(TEXT)["deepseek-v4.1"]()
    config.num_experts_per_tok, config.sees = 3, token(_PICTURE)
    text, tower = deepseek41.V41(config).eval(), Tower(config.hidden_size).eval()
    for module in (text, tower):
        for name, parameter in module.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.6, 1.4)
            else:
                parameter.normal_(0, 0.15)
    deepseek41.prepare(text)
    for name, parameter in text.named_parameters():
        if name.endswith("bias_vl"):  # so that many tokens have other experts
            parameter.normal_(0, 1)
    tensors = {**text.state_dict(), **tower.state_dict()}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    deepseek41.save_tokenizer(config.vocab_size, folder)
    vision = {"hidden_size": _HIDDEN, "num_attention_heads": _HEADS, "num_hidden_layers": 2, "patch_size": PATCH}
    vision |= {"intermediate_size": _INNER, "downsample_ratio": _SIDE, "max_image_tokens": 30, "min_pixels": 256}
    described = {**deepseek41.described(config), "image_token_id": token(_PICTURE), "vision_config": vision}
    described["architectures"] = ["DeepseekV41ForCausalLM"]
    (folder / "config.json").write_text(json.dumps(described))
    return Seeing(text, tower)


DEEPSEEK41: Final = {
    "deepseek_v41": Published(
        "deepseek_v41", make, Kind(_picture, token(_PICTURE), cat()), "DeepseekV41ForConditionalGeneration"
    )
}
