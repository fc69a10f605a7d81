"""Tiny random models that see with transformers' modules: Muse Glimmer and Muse Spark."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import torch
import transformers as untyped_transformers

from stentor.tests.parity.pictures import Kind, Picture, cat
from stentor.tests.parity.recent import SPARK, SPARK_SOUNDS
from stentor.tests.support.vision_models import PATCH, TEXT, token

transformers: Any = untyped_transformers
"""Its configs take more than their signatures say."""
_IMAGE: Final = token("<image>")


def _muse(kind: str, text: Mapping[str, Any], **more: Any) -> Any:
    vision = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    vision |= {"patch_size": PATCH, "pos_emb_height": 4, "pos_emb_width": 4}
    return getattr(transformers, kind)(
        text_config={**TEXT, "num_hidden_layers": 4, "head_dim": 16, "sliding_window": 24, **text},
        vision_config=vision,
        out_hidden_size=128,
        projector_hidden_size=48,
        image_token_id=_IMAGE,
        video_token_id=token("<video>"),
        **more,
    )


def _picture(random: torch.Generator, size: int) -> Picture:
    rows, columns = ((4, 6), (2, 4))[size]
    pixels = torch.randn(rows * columns, 2 * 3 * PATCH * PATCH, generator=random)
    tensors = {"pixel_values": pixels, "image_grid_thw": torch.tensor([[1, rows, columns]])}
    return Picture(tensors, [token("<img>"), *[_IMAGE] * (rows * columns // 4), token("</img>")])


_SPARK: Final = {**SPARK, "moe_intermediate_size": 32, "num_experts_per_tok": 2}
MUSES: Final[Mapping[str, tuple[Callable[[], Any], Kind]]] = {
    "muse_glimmer": (partial(_muse, "MuseGlimmerConfig", {}), Kind(_picture, _IMAGE, cat())),
    "muse_spark": (
        partial(_muse, "MuseSparkConfig", _SPARK, audio_config=SPARK_SOUNDS, audio_token_id=5),
        Kind(_picture, _IMAGE, cat()),
    ),
}
