"""Tiny videos, whose frames tell their own number: frame *k* is grey of value 10 k."""

import io
from collections.abc import Iterable
from typing import Any

import av
import numpy as np


def video(
    count: int = 6,
    size: tuple[int, int] = (32, 16),
    *,
    form: str = "mp4",
    codec: str = "mpeg4",
    fps: int = 2,
    frames: Iterable[np.ndarray[Any, Any]] | None = None,
    pix_fmt: str = "yuv420p",
    sound: bool = False,
    group: int = 12,
) -> bytes:
    """``group``: frames from one key frame to the next."""
    out = io.BytesIO()
    width, height = size
    grey = (np.full((height, width, 3), 10 * number, np.uint8) for number in range(count))
    with av.open(out, "w", format=form) as container:
        stream: Any = container.add_stream(codec, rate=fps)
        stream.width, stream.height, stream.pix_fmt = width, height, pix_fmt
        stream.codec_context.gop_size = group
        heard: Any = container.add_stream("aac", rate=16_000) if sound else None
        for image in grey if frames is None else frames:
            for packet in stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode(None):
            container.mux(packet)
        if sound:
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 16_000), np.float32), format="fltp", layout="mono")
            frame.sample_rate = 16_000
            for packet in (*heard.encode(frame), *heard.encode(None)):
                container.mux(packet)
    return out.getvalue()
