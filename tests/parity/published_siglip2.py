"""Tiny random models behind SigLIP 2, whose classes transformers does not have: Isaac and Phi-4-reasoning-vision."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
import transformers as untyped_transformers

from stentor.tests.parity.composed import Composed, Published, within
from stentor.tests.parity.pictures import Kind, Picture, cat
from stentor.tests.parity.published_grids import Sections, squares
from stentor.tests.support.vision_models import PATCH, SIZES, TEXT, randomised, token

transformers: Any = untyped_transformers
"""Its configs take more than their signatures say."""

_SIDE: Final = 5
"""Patches on each side of the square of learned positions."""


class _Siglip(torch.nn.Module):
    """transformers' SigLIP 2 over pictures of any shape, and two products of squares of four patches."""

    def __init__(self, vision: Mapping[str, Any]) -> None:
        super().__init__()
        self.tower = transformers.Siglip2VisionModel(transformers.Siglip2VisionConfig(**vision, vision_use_head=False))
        joined = 4 * vision["hidden_size"]
        self.first, self.last = torch.nn.Linear(joined, 4 * joined, False), torch.nn.Linear(4 * joined, 64, False)

    def forward(self, pixel_values: torch.Tensor, image_grid_thw: torch.Tensor) -> torch.Tensor:
        found = []
        grids = image_grid_thw[:, 1:]
        for values, grid in zip(pixel_values.split(grids.prod(1).tolist()), grids, strict=True):
            mask = torch.ones(1, len(values), dtype=torch.long)
            seen = self.tower(values[None], pixel_attention_mask=mask, spatial_shapes=grid[None]).last_hidden_state[0]
            rows, columns = grid.tolist()
            at = squares(rows, columns)
            beside = seen[at[:, 0] * columns + at[:, 1]].view(-1, 4 * seen.shape[1])
            found.append(self.last(torch.nn.functional.silu(self.first(beside))))
        return torch.cat(found)


