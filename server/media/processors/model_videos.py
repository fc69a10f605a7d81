"""Videos as a model's inputs, by its image processor, frame by frame. Runs in the child.

transformers' own video processors need torchvision. Besides choosing frames, they process each as a picture, and stack
patches of neighbouring frames for models that take two at a time.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray
from PIL import Image

from ..decoding.decode_video import Choose, DecodedVideo, VideoFacts
from .model_files import ModelFiles

_MOST_PIXELS: Final = 24 << 20
"""Pixels of all frames of a video together; frames are scaled down to this limit."""
_SQUARE: Final = 2
"""Patches on each side of a square in VideoLLaMA 3's videos."""
_STILL: Final = 0.1
"""Mean difference of normed values times 255 up to which a square of VideoLLaMA 3's videos has not changed."""
_SETTINGS: Final = "video_preprocessor_config.json"


class VideoInputs(msgspec.Struct, frozen=True):
    """The model's input for a video, and the data for its text."""

    tensors: Mapping[str, Any]
    figures: Mapping[str, Any]
    """For ``replace_video_token`` of transformers' processor."""
    grid: tuple[int, int, int] | None = None
    interval: float = 1.0
    """Distance of the positions of two frames."""
    as_pictures: bool = False
    """Whether the model has one encoder and one placeholder for pictures and videos."""


class _Stated(msgspec.Struct):
    """Facts about a video, with transformers' names."""

    fps: float
    frames_indices: list[int]
    duration: float

    @property
    def timestamps(self) -> list[float]:
        """Times of the chosen frames, in seconds."""
        return [index / self.fps for index in self.frames_indices]


def _stated(video: DecodedVideo) -> _Stated:
    return _Stated(video.facts.fps, list(video.indices), video.facts.seconds)


class VideoSettings(msgspec.Struct, frozen=True):
    """Number and size of a model's frames, from its files or its family."""

    num_frames: int | None = None
    """Frames of any video; None: by ``fps``, within the bounds."""
    fps: float = 2.0
    min_frames: int = 4
    max_frames: int = 768
    shortest_edge: int | None = None
    longest_edge: int | None = None
    rates: Sequence[tuple[float, float]] = ()
    """Frames a second by the length of a video: (seconds, rate) for videos up to that length. Replaces ``fps``."""
    embeddings: int = 0
    """Embeddings of each frame, for models with a choice."""
    most_fps: float = 0.0
    """Frames a second of a video that has more, with ``num_frames``; 0: any number."""
    from_start: bool = False
    """Whether frames begin equal parts of a video, and do not reach from its first frame to its last."""
    pooling: Sequence[int] = ()
    """Rows and columns of patches that become one embedding, for models with a choice."""
    frame_edge: int = 0
    """Pixels of a frame at most, for models with such a limit beside that of all frames (Hy4 VL)."""
    leaves_out_still: bool = True
    """Whether a model that may leave out what did not change does so."""

    @classmethod
    def of(cls, files: ModelFiles, own: "VideoSettings") -> "VideoSettings":
        """``own`` is the family's, where the model's files say nothing."""
        said = _read(files)
        given = said.get("size")
        size: Mapping[str, Any] = given if isinstance(given, dict) else {}
        frame = said.get("max_image_size")
        found = {
            **{name: said.get(name) for name in ("num_frames", "fps", "min_frames", "max_frames")},
            "shortest_edge": said.get("min_pixels") or size.get("shortest_edge"),
            "longest_edge": said.get("max_pixels") or size.get("longest_edge"),
            "rates": None,
            "most_fps": said.get("max_fps"),
            "from_start": None,
            "pooling": said.get("pooling_size"),
            "embeddings": said.get("max_soft_tokens"),
            "frame_edge": frame.get("longest_edge") if isinstance(frame, dict) else None,
            "leaves_out_still": said.get("use_token_compression"),
        }
        return cls(**{name: getattr(own, name) if value is None else value for name, value in found.items()})

    def within(self, size: Any, images: Any) -> "VideoSettings":
        """The same with the edges of a request's ``size``, never beyond these, in models that have such limits.
        ``images``: the image processor, whose limits hold where there are none here."""
        edges = ("shortest_edge", "longest_edge")
        shortest, longest = (getattr(self, edge) or getattr(images.size, edge, None) for edge in edges)
        if not size or longest is None:
            return self
        longest = min(size.get("longest_edge", longest), longest)
        return replace(
            self,
            longest_edge=longest,
            shortest_edge=None if shortest is None else min(size.get("shortest_edge", shortest), longest),
        )

    def choose(self, options: Mapping[str, object], step: int) -> Choose:
        """The number of frames that the request or the settings ask for; a multiple of ``step`` if possible."""
        wanted, fps = options.get("num_frames"), options.get("fps")

        def choose(facts: VideoFacts) -> list[int]:
            count = self._count(facts, wanted if isinstance(wanted, int) else None, fps)
            count = max(1, min(count, facts.frames))
            count = count // step * step or count
            if self.from_start:
                return [int(index) for index in np.arange(0, facts.frames, facts.frames / count)[:count]]
            return [int(index) for index in np.linspace(0, facts.frames - 1, count).round()]

        return choose

    def _count(self, facts: VideoFacts, wanted: int | None, fps: object) -> int:
        if wanted is None and fps is None:
            wanted = self.num_frames
        if wanted is not None and fps is None and 0 < self.most_fps < facts.fps:
            wanted = min(wanted, int(facts.seconds * self.most_fps))
        if wanted is not None:
            return min(wanted, self.max_frames)
        own = next((rate for seconds, rate in self.rates if facts.seconds <= seconds), self.fps)
        rate = float(fps) if isinstance(fps, int | float) else own
        return min(max(int(facts.seconds * rate), self.min_frames), self.max_frames)


