"""Tiny random models that see patches of pictures of any shape, whose classes transformers does not have: dots.ocr,
Keye-VL, LLaVA-OneVision 2, OpenCUA, openPangu."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
import transformers as untyped_transformers
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VisionTransformerPretrainedModel

from stentor.tests.parity.composed import Composed, Published, within
from stentor.tests.parity.pictures import Kind, Picture, cat, qwen_picture
from stentor.tests.support.vision_models import PATCH, SIZES, TEXT, randomised, token

transformers: Any = untyped_transformers
"""Its configs take more than their signatures say."""


def squares(rows: int, columns: int) -> torch.Tensor:
    """int64 [patches, 2]: row and column of each patch, square of four by square of four."""
    at = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).view(rows, columns, 2)
    found: torch.Tensor = at.unflatten(1, (-1, 2)).unflatten(0, (-1, 2)).transpose(1, 2).flatten(0, 3)
    return found


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


class _Paddle(torch.nn.Module):
    """PaddleOCR-VL's tower of transformers', and products of squares of four patches (Keye-VL)."""

    def __init__(self, vision: Mapping[str, Any], joined: bool) -> None:
        """``joined``: the norm is that of squares, not of patches."""
        super().__init__()
        config = transformers.PaddleOCRVLConfig(vision_config=dict(vision)).vision_config
        self.visual, self.joined = transformers.PaddleOCRVisionModel(config), joined
        hidden = vision["hidden_size"]
        norm = torch.nn.LayerNorm(4 * hidden if joined else hidden)
        products = {"linear_1": torch.nn.Linear(4 * hidden, 4 * hidden), "linear_2": torch.nn.Linear(4 * hidden, 64)}
        self.mlp_AR = torch.nn.ModuleDict({"pre_norm": norm, **products})

    def forward(self, pixel_values: torch.Tensor, image_grid_thw: torch.Tensor) -> torch.Tensor:
        seen = self.visual(pixel_values=pixel_values[None], grid_thw=image_grid_thw).last_hidden_state
        pieces = seen.flatten(0, -2).split(image_grid_thw.prod(1).tolist())
        found = []
        for piece, (_, rows, columns) in zip(pieces, image_grid_thw.tolist(), strict=True):
            at = squares(rows, columns)
            x = piece[at[:, 0] * columns + at[:, 1]]
            norm, width = self.mlp_AR["pre_norm"], 4 * x.shape[1]
            x = norm(x.view(-1, width)) if self.joined else norm(x).view(-1, width)
            found.append(self.mlp_AR["linear_2"](torch.nn.functional.gelu(self.mlp_AR["linear_1"](x))))
        return torch.cat(found)


class Sections(torch.nn.Module):
    """Rotation of Qwen3's heads by frame, row and column, in sections."""

    def __init__(self, head_dim: int, sections: list[int], theta: float = 10_000.0) -> None:
        super().__init__()
        self.frequencies = theta ** (-torch.arange(0, head_dim, 2) / head_dim)
        self.axes = torch.repeat_interleave(torch.arange(3), torch.tensor(sections))
        self.places = torch.zeros(3, 1)

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = self.places[self.axes].T * self.frequencies
        both = torch.cat((angles, angles), dim=1)[None]
        return both.cos(), both.sin()