class _FromCorners(Composed):
    """Rows and columns of pictures count from 0; a picture takes one index."""

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, use_cache: bool, **media: Any) -> Any:
        grids = iter(media["image_grid_thw"].tolist() if media else ())
        places: list[tuple[int, int, int]] = []
        index, tokens = 0, input_ids[0].tolist()
        while len(places) < len(tokens):
            if tokens[len(places)] == self.placeholder:
                _, rows, columns = (side // 2 for side in next(grids))
                places += [(index, row, column) for row in range(rows) for column in range(columns)]
            else:
                places.append((index,) * 3)
            index += 1
        self.text.model.rotary_emb.places = torch.tensor(places).T.float()
        return super().forward(input_ids, attention_mask, use_cache, **media)


_NAMES: Final[Mapping[str, str]] = {
    "tower.": "model.vision_embedding.0.",
    "first.": "model.vision_embedding.1.",
    "last.": "model.vision_embedding.3.",
}


def isaac(folder: Path, *, flat: bool = False) -> Composed:
    """``flat``: a file of its first form, without a table of the text part."""
    text = transformers.Qwen3Config(**TEXT, head_dim=16, tie_word_embeddings=False)
    vision = {**SIZES, "patch_size": PATCH, "num_patches": _SIDE * _SIDE}
    rope = {"rope_type": "default", "mrope_section": None, "mrope_interleaved": True}
    told = {name: value for name, value in text.to_dict().items() if name not in ("rope_parameters", "architectures")}
    told |= {"rope_theta": 10_000.0, "rope_scaling": rope}
    config = {
        **{
            "architectures": ["IsaacForConditionalGeneration"],
            "vision_token": "<image>",
            "max_sequence_length": 16_384,
        },
        "vision_config": {**vision, "model_type": "pixel_shuffle_siglip2", "pixel_shuffle_scale_factor": 2},
        **{"vision_max_num_patches": 48, "vision_min_num_patches": 16, "pixel_shuffle_scale": 2},
        **{"video_patch_size": PATCH, "tie_word_embeddings": False},
        "image_token_id": token("<|image_pad|>"),
    }
    config = {**told, **config} if flat else {**config, "text_config": told}
    config["model_type"] = "isaac"

    def make() -> Composed:
        decoder = transformers.Qwen3ForCausalLM(text)
        decoder.model.rotary_emb = Sections(16, [4, 2, 2])
        return _FromCorners(decoder, _Siglip(vision), token("<|image_pad|>"))

    model: Composed = randomised("isaac", make)

    def named(name: str) -> str:
        begin = next(each for each in _NAMES if name.startswith(each))
        return _NAMES[begin] + name.removeprefix(begin)

    model.save(folder, config, "" if flat else within("text_model"), named)
    return model


class _BeforeLast(torch.nn.Module):
    """Two products of the patches before the last layer of transformers' SigLIP 2."""

    def __init__(self, vision: Mapping[str, Any]) -> None:
        super().__init__()
        self.tower = transformers.Siglip2VisionModel(transformers.Siglip2VisionConfig(**vision, vision_use_head=False))
        products = torch.nn.Linear(vision["hidden_size"], 64), torch.nn.GELU(), torch.nn.Linear(64, 64)
        self.mm_projector = torch.nn.Sequential(*products)

    def forward(self, pixel_values: torch.Tensor, spatial_shapes: torch.Tensor) -> torch.Tensor:
        found = []
        for values, grid in zip(pixel_values, spatial_shapes, strict=True):
            values = values[: int(grid.prod())]
            mask = torch.ones(1, len(values), dtype=torch.long)
            given = {"pixel_attention_mask": mask, "spatial_shapes": grid[None], "output_hidden_states": True}
            found.append(self.mm_projector(self.tower(values[None], **given).hidden_states[-2][0]))
        return torch.cat(found)


def phi4_siglip(folder: Path) -> Composed:
    text = transformers.Phi3Config(**TEXT, tie_word_embeddings=False)
    vision = {**SIZES, "num_hidden_layers": 3, "patch_size": PATCH, "num_patches": _SIDE * _SIDE}
    config = {
        **text.to_dict(),
        **{"architectures": ["Phi4ForCausalLMV"], "model_type": "as_published", "vision_config": vision},
        **{"mm_projector_type": "mlp2x_gelu", "mm_hidden_size": SIZES["hidden_size"], "mm_vision_select_layer": -2},
        **{"min_num_patches": 16, "max_num_patches": 48, "image_token_id": token("<|image_pad|>")},
    }

    def make() -> Composed:
        return Composed(transformers.Phi3ForCausalLM(text), _BeforeLast(vision), token("<|image_pad|>"))

    def named(name: str) -> str:
        return f"model.{name.replace('tower.', 'vision_tower.vision_tower.vision_model.', 1)}"

    model: Composed = randomised("phi4_siglip", make)
    model.save(folder, config, "", named)
    return model


def _shaped(random: torch.Generator, size: int) -> Picture:
    rows, columns = ((2, 3), (4, 2))[size]
    pixels = torch.zeros(1, 8, 3 * PATCH * PATCH)
    pixels[:, : rows * columns] = torch.randn(1, rows * columns, 3 * PATCH * PATCH, generator=random)
    tensors = {"pixel_values": pixels, "spatial_shapes": torch.tensor([[rows, columns]])}
    return Picture(tensors, [token("<|image_pad|>")] * (rows * columns))


def _row_by_row(random: torch.Generator, size: int) -> Picture:
    rows, columns = ((4, 6), (6, 4))[size]
    pixels = torch.randn(rows * columns, 3 * PATCH * PATCH, generator=random)
    tensors = {"pixel_values": pixels, "image_grid_thw": torch.tensor([[1, rows, columns]])}
    return Picture(tensors, [token("<|image_pad|>")] * (rows * columns // 4), (1, rows // 2, columns // 2))


_KIND: Final = Kind(_row_by_row, token("<|image_pad|>"), cat())
IN_SHAPES: Final[Mapping[str, Published]] = {
    "isaac": Published("isaac", isaac, _KIND),
    "isaac_flat": Published("isaac", partial(isaac, flat=True), _KIND),
    "phi4_siglip": Published("phi4_siglip", phi4_siglip, Kind(_shaped, token("<|image_pad|>"), cat())),
}
