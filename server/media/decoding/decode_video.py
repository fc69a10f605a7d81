"""Decodes videos of clients with PyAV. Pure functions, for a killable child.

A file's stated length and number of frames are not trusted: packets are counted first, which costs little. Then the
chosen frames are decoded, each from the last key frame before it.
"""

import io
import math
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from ...audio.containers import allowing, demuxer_of, opened
from ..refusal import Refusal
from .decoded import DecodedLimits, check_video, too_much

if TYPE_CHECKING:
    import av
    import numpy as np
    from av.container import InputContainer
    from numpy.typing import NDArray

DEMUXERS: Final = ("mov", "matroska", "webm", "avi", "gif")
"""Names in FFmpeg; ``mov`` includes mp4."""
DECODERS: Final = ("h264", "hevc", "vp8", "libvpx", "vp9", "libvpx-vp9", "libdav1d", "av1", "mpeg4", "mjpeg", "gif")
_KNOWN: Final = "mp4, webm, mkv, avi or gif"
_OPTIONS: Final = allowing(DEMUXERS, DECODERS)
_LEAST_FPS: Final = 0.01
_MOST_FPS: Final = 1000.0
_BAD_PACKETS: Final = 100
"""Consecutive broken packets that are skipped."""


class VideoFacts(msgspec.Struct, frozen=True):
    """Facts about a video before it is decoded."""

    frames: int
    """Packets that hold some."""
    fps: float
    """By the times of its packets, or the file's statement if they have none."""
    width: int
    height: int

    @property
    def seconds(self) -> float:
        return self.frames / self.fps


class DecodedVideo(msgspec.Struct, frozen=True):
    frames: "NDArray[np.uint8]"
    """[frames, height, width, 3], upright."""
    indices: list[int]
    """Indices of these frames in the file."""
    facts: VideoFacts


class FrameTimeline(msgspec.Struct, frozen=True):
    """When frames are shown, in the stream's own unit."""

    times: list[int]
    """Times of all frames, in order, without duplicates."""
    keys: list[int]
    """Times at which decoding may begin."""

    def place(self, time: int | None) -> int | None:
        """Index of the frame shown at ``time``."""
        if time is None:
            return None
        place = bisect_left(self.times, time)
        return place if place < len(self.times) and self.times[place] == time else None

    def needed(self, wanted: Sequence[int]) -> dict[int, set[int]]:
        """Times of the frames at ``wanted`` places, by that of the key frame before each."""
        groups: dict[int, set[int]] = {}
        for place in wanted:
            time = self.times[place]
            groups.setdefault(self.keys[max(0, bisect_right(self.keys, time) - 1)], set()).add(time)
        return groups


Choose = Callable[[VideoFacts], Sequence[int]]
"""Which frames a model is to see, by their places."""


def uniform(num_frames: int | None = None, fps: float | None = None) -> Choose:
    """Frames at equal distances from the first on, as in transformers: ``num_frames`` of the whole video, or ``fps`` of
    each second; all without either."""

    def choose(facts: VideoFacts) -> list[int]:
        wanted = num_frames if fps is None or num_frames is not None else int(facts.seconds * fps)
        count = facts.frames if wanted is None else min(max(wanted, 1), facts.frames)
        return [int(place * facts.frames / count) for place in range(count)]

    return choose


def decode_video(data: bytes, limits: DecodedLimits, choose: Choose) -> DecodedVideo:
    """The frames of ``data`` that ``choose`` selects, fewer if the video ends early.

    Frames that exceed ``limits`` together are scaled down, all alike. Raises :class:`..refusal.Refusal` for a file that
    is no video, broken, too long or too large.
    """
    import av

    until = time.process_time() + limits.cpu_seconds
    demuxer = _demuxer_of(data)
    try:
        with opened(data, demuxer, _OPTIONS, _video_of) as container:
            facts, timeline = _facts(container, limits, until)
        wanted = sorted({index for index in choose(facts) if 0 <= index < facts.frames}) or [0]
        with opened(data, demuxer, _OPTIONS, _video_of) as container:
            return _picked(container, facts, timeline, wanted, limits, until)
    except Refusal:
        raise
    except MemoryError:  # also if a broken file requests more than there is
        raise Refusal("the video needs too much memory to decode") from None
    except (av.FFmpegError, ValueError, ArithmeticError, LookupError, AttributeError, TypeError):
        # errors of FFmpeg and PyAV on a broken file
        raise _broken() from None


def rehearse() -> None:
    """Imports the modules for videos while files can still be opened, and silences FFmpeg's messages about files."""
    import av

    av.logging.set_level(None)
    out = io.BytesIO()
    with av.open(out, "w", format="matroska") as container:
        stream = container.add_stream("mjpeg", rate=1)
        stream.width, stream.height, stream.pix_fmt = 16, 16, "yuvj420p"
        for packet in (*stream.encode(av.VideoFrame(16, 16, "yuvj420p")), *stream.encode(None)):
            container.mux(packet)
    decode_video(out.getvalue(), DecodedLimits(), uniform())


def _demuxer_of(data: bytes) -> str:
    if data[:4] == b"RIFF" and data[8:12] == b"AVI ":
        return "avi"
    if data[:6] in (b"GIF87a", b"GIF89a"):
        return "gif"
    found = demuxer_of(data)
    if found not in DEMUXERS:
        raise _broken()
    return found


def _video_of(container: "InputContainer") -> "av.VideoStream":
    if not container.streams.video:
        raise Refusal("the file holds no video")
    stream = container.streams.video[0]
    if stream.codec_context.codec.name not in DECODERS:
        raise Refusal(f"the video's codec is not among those of {_KNOWN}")
    return stream


