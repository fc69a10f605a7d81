"""Tiny random models that see and whose text parts have states or tables of their own, or that take films beside
pictures, besides those of :mod:`.seeing`."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import torch
import transformers as untyped_transformers

from stentor.tests.parity.hybrids import QWEN4
from stentor.tests.parity.pictures import Kind, Picture, cat, film_in_frames, qwen_picture, square
from stentor.tests.parity.reading import along_patches, minicpm
from stentor.tests.support.vision_models import PATCH, SIDE, SIZES, TEXT, token

transformers: Any = untyped_transformers
"""Its configs take more than their signatures say."""

_PAD: Final = token("<|image_pad|>")
_FILM: Final = token("<|video_pad|>")
_PLAIN: Final = {"rope_type": "default", "rope_theta": 10000.0}
_QWEN: Final = {
    "image_token_id": _PAD,
    "video_token_id": _FILM,
    "vision_start_token_id": token("<|vision_start|>"),
    "vision_end_token_id": token("<|vision_end|>"),
}


def _qwen4() -> Any:
    """With n-grams of tokens among which are placeholders of media, and an index that chooses all tokens."""
    rope = {**_PLAIN, "mrope_section": [2, 1, 1], "mrope_interleaved": True, "partial_rotary_factor": 0.25}
    text = {**TEXT, "num_hidden_layers": 3, **QWEN4, "rope_parameters": rope, "indexer_budget": 1024}
    vision = {"depth": 2, "hidden_size": 64, "out_hidden_size": 64, "intermediate_size": 96, "num_heads": 4}
    return transformers.Qwen4ExpConfig(
        text_config=text, vision_config={**vision, "patch_size": PATCH, "num_position_embeddings": 36}, **_QWEN
    )


def _cosmos3_edge() -> Any:
    rope = {**_PLAIN, "mrope_section": [4, 2, 2], "mrope_interleaved": True}
    text = {**TEXT, "num_hidden_layers": 3, "head_dim": 16, "rope_parameters": rope}
    vision = {**SIZES, "patch_size": PATCH, "num_patches": 36}
    return transformers.Cosmos3EdgeConfig(text_config=text, vision_config=vision, projector_hidden_size=96, **_QWEN)


def _of_one_frame(random: torch.Generator, size: int) -> Picture:
    whole = qwen_picture(random, size)
    pixels = torch.randn(int(whole.tensors["image_grid_thw"].prod()), 3 * PATCH * PATCH, generator=random)
    return Picture({**whole.tensors, "pixel_values": pixels}, whole.tokens, whole.grid)


def _frames(random: torch.Generator, size: int) -> Picture:
    whole = film_in_frames(random, size)
    pixels = torch.randn(int(whole.tensors["video_grid_thw"].prod()), 3 * PATCH * PATCH, generator=random)
    return Picture({**whole.tensors, "pixel_values_videos": pixels}, whole.tokens, whole.grid, "video")


_LLAVA_TOKENS: Final = {"image_token_index": token("<image>"), "video_token_index": token("<video>")}


def _llava(kind: str, **more: object) -> Any:
    vision = {"model_type": "clip_vision_model", **SIZES, "num_hidden_layers": 3, "projection_dim": 32}
    return transformers.AutoConfig.for_model(
        kind,
        text_config={"model_type": "llama", **TEXT},
        vision_config={**vision, "image_size": SIDE, "patch_size": PATCH},
        **more,
    )


def _in_two_tiles(random: torch.Generator, size: int) -> Picture:
    """A whole picture, and two tiles of it side by side: with a line's end behind each row."""
    pixels = torch.randn(1, 3, 3, SIDE, SIDE, generator=random)
    sizes = torch.tensor([[SIDE, 2 * SIDE]])
    return Picture({"pixel_values": pixels, "image_sizes": sizes}, [token("<image>")] * (16 + 4 * 9))


def _squares(embeddings: int) -> Callable[[torch.Generator, int], Picture]:
    """Two frames, each of so many embeddings."""

    def draw(random: torch.Generator, size: int) -> Picture:
        pixels = torch.randn(1, 2, 3, SIDE, SIDE, generator=random)
        return Picture({"pixel_values_videos": pixels}, [token("<video>")] * (2 * embeddings), modality="video")

    return draw


