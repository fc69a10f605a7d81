"""Limits of decoded media: a small file can contain a picture of a billion pixels.

A decoder checks the header's figures before it decodes anything, and again what it has decoded so far where the header
need not be true (frames, samples).
"""

import msgspec

from ..refusal import TOO_LARGE, Refusal


class DecodedLimits(msgspec.Struct, frozen=True):
    """The most that is decoded of one image, sound, video or document."""

    pixels: int = 64 * 2**20
    """Pixels of one image or one frame."""
    edge: int = 1 << 16
    """Pixels of its longer side."""
    audio_seconds: float = 3600.0
    video_seconds: float = 600.0
    frames: int = 18_000
    """Frames of one video."""
    video_pixels: int = 160 * 2**20
    """Pixels of all used frames of a video; larger frames are scaled down."""
    cpu_seconds: float = 20.0
    """CPU time of the decoder, for one video or one document."""
    pages: int = 100
    """Pages of one document."""
    page_seconds: float = 1.7
    """CPU time of the reader: to open a document, and for each page."""
    page_edge: int = 1568
    """Pixels of the longer side of a page that is seen as a picture."""
    document_chars: int = 8 << 20
    """Characters of one document's text."""


def check_image(width: int, height: int, limits: DecodedLimits, what: str = "image") -> None:
    """Raises :class:`..refusal.Refusal`, also for an image without pixels."""
    if width < 1 or height < 1:
        raise Refusal(f"the {what} has no pixels")
    if width * height > limits.pixels:
        raise too_much(what, f"{width} x {height} pixels", f"{limits.pixels} pixels")
    if max(width, height) > limits.edge:
        raise too_much(what, f"{width} x {height} pixels", f"{limits.edge} in a row")


def check_video(width: int, height: int, seconds: float, frames: int, limits: DecodedLimits) -> None:
    """Raises :class:`..refusal.Refusal`, also for a length that is no number of seconds."""
    check_image(width, height, limits, "video")
    if frames < 1:
        raise Refusal("the video has no frames")
    if frames > limits.frames:
        raise too_much("video", f"{frames} frames", str(limits.frames))
    if not seconds >= 0:  # also for NaN
        raise Refusal("the video has no length")
    if seconds > limits.video_seconds:
        raise too_much("video", f"{seconds:.0f} seconds", f"{limits.video_seconds:g}")


def too_much(what: str, has: str, most: str) -> Refusal:
    return Refusal(f"the {what} has {has}; this server decodes at most {most}", TOO_LARGE)
