"""What each model takes of a video. Runs in the child."""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import transformers as untyped_transformers
from msgspec.structs import replace

from stentor.engine.model_config.hf import nemotron_omni

from ..decoding.decode_video import DecodedVideo
from .model_videos import (
    VideoInputs,
    VideoSettings,
    budgeted,
    compressed,
    cropped,
    lined,
    paired,
    pooled,
    squared,
    squares,
    thumbs,
    tiles,
    tubelets,
)

transformers: Any = untyped_transformers


class Videos(NamedTuple):
    """How a family processes videos."""

    make: Callable[[Any, DecodedVideo, VideoSettings, float], VideoInputs]
    settings: VideoSettings
    step: int = 1
    """Frames that are processed together."""
    arguments: Mapping[str, object] = {}
    """Arguments for the writer of their text."""


_GLM: Final = VideoSettings(min_frames=2, max_frames=600, shortest_edge=112 * 112, longest_edge=28 * 28 * 2 * 30_000)
_VIDEO_LLAMA: Final = VideoSettings(fps=1.0, max_frames=180, shortest_edge=128 * 28 * 28, longest_edge=768 * 28 * 28)
_EDGE: Final = VideoSettings(shortest_edge=64 * 64, longest_edge=24 << 20)
_SILENT: Final = {"load_audio_from_video": False}
_MOLMO2: Final = VideoSettings(num_frames=64, min_frames=1, most_fps=2.0, from_start=True, pooling=(3, 3))
_SMOLVLM: Final = VideoSettings(fps=1.0, min_frames=1, max_frames=64, longest_edge=512)
_QWEN2: Final = VideoSettings(shortest_edge=128 * 28 * 28, longest_edge=768 * 28 * 28)
_QWEN3: Final = VideoSettings(shortest_edge=128 * 32 * 32, longest_edge=768 * 32 * 32)
_HY4: Final = VideoSettings(min_frames=2, max_frames=1024, longest_edge=32 << 20, frame_edge=1 << 20)
_GLM46: Final = replace(_GLM, max_frames=640, rates=((30.0, 6.0), (300.0, 2.0), (float("inf"), 1.0)))


def _clip_like(images: Any) -> Any:
    """CLIP's image processor with the sizes and norms of another."""
    names = ("size", "crop_size", "image_mean", "image_std", "rescale_factor")
    return transformers.CLIPImageProcessorPil(**{name: getattr(images, name) for name in names})


VIDEOS: Final[Mapping[str, Videos]] = {
    **dict.fromkeys(
        ("Gemma4Processor", "Gemma4UnifiedProcessor"),
        Videos(lambda i, v, s, _: budgeted(i, v, s), VideoSettings(num_frames=32, embeddings=70)),
    ),
    "Cosmos3EdgeProcessor": Videos(lambda i, v, s, _: paired(i, v, s, share=True), _EDGE),
    "Glm4vProcessor": Videos(lambda i, v, s, _: paired(i, v, s, share=True, counted=2), _GLM, 2),
    "Glm46VProcessor": Videos(lambda i, v, s, _: paired(i, v, s, share=True, counted=2), _GLM46, 2),
    "HYV4VLProcessor": Videos(lambda i, v, s, _: lined(i, v, s), _HY4),
    "Qwen2VLProcessor": Videos(lambda i, v, s, _: paired(i, v, s, share=False), _QWEN2, 2),
    "Qwen2_5_VLProcessor": Videos(lambda i, v, s, beat: paired(i, v, s, share=False, beat=beat), _QWEN2, 2),
    "Qwen3VLProcessor": Videos(lambda i, v, s, _: paired(i, v, s, share=True), _QWEN3, 2),
    "Qwen2_5OmniProcessor": Videos(lambda i, v, s, beat: paired(i, v, s, share=False, beat=beat), _QWEN2, 2, _SILENT),
    "Qwen3OmniMoeProcessor": Videos(lambda i, v, s, beat: paired(i, v, s, share=False, beat=beat), _QWEN3, 2, _SILENT),
    "InternVLProcessor": Videos(lambda i, v, _s, _b: tiles(i, v), VideoSettings(num_frames=8)),
    "VideoLlama3Processor": Videos(lambda i, v, s, _: compressed(i, v, s), _VIDEO_LLAMA),
    "Ovis2_5Processor": Videos(lambda i, v, s, _: paired(i, v, s, share=False), VideoSettings(num_frames=8)),
    **dict.fromkeys(
        (f"{each}Processor" for each in nemotron_omni.ARCHITECTURES),
        Videos(lambda i, v, _s, _b: tubelets(i, v), VideoSettings(fps=2.0, min_frames=2, max_frames=128), 2),
    ),
    "Molmo2Processor": Videos(lambda i, v, s, _: squares(i, v, s), _MOLMO2),
    "PerceptionLMProcessor": Videos(lambda i, v, _s, _b: thumbs(i, v), VideoSettings(num_frames=32)),
    "SmolVLMProcessor": Videos(lambda i, v, s, _: squared(i, v, s), _SMOLVLM),
    **dict.fromkeys(
        ("LlavaNextVideoProcessor", "VideoLlavaProcessor"),
        Videos(lambda i, v, _s, _b: cropped(_clip_like(i), v), VideoSettings(num_frames=8)),
    ),
    "LlavaOnevisionProcessor": Videos(lambda i, v, _s, _b: pooled(i, v), VideoSettings(num_frames=32)),
}
"""By the name of the processor."""