def _facts(
    container: "InputContainer", limits: DecodedLimits, until: float
) -> tuple[VideoFacts, "FrameTimeline | None"]:
    """Raises Refusal for a video beyond ``limits``, as soon as that shows. No timeline where packets say no times, or
    one twice."""
    stream = _video_of(container)
    context = stream.codec_context
    width, height = context.width, context.height
    times, keys = [], []
    frames = 0
    check_video(width, height, 0, 1, limits)
    for packet in _packets(container, stream):
        if not packet.size or packet.is_discard:
            continue
        frames += 1
        if packet.pts is not None:
            times.append(packet.pts)
            if packet.is_keyframe:
                keys.append(packet.pts)
        check_video(width, height, 0, frames, limits)
        _check_time(until)
    span = max(times) - min(times) if len(times) > 1 else 0
    unit = stream.time_base
    said = float(stream.average_rate or stream.guessed_rate or 0)
    fps = (len(times) - 1) / float(span * unit) if span and unit else said
    facts = VideoFacts(frames, min(max(fps, _LEAST_FPS), _MOST_FPS) if fps else 1.0, width, height)
    check_video(width, height, facts.seconds, frames, limits)
    told = len(set(times)) == frames
    return facts, FrameTimeline(sorted(times), sorted(keys)) if told and keys else None


def _packets(container: "InputContainer", stream: "av.VideoStream") -> Iterator["av.Packet[av.VideoStream]"]:
    """Packets up to the first damage."""
    import av

    packets = container.demux(stream)
    while True:
        try:
            packet = next(packets)
        except (StopIteration, av.FFmpegError):
            return
        yield packet


def _picked(
    container: "InputContainer",
    facts: VideoFacts,
    timeline: "FrameTimeline | None",
    wanted: Sequence[int],
    limits: DecodedLimits,
    until: float,
) -> DecodedVideo:
    import numpy as np

    stream = _video_of(container)
    stream.codec_context.thread_count = 1
    size = _size(facts, len(wanted), limits)
    found: Iterator[tuple[int, av.VideoFrame]]
    if timeline is None:
        found = enumerate(_frames(container, stream, limits, until))
    else:
        found = _sought(container, stream, timeline, wanted, limits, until)
    left = set(wanted)
    frames: list[NDArray[np.uint8]] = []
    indices = []
    for index, frame in found:
        if index in left:
            left.remove(index)
            frames.append(_upright(frame, size))
            indices.append(index)
        if not left:
            break
    if not frames:
        raise _broken()
    return DecodedVideo(np.stack(frames), indices, facts)


def _sought(
    container: "InputContainer",
    stream: "av.VideoStream",
    timeline: "FrameTimeline",
    wanted: Sequence[int],
    limits: DecodedLimits,
    until: float,
) -> Iterator[tuple[int, "av.VideoFrame"]]:
    """Frames, in order, with their indices; packets of groups without a ``wanted`` frame, and behind the last one, are
    skipped."""
    import av

    context = stream.codec_context
    needed = timeline.needed(wanted)
    left: set[int] = set()
    """Times of frames of the group at hand that have not come."""
    for packet in _packets(container, stream):
        _check_time(until)
        if packet.is_keyframe and packet.pts in needed:
            if not left:
                context.flush_buffers()
            left |= needed.pop(packet.pts)
        if not left:
            continue
        try:
            found = packet.decode()
        except (av.error.EOFError, av.error.BlockingIOError):
            return
        except av.error.InvalidDataError:
            continue
        for frame in found:
            # each frame may have another size than the head says
            check_video(frame.width, frame.height, 0, 1, limits)
            left.discard(frame.pts)
            place = timeline.place(frame.pts)
            if place is not None:
                yield place, frame


def _frames(
    container: "InputContainer", stream: "av.VideoStream", limits: DecodedLimits, until: float
) -> Iterator["av.VideoFrame"]:
    import av

    bad = 0
    count = 0
    for packet in _packets(container, stream):
        _check_time(until)
        try:
            found = packet.decode()
        except (av.error.EOFError, av.error.BlockingIOError):
            return
        except av.error.InvalidDataError:
            bad += 1
            if bad > _BAD_PACKETS:
                return
            continue
        for frame in found:
            bad = 0
            count += 1
            # each frame may have another size than the head says
            check_video(frame.width, frame.height, 0, count, limits)
            yield frame


def _size(facts: VideoFacts, count: int, limits: DecodedLimits) -> tuple[int, int]:
    """Width and height of ``count`` frames within the limit of pixels."""
    scale = min(1.0, math.sqrt(limits.video_pixels / (count * facts.width * facts.height)))
    if scale == 1.0:
        return facts.width, facts.height
    width, height = int(facts.width * scale), int(facts.height * scale)
    if width < 2 or height < 2:
        raise too_much("video", f"{count} frames to look at", f"{limits.video_pixels} pixels of them")
    return width, height


def _upright(frame: "av.VideoFrame", size: tuple[int, int]) -> "NDArray[np.uint8]":
    import numpy as np

    width, height = size
    shown = frame.to_ndarray(format="rgb24", width=width, height=height, interpolation="BICUBIC")
    turns = round(frame.rotation / 90) % 4
    return np.ascontiguousarray(np.rot90(shown, turns))


def _check_time(until: float) -> None:
    if time.process_time() > until:
        raise Refusal("the video takes too long to decode")


def _broken() -> Refusal:
    return Refusal(f"this is no video that can be read ({_KNOWN} are read)")