def _read(files: ModelFiles) -> dict[str, Any]:
    of_parts = (("processor_config.json", "video_processor"), ("preprocessor_config.json", "video_sampling"))
    for found in (files.read(_SETTINGS), *(files.read(name).get(part) for name, part in of_parts)):
        if found and isinstance(found, dict):
            # SmolVLM's own names, in any of these files
            own = found.get("video_sampling") or found
            return {**found, **own, "size": own.get("video_size") or found.get("size")}
    return {}


def paired(
    images: Any,
    video: DecodedVideo,
    settings: VideoSettings,
    *,
    share: bool,
    beat: float = 0.0,
    counted: int = 1,
    merge: int = 0,
) -> VideoInputs:
    """For models that take two frames at a time. ``images`` is the image processor; with ``share``, limits of pixels
    apply to all frames together. ``beat``: positions a second, 0 for models with times as text. ``counted``: number of
    frames for which the image processor counts a picture. ``merge``: patches on each side of a square, 0: as in
    pictures."""
    count = len(video.frames)
    bounds = {"shortest_edge": settings.shortest_edge, "longest_edge": settings.longest_edge}
    parts = count if share else 1
    size = {edge: max(1, (pixels or getattr(images.size, edge)) * counted // parts) for edge, pixels in bounds.items()}
    size["longest_edge"] = min(size["longest_edge"], _MOST_PIXELS * counted // count)
    size["shortest_edge"] = min(size.values())
    merge = merge or int(images.merge_size)
    found = images(list(video.frames), return_tensors="np", size=size, merge_size=merge)
    _, rows, columns = (int(number) for number in found["image_grid_thw"][0])
    step = int(images.temporal_patch_size)
    pixels = _on_top(found["pixel_values"], count, rows * columns, step, int(images.patch_size))
    grid = [-(-count // step), rows, columns]
    sampled = video.facts.fps * count / video.facts.frames
    return VideoInputs(
        {"pixel_values_videos": pixels, "video_grid_thw": np.array([grid])},
        {"video_grid_thw": np.array([grid]), "video_metadata": [_stated(video)]},
        (grid[0], rows // merge, columns // merge),
        beat * step / sampled if beat else 1.0,
    )


def compressed(images: Any, video: DecodedVideo, settings: VideoSettings) -> VideoInputs:
    """VideoLLaMA 3: of each frame only the squares of patches that differ from the frame before, at least one."""
    whole = paired(images, video, settings, share=True, merge=_SQUARE)
    pixels = whole.tensors["pixel_values_videos"]
    squares = pixels.reshape(len(video.frames), -1, _SQUARE * _SQUARE * pixels.shape[-1])
    kept = np.ones(squares.shape[:2], dtype=bool)
    if settings.leaves_out_still:
        kept[1:] = np.abs(np.diff(squares, axis=0)).mean(axis=-1) * 255 > _STILL
        kept[~kept.any(axis=1), 0] = True
    tensors = {**whole.tensors, "video_merge_sizes": np.array([_SQUARE]), "video_compression_mask": kept.reshape(-1)}
    return VideoInputs(tensors, {"kept": kept.sum(axis=1).tolist(), "video_metadata": [_stated(video)]})


def lined(images: Any, video: DecodedVideo, settings: VideoSettings) -> VideoInputs:
    """Hy4 VL: each frame is a picture, of whose rows each has an embedding at its end."""
    count, height, width = video.frames.shape[:3]
    merge, side = int(images.merge_size), int(images.patch_size * images.merge_size)
    most = min(settings.longest_edge or _MOST_PIXELS, _MOST_PIXELS)
    rows, columns = lined_grid(height, width, count, side, most, settings.frame_edge)
    shape = (columns * side, rows * side)
    frames = [Image.fromarray(frame).resize(shape, Image.Resampling.BICUBIC) for frame in video.frames]
    found = images(frames, return_tensors="np", do_resize=False)
    patches = np.array([[count, rows * merge, columns * merge]])
    return VideoInputs(
        {"pixel_values_videos": np.asarray(found["pixel_values"], np.float32), "video_grid_thw": patches},
        {"video_grid_thw": patches},
        (count, rows, columns + 1),
    )


def lined_grid(height: int, width: int, frames: int, side: int, most: int, of_frame: int) -> tuple[int, int]:
    """Rows and columns of a frame's squares of ``side`` pixels: the most rows with which a number of columns keeps the
    frame's shape, and then the most columns (``HYV4VLVideoProcessor.smart_resize`` of transformers).

    No frame is enlarged or has more pixels than ``of_frame``; all have no more than ``most`` together, of which the end
    of each row counts as a square. Raises ValueError for a frame whose sides differ by more than 200 times.
    """
    if max(height, width) > 200 * min(height, width):
        raise ValueError(f"frames of {width} x {height} pixels have a side more than 200 times as long as the other")
    for rows in range(max(1, height // side), 0, -1):
        least = max(1, width * rows // height) if rows > 1 else 1
        before_next_row = max(1, -(-width * (rows + 1) // height) - 1)
        together = most // side**2 // (frames * rows) - 1
        columns = min(max(1, width // side), before_next_row, together, of_frame // side**2 // rows)
        if columns >= least:
            return rows, columns
    return 1, 1


def _on_top(pixels: Any, frames: int, patches: int, step: int, side: int) -> NDArray[np.float32]:
    """From [frames * patches, channels * step * side * side] with each frame repeated to fewer rows, in which ``step``
    neighbouring frames are stacked. The last one fills missing ones."""
    each = np.asarray(pixels, np.float32).reshape(frames, patches, -1, step, side * side)[:, :, :, 0]
    missing = -frames % step
    each = np.concatenate([each, *[each[-1:]] * missing])
    pairs = each.reshape(len(each) // step, step, *each.shape[1:]).transpose(0, 2, 3, 1, 4)
    return np.ascontiguousarray(pairs.reshape(len(pairs) * patches, -1))


def tiles(images: Any, video: DecodedVideo) -> VideoInputs:
    """InternVL: each frame is a picture of one tile."""
    found = np.asarray(images(list(video.frames), return_tensors="np", crop_to_patches=False)["pixel_values"])
    return VideoInputs({"pixel_values": found}, {"pixel_values_videos": [found]}, as_pictures=True)


def tubelets(images: Any, video: DecodedVideo) -> VideoInputs:
    """Nemotron 3 Nano Omni: frames of one size, of which the model makes one picture of each two."""
    pixels, count = images.frames(video.frames)
    return VideoInputs({"pixel_values_videos": pixels}, {"embeddings": count, "video_metadata": [_stated(video)]})


def squared(images: Any, video: DecodedVideo, settings: VideoSettings) -> VideoInputs:
    """SmolVLM: each frame is an untiled picture of any shape."""
    size = {"longest_edge": settings.longest_edge}
    found = images([list(video.frames)], return_tensors="np", do_image_splitting=False, size=size)
    pixels = np.asarray(found["pixel_values"])
    return VideoInputs({"pixel_values": pixels}, {"video_metadata": [_stated(video)]}, as_pictures=True)


def cropped(clip: Any, video: DecodedVideo) -> VideoInputs:
    """LLaVA-NeXT-Video and Video-LLaVA: of each frame the square in the middle; ``clip``: CLIP's image processor."""
    found = np.asarray(clip(list(video.frames), return_tensors="np")["pixel_values"])[None]
    return VideoInputs({"pixel_values_videos": found}, {"pixel_values_videos": found})


def pooled(images: Any, video: DecodedVideo) -> VideoInputs:
    """LLaVA-OneVision: each frame is an untiled picture."""
    tile = [[images.size.height, images.size.width]]
    # the first part of a picture is the whole of it, in the size of a tile
    frames = [
        images([[frame]], return_tensors="np", image_grid_pinpoints=tile)["pixel_values"][0][0]
        for frame in video.frames
    ]
    found = np.stack(frames)[None]
    return VideoInputs({"pixel_values_videos": found}, {"pixel_values_videos": found})


def budgeted(images: Any, video: DecodedVideo, settings: VideoSettings) -> VideoInputs:
    """Gemma 4: each frame is a picture with fewer embeddings."""
    found = images(list(video.frames), return_tensors="np", max_soft_tokens=settings.embeddings)
    places = np.asarray(found["image_position_ids"])
    there = (places[0] >= 0).all(axis=-1)  # all frames have one size
    tensors = {
        "pixel_values_videos": np.asarray(found["pixel_values"], np.float32)[:, there],
        "video_position_ids": places[:, there],
        "num_frames_per_video": np.array([len(places)]),
    }
    count = int(found["num_soft_tokens_per_image"][0])
    return VideoInputs(tensors, {"num_soft_tokens_per_video": [count], "video_metadata": [_stated(video)]})


def squares(images: Any, video: DecodedVideo, settings: VideoSettings) -> VideoInputs:
    """Molmo 2: each frame is one square."""
    tensors = images.frames(video.frames, *settings.pooling)
    return VideoInputs(tensors, {"video_grids": tensors["video_grids"], "video_metadata": [_stated(video)]})


def thumbs(images: Any, video: DecodedVideo) -> VideoInputs:
    """Perception LM: each frame is a picture of one tile."""
    found = images(list(video.frames), return_tensors="np", vision_input_type="vanilla")["pixel_values"]
    frames = np.asarray(found).swapaxes(0, 1)
    return VideoInputs({"pixel_values": frames}, {"pixel_values_videos": frames}, as_pictures=True)