_NEXT: Final = partial(
    _llava, "llava_next_video", image_grid_pinpoints=[[SIDE, 2 * SIDE], [2 * SIDE, SIDE]], **_LLAVA_TOKENS
)
_TWO_TOWERS: Final = partial(_llava, "video_llava", **_LLAVA_TOKENS)


def _blip2() -> Any:
    text = {"model_type": "opt", **TEXT, "ffn_dim": 96, "word_embed_proj_dim": 64}
    qformer = {"vocab_size": 8, **SIZES, "cross_attention_frequency": 2}
    return transformers.Blip2Config(
        text_config=text,
        vision_config={**SIZES, "image_size": SIDE, "patch_size": PATCH},
        qformer_config=qformer,
        num_query_tokens=5,
        image_token_index=token("<image>"),
    )


def answer_without_pictures(model: Any) -> None:
    """Have a BLIP-2 take a prompt without a picture, as its decoder does; transformers' class demands one."""
    forward = model.forward

    def either(input_ids: torch.Tensor, pixel_values: torch.Tensor | None = None, **given: Any) -> Any:
        if pixel_values is None:
            return model.language_model(input_ids=input_ids, **given)
        return forward(pixel_values=pixel_values, input_ids=input_ids, **given)

    model.forward = either


def _fuyu() -> Any:
    text = {"model_type": "persimmon", **TEXT, "num_hidden_layers": 3}
    return transformers.FuyuConfig(text_config=text, patch_size=PATCH, image_token_id=token("<image>"))


def _squares_of_pixels(random: torch.Generator, size: int) -> Picture:
    """Rows of squares, each of which a token ends."""
    rows, columns = ((2, 3), (4, 2), (1, 5), (3, 3))[size]
    pixels = torch.randn(rows * columns, 3 * PATCH * PATCH, generator=random)
    return Picture({"pixel_values": pixels}, [*[token("<image>")] * columns, token("[IMG_BREAK]")] * rows)


_ON_CANVAS: Final = {
    **{"image_start_id": token("<|vision_start|>"), "image_end_id": token("<|vision_end|>")},
    **{"slice_start_id": 60, "slice_end_id": 61, "newline_id": 10},
}


def _on_one_canvas(random: torch.Generator, size: int) -> Picture:
    """A picture, and for the second size three rows of two slices of it."""
    grids = [(8, 12), *[(8, 16)] * 6 * size]
    pixels = torch.randn(1, 3, PATCH, PATCH * sum(rows * columns for rows, columns in grids), generator=random)
    pad, begin, end = (token(f"<|{name}|>") for name in ("image_pad", "vision_start", "vision_end"))
    tokens = [begin, *[pad] * 6, end]
    for number in range(6 * size):
        tokens += [*([10] if number and number % 2 == 0 else []), 60, *[pad] * 8, 61]
    tensors = {"pixel_values": pixels, "target_sizes": torch.tensor(grids, dtype=torch.int32)}
    return Picture(tensors, tokens, (4 if size else 1, 2, 3))


LOOKING: Final[Mapping[str, tuple[Callable[[], Any], Kind]]] = {
    "blip2": (_blip2, Kind(square("<image>", 5), token("<image>"), cat())),
    "fuyu": (_fuyu, Kind(_squares_of_pixels, token("<image>"), cat())),
    "llava_next_video": (_NEXT, Kind(_in_two_tiles, token("<image>"), cat())),
    "llava_next_video_film": (_NEXT, Kind(_squares(4), token("<video>"), cat())),
    "video_llava": (_TWO_TOWERS, Kind(square("<image>", 16), token("<image>"), cat())),
    "video_llava_film": (_TWO_TOWERS, Kind(_squares(17), token("<video>"), cat())),
    "vipllava": (
        partial(_llava, "vipllava", vision_feature_layer=[-2, -1, 1], image_token_index=token("<image>")),
        Kind(square("<image>", 16), token("<image>"), cat()),
    ),
    "minicpmv4_7": (partial(minicpm, "MiniCPMV4_7", **_ON_CANVAS), Kind(_on_one_canvas, _PAD, along_patches)),
    "qwen4": (_qwen4, Kind(qwen_picture, _PAD, cat())),
    "cosmos3_edge": (_cosmos3_edge, Kind(_of_one_frame, _PAD, cat())),
    "cosmos3_edge_film": (_cosmos3_edge, Kind(_frames, _FILM, cat())),
    "qwen4_film": (_qwen4, Kind(film_in_frames, _FILM, cat())),
}
"""By name: a configuration, and what it takes."""