class InGrids(Composed):
    """Tokens of pictures have places by row and column, behind which the text follows the longer side."""

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, use_cache: bool, **media: Any) -> Any:
        grids = iter(media["image_grid_thw"].tolist() if media else ())
        places: list[tuple[int, int, int]] = []
        next_place, tokens = 0, input_ids[0].tolist()
        while len(places) < len(tokens):
            if tokens[len(places)] != self.placeholder:
                places.append((next_place,) * 3)
                next_place += 1
                continue
            _, rows, columns = (side // 2 for side in next(grids))
            inside = [(0, row, column) for row in range(rows) for column in range(columns)]
            places += [(next_place, next_place + row, next_place + column) for _, row, column in inside]
            next_place += max(rows, columns)
        self.text.model.rotary_emb.places = torch.tensor(places).T.float()
        return super().forward(input_ids, attention_mask, use_cache, **media)


_SECTIONS: Final = [2, 3, 3]


def keye(folder: Path, *, newer: bool = False) -> Composed:
    text = transformers.Qwen3Config(**TEXT, head_dim=16, tie_word_embeddings=False)
    vision = {**SIZES, "image_size": 5 * PATCH, "patch_size": PATCH}
    config = {
        **{name: value for name, value in text.to_dict().items() if name != "rope_parameters"},
        **{"architectures": ["KeyeVL1_5ForConditionalGeneration" if newer else "KeyeForConditionalGeneration"]},
        **{"model_type": "as_published", "vision_config": {**vision, "spatial_merge_size": 2}},
        **{"image_token_id": token("<|image_pad|>"), "video_token_id": token("<|video_pad|>")},
        **{"rope_theta": 10_000.0, "rope_scaling": {"type": "default", "mrope_section": _SECTIONS}},
    }

    def make() -> Composed:
        decoder = transformers.Qwen3ForCausalLM(text)
        decoder.model.rotary_emb = Sections(16, _SECTIONS)
        return InGrids(decoder, _Paddle(vision, newer), token("<|image_pad|>"))

    model: Composed = randomised("keye", make)
    model.save(folder, config, "", lambda name: name)
    return model


class _TimedLayer(torch.nn.Module):
    """Neighbouring numbers of a head turn together, each by its own angle."""

    def __init__(self, hidden: int, inner: int, heads: int) -> None:
        super().__init__()
        self.layer_norm1, self.layer_norm2 = (torch.nn.LayerNorm(hidden, 1e-6) for _ in range(2))
        parts = {"qkv": torch.nn.Linear(hidden, 3 * hidden), "proj": torch.nn.Linear(hidden, hidden)}
        self.self_attn, self.heads = torch.nn.ModuleDict(parts), heads
        self.mlp = torch.nn.ModuleDict({"fc1": torch.nn.Linear(hidden, inner), "fc2": torch.nn.Linear(inner, hidden)})

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        """angles [patches, head_dim]"""
        q, k, v = self.self_attn["qkv"](self.layer_norm1(x)).unflatten(1, (3, self.heads, -1)).permute(1, 2, 0, 3)
        q, k = (each * angles.cos() + self._beside(each) * angles.sin() for each in (q, k))
        scores = q @ k.mT / q.shape[-1] ** 0.5
        x = x + self.self_attn["proj"]((scores.softmax(-1) @ v).transpose(0, 1).flatten(1))
        found: torch.Tensor = x + self.mlp["fc2"](torch.nn.functional.gelu(self.mlp["fc1"](self.layer_norm2(x))))
        return found

    @staticmethod
    def _beside(x: torch.Tensor) -> torch.Tensor:
        return torch.stack((-x[..., 1::2], x[..., 0::2]), dim=-1).flatten(-2)


class _Timed(torch.nn.Module):
    """The tower of LLaVA-OneVision 2, for pictures."""

    def __init__(self, vision: Mapping[str, Any]) -> None:
        super().__init__()
        hidden, self.head_dim = vision["hidden_size"], vision["hidden_size"] // vision["num_attention_heads"]
        self.embeddings = torch.nn.ModuleDict({"patch_embedding": torch.nn.Conv2d(3, hidden, PATCH, PATCH, bias=False)})
        self.layernorm_pre = torch.nn.LayerNorm(hidden, 1e-6)
        sizes = hidden, vision["intermediate_size"], vision["num_attention_heads"]
        layers = torch.nn.ModuleList([_TimedLayer(*sizes) for _ in range(vision["num_hidden_layers"])])
        self.encoder = torch.nn.ModuleDict({"layers": layers})
        products = torch.nn.Linear(4 * hidden, 4 * hidden), torch.nn.GELU(), torch.nn.Linear(4 * hidden, 64)
        parts = {"ln_q": torch.nn.LayerNorm(hidden, 1e-6), "mlp": torch.nn.Sequential(*products)}
        self.merger = torch.nn.ModuleDict(parts)

    def forward(self, pixel_values: torch.Tensor, image_grid_thw: torch.Tensor) -> torch.Tensor:
        pieces = pixel_values.split(image_grid_thw.prod(1).tolist())
        return torch.cat([self._picture(*each) for each in zip(pieces, image_grid_thw.tolist(), strict=True)])

    def _picture(self, values: torch.Tensor, grid: tuple[int, int, int]) -> torch.Tensor:
        x = self.embeddings["patch_embedding"](values.view(-1, 3, PATCH, PATCH)).flatten(1)
        x, at = self.layernorm_pre(x), squares(*grid[1:]).float()
        unit = self.head_dim // 32
        frequencies = 10_000.0 ** (-torch.arange(6 * unit) / (6 * unit))
        angles = torch.cat((torch.zeros(len(at), 4 * unit), *(at[:, each, None] * frequencies for each in (0, 1))), 1)
        layers: Any = self.encoder["layers"]
        for layer in layers:
            x = layer(x, torch.cat((angles, angles), 1))
        found: torch.Tensor = self.merger["mlp"](self.merger["ln_q"](x).view(-1, 4 * x.shape[1]))
        return found


def llava_onevision2(folder: Path) -> Composed:
    text = transformers.Qwen3Config(**TEXT, head_dim=16, tie_word_embeddings=False)
    vision = {**SIZES, "num_attention_heads": 2, "patch_size": PATCH, "spatial_merge_size": 2, "hidden_act": "gelu"}
    config = {
        **{"architectures": ["LlavaOnevision2ForConditionalGeneration"], "model_type": "llava_onevision2"},
        **{"text_config": text.to_dict(), "vision_config": {**vision, "frame_windows_size": 4}},
        **{"image_token_id": token("<|image_pad|>"), "video_token_id": token("<|video_pad|>")},
    }

    def make() -> Composed:
        return Composed(transformers.Qwen3ForCausalLM(text), _Timed(vision), token("<|image_pad|>"))

    model: Composed = randomised("llava_onevision2", make)
    model.save(folder, config, within("language_model"), lambda name: f"model.visual.{name}")
    return model


def _row_by_row(random: torch.Generator, size: int) -> Picture:
    whole = qwen_picture(random, size)
    pixels = torch.randn(int(whole.tensors["image_grid_thw"].prod()), 3, PATCH, PATCH, generator=random)
    return Picture({**whole.tensors, "pixel_values": pixels}, whole.tokens, whole.grid)


class _Windowed(torch.nn.Module):
    """The tower of transformers' Qwen2.5-VL (OpenCUA)."""

    def __init__(self, vision: Any) -> None:
        super().__init__()
        self.vision_tower = Qwen2_5_VisionTransformerPretrainedModel._from_config(vision)

    def forward(self, pixel_values: torch.Tensor, image_grid_thw: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.vision_tower(pixel_values, grid_thw=image_grid_thw).pooler_output
        return found


def opencua(folder: Path) -> Composed:
    """Tokens of pictures have places as those of the text."""
    text = transformers.Qwen2Config(**TEXT, tie_word_embeddings=False)
    vision = {"depth": 2, "hidden_size": 64, "out_hidden_size": 64, "intermediate_size": 96, "num_heads": 4}
    vision |= {"patch_size": PATCH, "window_size": 4 * PATCH}
    tower = transformers.Qwen2_5_VLConfig(vision_config={**vision, "fullatt_block_indexes": [1]}).vision_config
    config = {
        **{"architectures": ["OpenCUAForConditionalGeneration"], "model_type": "opencua"},
        **{"text_config": text.to_dict(), "vision_config": {**vision, "fullatt_block_indexes": [1]}},
        **{"media_placeholder_token_id": token("<|image_pad|>"), "tie_word_embeddings": False},
    }

    def make() -> Composed:
        return Composed(transformers.Qwen2ForCausalLM(text), _Windowed(tower), token("<|image_pad|>"))

    model: Composed = randomised("opencua", make)
    model.save(folder, config, "language_model.", lambda name: name)
    return model


class _Plain(torch.nn.Module):
    """A network without gates."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.up_proj, self.down_proj = torch.nn.Linear(hidden, inner), torch.nn.Linear(inner, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.down_proj(torch.nn.functional.gelu(self.up_proj(x)))
        return found


class _Mergers(torch.nn.Module):
    """A projector for each of several layers' outputs, the last layer's first. Hooks bring those of the others."""

    def __init__(self, hidden: int, outputs: int, depth: int, others: list[int]) -> None:
        super().__init__()
        self.final_layernorm = torch.nn.RMSNorm(hidden, 1e-6)
        self.others, self.seen = sorted(others, reverse=True), [torch.empty(0)] * depth

        def one() -> torch.nn.ModuleDict:
            products = torch.nn.Linear(4 * hidden, 4 * hidden), torch.nn.GELU(), torch.nn.Linear(4 * hidden, outputs)
            parts = {"ln_q": torch.nn.RMSNorm(hidden, 1e-6), "mlp": torch.nn.Sequential(*products)}
            return torch.nn.ModuleDict(parts)

        self.merger = torch.nn.ModuleList([one() for _ in range(1 + len(others))])

    def keep(self, layer: int) -> Any:
        def hook(_: Any, __: Any, made: torch.Tensor) -> None:
            self.seen[layer] = made

        return hook

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = torch.zeros(len(x) // 4, self.merger[0]["mlp"][2].out_features)  # type: ignore[index]
        for merger, each in zip(self.merger, [x, *(self.seen[layer] for layer in self.others)], strict=True):
            parts: Any = merger
            normed = parts["ln_q"](self.final_layernorm(each))
            found = found + parts["mlp"](normed.view(-1, 4 * normed.shape[1]))
        return found


class _Pangu(torch.nn.Module):
    """The tower of transformers' Qwen2.5-VL with other networks, and projectors of several layers."""

    def __init__(self, vision: Any, hidden: int, others: list[int]) -> None:
        super().__init__()
        self.visual = Qwen2_5_VisionTransformerPretrainedModel._from_config(vision)
        mergers = _Mergers(vision.hidden_size, vision.out_hidden_size, vision.depth, others)
        for block in self.visual.blocks:
            block.mlp = _Plain(vision.hidden_size, vision.intermediate_size)
        for layer in others:
            self.visual.blocks[layer].register_forward_hook(mergers.keep(layer))
        self.visual.merger = mergers
        self.vision_projection = torch.nn.ModuleDict({"fc1": torch.nn.Linear(vision.out_hidden_size, hidden)})

    def forward(self, pixel_values: torch.Tensor, image_grid_thw: torch.Tensor) -> torch.Tensor:
        seen = self.visual(pixel_values, grid_thw=image_grid_thw).pooler_output
        found: torch.Tensor = self.vision_projection["fc1"](torch.nn.functional.silu(seen))
        return found


_SPREAD: Final = [0, 1, 2, 1, 2, 1, 2, 0]
"""By which of frame, row and column pairs turn, for sections of 2, 3 and 3, by hand as vLLM's code spreads them."""


def openpangu_vl(folder: Path, *, apart: bool = False) -> Composed:
    """``apart``: text fields have a table of their own, pairs are consecutive, and the last two layers are taken."""
    text = transformers.LlamaConfig(**TEXT, attention_bias=True, tie_word_embeddings=False)
    vision: dict[str, Any] = {
        "depth": 4,
        "hidden_size": 64,
        "out_hidden_size": 48,
        "intermediate_size": 96,
        "num_heads": 4,
    }
    vision |= {"patch_size": PATCH, "window_size": 4 * PATCH, "fullatt_block_indexes": [1]}
    tower = transformers.Qwen2_5_VLConfig(vision_config=vision).vision_config
    fields = {name: value for name, value in text.to_dict().items() if name not in ("model_type", "rope_parameters")}
    fields |= {"bias": True, "rope_theta": 10_000.0}
    fields["rope_scaling"] = {"type": "mrope", "mrope_section": _SECTIONS, "mrope_interleaved": not apart}
    told = {"mm_unit_vision_select_layer": [-2, -1]} if apart else {}
    config = {
        **({"text_config": fields} if apart else fields),
        **{"architectures": ["OpenPanguVLForConditionalGeneration"], "model_type": "openpangu_vl"},
        **{"image_token_id": token("<|image_pad|>"), "video_token_id": token("<|video_pad|>")},
        **{"vision_config": {**vision, "hidden_act": "gelu", **told}, "tie_word_embeddings": False},
    }

    def make() -> Composed:
        decoder = transformers.LlamaForCausalLM(text)
        decoder.model.rotary_emb = Sections(16, _SECTIONS)
        if not apart:
            decoder.model.rotary_emb.axes = torch.tensor(_SPREAD)
        return InGrids(decoder, _Pangu(tower, 64, [2 if apart else 1]), token("<|image_pad|>"))

    model: Composed = randomised("openpangu_vl", make)

    def stored(name: str) -> str:
        beside = name.replace("visual.merger.", "visual.").replace("vision_projection", "visual.vision_projection")
        return f"model.{beside}" if apart else beside

    model.save(folder, config, within("language_model") if apart else "", stored)
    return model


def _with_plain_places(random: torch.Generator, size: int) -> Picture:
    whole = qwen_picture(random, size)
    return Picture(whole.tensors, whole.tokens)


def _of_any_shape(random: torch.Generator, size: int) -> Picture:
    rows, columns = ((4, 6), (6, 4))[size]
    pixels = torch.randn(rows * columns, 3 * PATCH * PATCH, generator=random)
    tensors = {"pixel_values": pixels, "image_grid_thw": torch.tensor([[1, rows, columns]])}
    inside = [token("<|image_pad|>")] * (rows * columns // 4)
    return Picture(tensors, [token("<|vision_start|>"), *inside, token("<|vision_end|>")])


_ROWS: Final = Kind(_row_by_row, token("<|image_pad|>"), cat())
_SHAPED: Final = Kind(_of_any_shape, token("<|image_pad|>"), cat())
_IN_SQUARES: Final = Kind(qwen_picture, token("<|image_pad|>"), cat())
IN_GRIDS: Final[Mapping[str, Published]] = {
    "dots_ocr": Published("dots_ocr", dots_ocr, _SHAPED),
    "dots_ocr_biased": Published("dots_ocr", partial(dots_ocr, plain=False), _SHAPED),
    "keye": Published("keye", keye, _ROWS),
    "keye_vl1_5": Published("keye_vl1_5", partial(keye, newer=True), _ROWS),
    "llava_onevision2": Published("llava_onevision2", llava_onevision2, _SHAPED),
    "openpangu_vl": Published("openpangu_vl", openpangu_vl, _IN_SQUARES),
    "openpangu_vl_apart": Published("openpangu_vl", partial(openpangu_vl, apart=True), _IN_SQUARES),
    "opencua": Published("opencua", opencua, Kind(_with_plain_places, token("<|image_pad|>"), cat())),
}
