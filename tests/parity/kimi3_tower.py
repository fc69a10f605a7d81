"""The tower of a tiny Kimi K3, by its definition, a picture at a time."""

import json
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from stentor.tests.parity import kimi3
from stentor.tests.parity.composed import Composed, Published
from stentor.tests.parity.pictures import Kind, Picture, cat, qwen_picture
from stentor.tests.support.vision_models import PATCH, TEXT, token

_HIDDEN, _HEADS, _WIDTH, _INNER, _SIDE = 32, 2, 48, 40, 8
"""Of the tower: hidden size, heads, all heads' width, units of a network, and positions of a side."""
_PICTURE: Final = "<|image_pad|>"


def _turned(x: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """x [patches, heads, dim]: of each four numbers, two turn by a patch's column and two by its row."""
    dim = x.shape[2]
    rates = 10000.0 ** (-torch.arange(0, dim, 4) / dim)
    row, column = torch.arange(rows).repeat_interleave(columns), torch.arange(columns).repeat(rows)
    angles = torch.stack((column[:, None] * rates, row[:, None] * rates), dim=2).flatten(1)[:, None]
    even, odd = x[..., ::2], x[..., 1::2]
    turned = even * angles.cos() - odd * angles.sin(), even * angles.sin() + odd * angles.cos()
    return torch.stack(turned, dim=3).flatten(2)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc0, self.fc1 = nn.Linear(_HIDDEN, _INNER, bias=False), nn.Linear(_INNER, _HIDDEN, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.fc1(functional.gelu(self.fc0(x), approximate="tanh"))
        return found


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm0, self.norm1 = nn.RMSNorm(_HIDDEN), nn.RMSNorm(_HIDDEN)
        self.wqkv = nn.Linear(_HIDDEN, 3 * _WIDTH, bias=False)
        self.wo = nn.Linear(_WIDTH, _HIDDEN, bias=False)
        self.mlp = Network()

    def forward(self, x: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        q, k, v = self.wqkv(self.norm0(x)).view(len(x), 3, _HEADS, -1).unbind(1)
        q, k = _turned(q, rows, columns), _turned(k, rows, columns)
        scores = torch.einsum("qhd,khd->hqk", q, k) * (_WIDTH // _HEADS) ** -0.5
        x = x + self.wo(torch.einsum("hqk,khd->qhd", scores.softmax(2), v).flatten(1))
        return torch.add(x, self.mlp(self.norm1(x)))


class Tower(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, _HIDDEN, PATCH, PATCH, bias=False)
        self.pos_emb = nn.Parameter(torch.empty(_SIDE, _SIDE, _HIDDEN))
        self.blocks, self.final = nn.ModuleList(Block() for _ in range(2)), nn.RMSNorm(_HIDDEN)
        self.linear_1 = nn.Linear(4 * _HIDDEN, 4 * _HIDDEN, bias=False)
        self.linear_2, self.post_norm = nn.Linear(4 * _HIDDEN, hidden, bias=False), nn.RMSNorm(hidden, eps=1e-5)

    def forward(self, pixel_values: torch.Tensor, image_grid_thw: torch.Tensor) -> torch.Tensor:
        grids = [(rows, columns) for _, rows, columns in image_grid_thw.tolist()]
        parts = pixel_values.split([rows * columns for rows, columns in grids])
        return torch.cat([self._embedded(part, *grid) for part, grid in zip(parts, grids, strict=True)])

    def _embedded(self, pixels: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        square = self.pos_emb.permute(2, 0, 1)[None]
        places = functional.interpolate(square, (rows, columns), mode="bilinear")[0].flatten(1).T
        x = self.proj(pixels).flatten(1) + places
        for block in self.blocks:
            x = block(x, rows, columns)
        joined = self.final(x).view(rows // 2, 2, columns // 2, 2, -1).transpose(1, 2).reshape(rows * columns // 4, -1)
        found: torch.Tensor = self.post_norm(self.linear_2(functional.gelu(self.linear_1(joined))))
        return found

    def stored(self) -> dict[str, torch.Tensor]:
        """Under the published names."""
        names = {
            **{"proj.": "vision_tower.patch_embed.proj.", "pos_emb": "vision_tower.patch_embed.pos_emb.weight"},
            **{"blocks.": "vision_tower.encoder.blocks.", "final.": "vision_tower.encoder.final_layernorm."},
            **{"linear_1.": "mm_projector.proj.0.", "linear_2.": "mm_projector.proj.2."},
            "post_norm.": "mm_projector.post_norm.",
        }
        begins = {name: next(each for each in names if name.startswith(each)) for name in self.state_dict()}
        return {
            names[begin] + name.removeprefix(begin): tensor
            for (name, tensor), begin in zip(self.state_dict().items(), begins.values(), strict=True)
        }


def _picture(random: torch.Generator, size: int) -> Picture:
    whole = qwen_picture(random, size)
    _, rows, columns = whole.tensors["image_grid_thw"][0].tolist()
    pixels = torch.randn(rows * columns, 3, PATCH, PATCH, generator=random)
    return Picture({**whole.tensors, "pixel_values": pixels}, whole.tokens)


@torch.no_grad()
def _made(folder: Path) -> Any:
    torch.manual_seed(3)
    config = kimi3.configs({**TEXT, "num_hidden_layers": 3})["kimi-k3"]()
    text, tower = kimi3.K3(config).eval(), Tower(config.hidden_size).eval()
    for module in (text, tower):
        for name, parameter in module.named_parameters():
            if "norm" in name or name.startswith("final"):
                parameter.uniform_(0.6, 1.4)
            else:
                parameter.normal_(0, 0.15)
    kimi3.prepare(text)
    tensors = {f"language_model.{name}": tensor for name, tensor in text.state_dict().items()}
    tensors = {name: each.contiguous() for name, each in (*tensors.items(), *tower.stored().items())}
    save_file(tensors, folder / "model.safetensors")
    vision: dict[str, Any] = {"vt_hidden_size": _HIDDEN, "vt_num_attention_heads": _HEADS, "vt_num_hidden_layers": 2}
    vision |= {"vt_intermediate_size": _INNER, "qkv_hidden_size": _WIDTH, "patch_size": PATCH, "norm_type": "rmsnorm"}
    vision |= {"init_pos_emb_height": _SIDE, "init_pos_emb_width": _SIDE, "merge_kernel_size": [2, 2]}
    described = {**kimi3.described(config), "media_placeholder_token_id": token(_PICTURE), "vision_config": vision}
    (folder / "config.json").write_text(json.dumps(described))
    return Composed(text, tower, token(_PICTURE))


KIMI3: Final = {"kimi_k3": Published("kimi_k3", _made, Kind(_picture, token(_PICTURE), cat()))}
