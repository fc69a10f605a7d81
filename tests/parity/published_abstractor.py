"""A tiny random model whose pictures are joined by convolutions, which transformers does not have: Kanana V."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
import transformers as untyped_transformers
from torch.nn import functional
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VisionTransformerPretrainedModel

from stentor.tests.parity.composed import Composed, Published
from stentor.tests.parity.pictures import Kind, Picture, cat, qwen_picture
from stentor.tests.support.vision_models import PATCH, TEXT, randomised, token

transformers: Any = untyped_transformers
"""Its configs take more than their signatures say."""

WIDTH, HIDDEN, SIDE = 24, 64, 5


def _convolution(inputs: int, outputs: int, side: int = 1) -> torch.nn.ModuleDict:
    groups = outputs if side > 1 else 1
    conv = torch.nn.Conv2d(inputs, outputs, side, padding=side // 2, groups=groups, bias=False)
    return torch.nn.ModuleDict({"conv": conv, "bn": torch.nn.LayerNorm(outputs)})


def _normed(layer: Any, x: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = layer["bn"](layer["conv"](x).movedim(1, 3)).movedim(3, 1)
    return found


class _Bottleneck(torch.nn.Module):
    """RegNet's, with a norm of channels in place of one over the batch."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = _convolution(inputs, outputs), _convolution(outputs, outputs, 3)
        self.conv3 = _convolution(outputs, outputs)
        few = round(inputs * 0.25)
        parts = {"fc1": torch.nn.Conv2d(outputs, few, 1), "fc2": torch.nn.Conv2d(few, outputs, 1)}
        self.se = torch.nn.ModuleDict(parts)
        self.downsample = _convolution(inputs, outputs) if inputs != outputs else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.silu(_normed(self.conv2, functional.silu(_normed(self.conv1, x))))
        y = y * self.se["fc2"](functional.silu(self.se["fc1"](y.mean((2, 3), keepdim=True)))).sigmoid()
        return functional.silu(_normed(self.conv3, y) + (x if self.downsample is None else _normed(self.downsample, x)))


class _Abstractor(torch.nn.Module):
    def __init__(self, told: Mapping[str, Any]) -> None:
        super().__init__()
        self.pos_emb = torch.nn.Parameter(torch.zeros(1, SIDE * SIDE, HIDDEN)) if told["pos_emb"] else None

        def stage(first: int) -> torch.nn.Sequential:
            sizes = [first, *[WIDTH] * told["depth"]]
            blocks = torch.nn.Sequential()
            for number, inputs in enumerate(sizes[:-1]):
                blocks.add_module(f"b{number + 1}", _Bottleneck(inputs, WIDTH))
            return blocks

        self.net = torch.nn.ModuleList([stage(HIDDEN), torch.nn.Identity(), stage(4 * WIDTH)])
        readout: list[torch.nn.Module] = [torch.nn.Linear(WIDTH, HIDDEN)]
        for _ in range(1, told["mlp_depth"]):
            readout += [torch.nn.SiLU(), torch.nn.Linear(HIDDEN, HIDDEN)]
        self.readout = torch.nn.Sequential(*readout)

    def forward(self, x: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        """x [patches, hidden], square by square, which the makers' code reads as rows."""
        image = x.view(rows, columns, -1).permute(2, 0, 1)[None]
        if self.pos_emb is not None:
            square = self.pos_emb.view(1, SIDE, SIDE, -1).permute(0, 3, 1, 2)
            image = image + functional.interpolate(square, (rows, columns), mode="bicubic", antialias=True)
        image = self.net[0](image)
        joined = [image[:, :, row::2, column::2] for row in range(2) for column in range(2)]
        image = self.net[2](torch.stack(joined, dim=2).flatten(1, 2))
        found: torch.Tensor = self.readout(image[0].permute(1, 2, 0).flatten(0, 1))
        return found


class _Seeing(torch.nn.Module):
    """The layers of transformers' Qwen2-VL, as many as are taken, and the convolutions."""

    def __init__(self, vision: Any, told: Mapping[str, Any]) -> None:
        super().__init__()
        self.vision_model = Qwen2VisionTransformerPretrainedModel._from_config(vision)
        self.vision_model.merger = torch.nn.Identity()
        self.abstractor, self.taken = _Abstractor(told), told["feature_layer_index"]

    def forward(self, pixel_values: torch.Tensor, image_grid_thw: torch.Tensor) -> torch.Tensor:
        kept, blocks = self.vision_model.blocks, self.vision_model.blocks
        self.vision_model.blocks = kept[: len(kept) + 1 + self.taken]
        seen = self.vision_model(pixel_values, grid_thw=image_grid_thw).last_hidden_state
        self.vision_model.blocks = blocks
        grids = image_grid_thw.tolist()
        pieces = seen.split([rows * columns for _, rows, columns in grids])
        return torch.cat([self.abstractor(piece, *grid[1:]) for piece, grid in zip(pieces, grids, strict=True)])


PLACE: Final = token("<|image_pad|>")


def kanana_v(folder: Path, *, early: bool = False) -> Composed:
    """``early``: the outputs of the last layer but one are taken, without positions."""
    text = transformers.LlamaConfig(**{**TEXT, "eos_token_id": PLACE - 1}, tie_word_embeddings=False)
    vision = {"depth": 3, "embed_dim": HIDDEN, "hidden_size": HIDDEN, "num_heads": 4, "mlp_ratio": 2}
    vision |= {"patch_size": PATCH, "spatial_merge_size": 2, "temporal_patch_size": 2}
    told = {"depth": 1 if early else 2, "encoder_hidden_size": HIDDEN, "hidden_size": WIDTH, "merge_size": 2}
    told |= {"mlp_depth": 3 if early else 2, "output_hidden_size": HIDDEN, "pos_emb": not early}
    told |= {"pos_emb_size": SIDE * SIDE, "feature_layer_index": -2 if early else -1, "num_eos_tokens": 0}
    config = {
        **{"architectures": ["KananaVForConditionalGeneration"], "model_type": "kanana-1.5-v"},
        "text_config": {**text.to_dict(), "model_type": "kanana-1.5-3b-instruct"},
        "vision_config": {**vision, "in_chans": 3, "model_type": "kanana-1.5-v-visual-encoder"},
        "projector_config": {**told, "projector_type": "dynamic-c-abs", "prenorm": False},
    }
    tower = transformers.Qwen2VLConfig(vision_config=vision).vision_config

    def make() -> Composed:
        return Composed(transformers.LlamaForCausalLM(text), _Seeing(tower, told), PLACE)

    model: Composed = randomised("kanana_v", make)
    model.save(folder, config, "language_model.", lambda name: name)
    return model


def _bare(random: torch.Generator, size: int) -> Picture:
    """A picture has no marks, and places as those of the text."""
    whole = qwen_picture(random, size)
    return Picture(whole.tensors, [PLACE] * (len(whole.tokens) - 2))


KANANAS: Final[Mapping[str, Published]] = {
    "kanana_v": Published("kanana-1.5-v", kanana_v, Kind(_bare, PLACE, cat())),
    "kanana_v_early": Published("kanana-1.5-v", partial(kanana_v, early=True), Kind(_bare, PLACE, cat())),
}
