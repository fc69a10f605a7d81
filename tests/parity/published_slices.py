"""Tiny random models that see slices of pictures through learned queries, whose classes transformers does not have:
MiniCPM-V 2.6 to 4.5, and MiniCPM-o."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import transformers as untyped_transformers
from transformers.models.idefics2.modeling_idefics2 import Idefics2VisionTransformer

from stentor.tests.parity.composed import Composed, Published
from stentor.tests.parity.pictures import Kind, Picture, cat
from stentor.tests.support.vision_models import PATCH, SIZES, TEXT, randomised, token

transformers: Any = untyped_transformers
"""Its configs take more than their signatures say."""

QUERIES: Final = 6
_WIDTH: Final = 256
"""Two heads of the resampler."""
_UNKNOWN: Final = token("<image>")


class _Resampler(torch.nn.Module):
    """torch's attention from learned queries, whose keys know the places of patches."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.query = torch.nn.Parameter(torch.empty(QUERIES, _WIDTH))
        if inputs != _WIDTH:
            self.kv_proj = torch.nn.Linear(inputs, _WIDTH, bias=False)
        self.attn = torch.nn.MultiheadAttention(_WIDTH, _WIDTH // 128)
        self.ln_q, self.ln_kv, self.ln_post = (torch.nn.LayerNorm(_WIDTH, 1e-6) for _ in range(3))
        self.proj = torch.nn.Parameter(torch.empty(_WIDTH, _WIDTH))

    def forward(self, x: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
        """x [patches, inputs] → [queries, width]"""
        patches = self.ln_kv(self.kv_proj(x) if hasattr(self, "kv_proj") else x)
        turns = 1.0 / 10_000 ** (np.arange(_WIDTH // 4) / (_WIDTH // 4))
        down, across = np.meshgrid(*(np.arange(side) for side in grid), indexing="ij")
        of_sides = [side.reshape(-1, 1) * turns for side in (across, down)]
        placed = np.concatenate([wave(side) for side in of_sides for wave in (np.sin, np.cos)], axis=1)
        keys = patches + torch.from_numpy(placed).float()
        found = self.attn(self.ln_q(self.query)[:, None], keys[:, None], patches[:, None], need_weights=False)[0]
        made: torch.Tensor = self.ln_post(found[:, 0]) @ self.proj
        return made


class _Sliced(torch.nn.Module):
    """transformers' tower of Idefics2 over each slice in its own shape, without its last layer if that is ``dropped``,
    and the resampler."""

    def __init__(self, vision: Mapping[str, Any], dropped: bool) -> None:
        super().__init__()
        self.vpm = Idefics2VisionTransformer(transformers.Idefics2VisionConfig(**vision))
        if dropped:
            del self.vpm.encoder.layers[-1]
        self.resampler = _Resampler(vision["hidden_size"])

    def forward(self, pixel_values: torch.Tensor, image_grid_thw: torch.Tensor) -> torch.Tensor:
        pieces = pixel_values.split(image_grid_thw.prod(1).tolist())
        return torch.cat([self._slice(*each) for each in zip(pieces, image_grid_thw.tolist(), strict=True)])

    def _slice(self, patches: torch.Tensor, grid: tuple[int, int, int]) -> torch.Tensor:
        rows, columns = grid[1:]
        pixels = patches.view(rows, columns, 3, PATCH, PATCH).permute(2, 0, 3, 1, 4).flatten(3).flatten(1, 2)
        made: torch.Tensor = self.resampler(self.vpm(pixels[None]).last_hidden_state[0], (rows, columns))
        return made


def minicpmv(folder: Path, *, version: object, name: str = "MiniCPMV", wide: bool = False) -> Composed:
    """``wide``: the tower is as wide as the decoder, and its last layer is left out."""
    text = {**TEXT, "hidden_size": _WIDTH, "head_dim": _WIDTH // 4, "tie_word_embeddings": False}
    kind = {"2.6": "Qwen2", "4.0": "Llama", "4.5": "Qwen3"}[str(version)]
    decoder = getattr(transformers, f"{kind}Config")(**text)
    vision = {**SIZES, "image_size": 6 * PATCH, "patch_size": PATCH, "model_type": "siglip"}
    vision |= {"hidden_size": _WIDTH} if wide else {}
    config = {
        **decoder.to_dict(),
        **{"architectures": [name], "model_type": name.lower(), "version": version, "query_num": QUERIES},
        **{"vision_config": vision, "drop_vision_last_layer": wide, "image_token_id": _UNKNOWN},
    }

    def make() -> Composed:
        made = getattr(transformers, f"{kind}ForCausalLM")(decoder)
        return Composed(made, _Sliced(vision, wide), _UNKNOWN)

    model: Composed = randomised(f"{name}{version}", make)
    model.save(folder, config, "llm.", lambda name: name)
    return model


def _slices(random: torch.Generator, size: int) -> Picture:
    """A whole picture, and for the second size two slices of another shape."""
    grids = [(4, 7), *[(5, 3)] * 2 * size]
    pixels = torch.randn(sum(rows * columns for rows, columns in grids), 3, PATCH, PATCH, generator=random)
    begin, end = token("<|vision_start|>"), token("<|vision_end|>")
    tokens = [each for _ in grids for each in (begin, *[_UNKNOWN] * QUERIES, end)]
    return Picture({"pixel_values": pixels, "image_grid_thw": torch.tensor([[1, *grid] for grid in grids])}, tokens)


_SLICED: Final = Kind(_slices, _UNKNOWN, cat())
IN_SLICES: Final[Mapping[str, Published]] = {
    "minicpmv_2_6": Published("minicpmv", partial(minicpmv, version=2.6), _SLICED),
    "minicpmv_4": Published("minicpmv", partial(minicpmv, version=4.0, wide=True), _SLICED),
    "minicpmv_4_5": Published("minicpmv", partial(minicpmv, version=4.5), _SLICED),
    "minicpmo": Published("minicpmo", partial(minicpmv, version="2.6", name="MiniCPMO"), _SLICED),
}
