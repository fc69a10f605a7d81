"""How large media may become once decoded: a small file can hold a picture of a billion pixels.

A decoder calls these with what the head of a file says, before it decodes anything, and again with
what it has decoded so far where the head need not be true (frames, samples).
"""

from dataclasses import dataclass

from .refusal import TOO_LARGE, Refusal


@dataclass(frozen=True)
class DecodedLimits:
    """The most that is decoded of one image, sound or video."""

    pixels: int = 64 * 2**20
    """Of one image or one frame."""
    audio_seconds: float = 3600.0
    video_seconds: float = 600.0
    frames: int = 18_000
    """Of one video, or of one animated image."""


def check_image(width: int, height: int, limits: DecodedLimits, frames: int = 1) -> None:
    """Raises :class:`.refusal.Refusal`, also for an image without pixels."""
    if width < 1 or height < 1 or frames < 1:
        raise Refusal("the image has no pixels")
    if width * height > limits.pixels:
        raise _too_much("image", f"{width} x {height} pixels", f"{limits.pixels} pixels")
    if frames > limits.frames:
        raise _too_much("image", f"{frames} frames", str(limits.frames))


def check_audio(seconds: float, limits: DecodedLimits) -> None:
    """Raises :class:`.refusal.Refusal`, also for a length that is no number of seconds."""
    _check_seconds("audio", seconds, limits.audio_seconds)


def check_video(width: int, height: int, seconds: float, frames: int, limits: DecodedLimits) -> None:
    """Raises :class:`.refusal.Refusal`, also for a length that is no number of seconds."""
    if width < 1 or height < 1 or frames < 1:
        raise Refusal("the video has no pixels")
    if width * height > limits.pixels:
        raise _too_much("video", f"{width} x {height} pixels", f"{limits.pixels} pixels")
    if frames > limits.frames:
        raise _too_much("video", f"{frames} frames", str(limits.frames))
    _check_seconds("video", seconds, limits.video_seconds)


def _check_seconds(what: str, seconds: float, limit: float) -> None:
    if not seconds >= 0:  # nor is it for what is not a number
        raise Refusal(f"the {what} has no length")
    if seconds > limit:
        raise _too_much(what, f"{seconds:.0f} seconds", f"{limit:g}")


def _too_much(what: str, has: str, most: str) -> Refusal:
    return Refusal(f"the {what} has {has}; this server decodes at most {most}", TOO_LARGE)
