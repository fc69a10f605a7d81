"""A tiny Ovis 2 in plain float32, written after its makers' published code, with its names: AIMv2, a vocabulary of
visual words, and marks around the whole picture and between its tiles."""

from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
import transformers as untyped_transformers

from stentor.tests.parity.composed import Composed, Published
from stentor.tests.parity.pictures import Kind, Picture, cat
from stentor.tests.support.vision_models import PATCH, SIDE, SIZES, TEXT, randomised, token

transformers: Any = untyped_transformers

_WORDS: Final = 40
_MARKS: Final = 5
_MERGE: Final = 2
_PAD: Final = token("<|image_pad|>")


class _Norm(torch.nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * self.weight


class _Block(torch.nn.Module):
    def __init__(self, size: int, inner: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = _Norm(size), _Norm(size)
        linear = partial(torch.nn.Linear, bias=False)
        self.attn = torch.nn.ModuleDict({"qkv": linear(size, 3 * size), "proj": linear(size, size)})
        self.mlp = torch.nn.ModuleDict(
            {"fc1": linear(size, inner), "fc2": linear(inner, size), "fc3": linear(size, inner)}
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.attn["qkv"](self.norm_1(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        x = x + self.attn["proj"]((weights @ v).transpose(1, 2).flatten(2))
        y = self.norm_2(x)
        found: torch.Tensor = x + self.mlp["fc2"](torch.nn.functional.silu(self.mlp["fc1"](y)) * self.mlp["fc3"](y))
        return found


class _Tokenizer(torch.nn.Module):
    """The embeddings of one or several pictures, each of which has a grid."""

    def __init__(self) -> None:
        super().__init__()
        size, side = SIZES["hidden_size"], SIDE // PATCH
        self.proj = torch.nn.Conv2d(3, size, PATCH, PATCH)
        self.norm = _Norm(size)
        self.pos_embed = torch.nn.Parameter(torch.zeros(1, side * side, size))
        sizes = size, SIZES["intermediate_size"], SIZES["num_attention_heads"]
        self.blocks = torch.nn.ModuleList(_Block(*sizes) for _ in range(SIZES["num_hidden_layers"]))
        self.post_trunk_norm = _Norm(size)  # of the output that nothing takes
        words = torch.nn.Linear(size * _MERGE**2, _WORDS - _MARKS, bias=False)
        self.head = torch.nn.Sequential(words, torch.nn.LayerNorm(_WORDS - _MARKS))
        self.vte = torch.nn.Embedding(_WORDS, TEXT["hidden_size"])

    def forward(self, pixel_values: torch.Tensor, grids: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.proj(pixel_values).flatten(2).transpose(1, 2)) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        half = SIDE // PATCH // _MERGE
        squares = x.view(len(x), half, _MERGE, half, _MERGE, -1).transpose(2, 3).reshape(len(x), half**2, -1)
        seen = iter(self.head(squares).softmax(-1) @ self.vte.weight[:-_MARKS])
        begin, behind, between, below, end = self.vte.weight[-_MARKS:].split(1)
        found = []
        for rows, columns in grids.tolist():
            found += [begin, next(seen), behind]
            for row in range(rows if rows * columns > 1 else 0):
                for column in range(columns):
                    found += [next(seen), *([between] if column < columns - 1 else [])]
                found += [below] if row < rows - 1 else []
            found.append(end)
        return torch.cat(found)


def _ovis(folder: Path) -> Composed:
    text = transformers.Qwen2Config(**TEXT, tie_word_embeddings=False)
    backbone = {name: SIZES[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers")}
    backbone |= {"num_attention_heads": SIZES["num_attention_heads"], "image_size": SIDE, "patch_size": PATCH}
    seen = {"model_type": "aimv2_visual_tokenizer", "backbone_config": {"model_type": "aimv2", **backbone}}
    config = {
        **{"architectures": ["Ovis"], "model_type": "ovis", "hidden_size": TEXT["hidden_size"]},
        **{"llm_config": text.to_dict(), "image_token_id": _PAD},
        "visual_tokenizer_config": {**seen, "vocab_size": _WORDS, "hidden_stride": _MERGE, "drop_cls_token": False},
    }

    def named(name: str) -> str:
        part = "preprocessor.patchifier." if name.startswith(("proj.", "norm.")) else "trunk."
        part = "preprocessor." if name == "pos_embed" else part
        backbone = "" if name.startswith("head.") else f"backbone.{part}"
        return name if name.startswith("vte.") else f"visual_tokenizer.{backbone}{name}"

    model: Composed = randomised("ovis", lambda: Composed(transformers.Qwen2ForCausalLM(text), _Tokenizer(), _PAD))
    model.save(folder, config, "llm.", named)
    return model


def _picture(random: torch.Generator, size: int) -> Picture:
    rows, columns = ((1, 1), (2, 3))[size]
    tiles = 1 if size == 0 else 1 + rows * columns
    each = (SIDE // PATCH // _MERGE) ** 2
    marks = 3 if size == 0 else 2 + rows * columns
    pixels = torch.randn(tiles, 3, SIDE, SIDE, generator=random)
    tensors = {"pixel_values": pixels, "grids": torch.tensor([[rows, columns]])}
    return Picture(tensors, [_PAD] * (tiles * each + marks))


OVIS: Final = {"ovis": Published("ovis", _ovis, Kind(_picture, _PAD, cat()))}
