"""The process that decodes; see :mod:`.decode_process`."""

import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ..sandbox.child import Growth, Ready, bounded_child, receive, send
from .containers import DECODERS, DEMUXERS, KNOWN, allowing, demuxer_of, opened
from .decode_process import RATE, TOO_LONG, DecodedPart, DecodeJob, Refused
from .encode import wav_header
from .resample import MAX_RATE, MIN_RATE, Resampler

if TYPE_CHECKING:
    import av
    from av.container import InputContainer

Allow = Callable[[float], object]

MAX_MEMORY: Final = 1 << 30
"""Bytes of address space."""
FIRST_SECONDS: Final = 1.7
"""CPU time for finding the audio in a file, counting its length and decoding the first piece, enforced by the
kernel."""
PIECE_SECONDS: Final = 2.0
"""CPU time for each further piece."""
_COUNT_SECONDS: Final = 0.7
"""CPU time of the first piece after which counting stops: decoded audio is counted, too."""
_MISTAKEN: Final = 2
"""Factor by which an estimate from the first part of a file may exceed its true length."""
_PIECE_BYTES: Final = 30 * 2 * RATE
_BLOCK_BYTES: Final = 64 << 10
"""Bytes of decoded samples that are resampled at a time."""
_BAD_PACKETS: Final = 1000
"""Consecutive broken packets that are skipped."""
_OPTIONS: Final = allowing(DEMUXERS, DECODERS)


def main() -> int:
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"  # before numpy starts one for each core
    with bounded_child("stentor-decoder", MAX_MEMORY) as connection:
        import av

        av.logging.set_level(None)
        _rehearse()
        growth = Growth()
        # nothing more can be opened: the only number that is left is taken; 0 would forbid to wait for the socket
        resource.setrlimit(resource.RLIMIT_NOFILE, (1, 1))
        send(connection, Ready())
        while True:
            job = receive(connection, DecodeJob)
            answer = decode(job, lambda pcm: send(connection, DecodedPart(pcm)))
            del job
            _allow(0)
            send(connection, DecodedPart(answer.pcm, True, answer.why, answer.code, growth.too_much))
    return 0


def _rehearse() -> None:
    """Imports all that a job does, while files can still be opened."""
    silence = wav_header(44_100, 8) + bytes(8)
    decode(DecodeJob(silence, 1.0), lambda pcm: None)
    decode(DecodeJob(b"none", 1.0), lambda pcm: None)
    _allow(0)


def decode(job: DecodeJob, piece: Any, allow: Allow | None = None) -> DecodedPart:
    """The last answer; ``piece`` is called with pcm before it. Before each stretch of work ``allow`` gets its limit in
    seconds of this process's time; None lets the kernel enforce it."""
    import av

    allow = allow or _allow
    allow(FIRST_SECONDS)
    try:
        output = _Output(job.max_seconds, piece, allow)
        _decode(job, output)
        rest = output.finish()
    except Refused as refused:
        return DecodedPart(why=str(refused), code=refused.code)
    except MemoryError:
        return DecodedPart(why="it needs too much memory to decode")
    except (av.FFmpegError, ValueError, ArithmeticError, LookupError, AttributeError, TypeError):
        # errors of FFmpeg and PyAV on a broken file
        return DecodedPart(why=f"it is broken, or no {KNOWN}")
    return DecodedPart(rest) if output.seconds else DecodedPart(why="it holds no sound")


def _decode(job: DecodeJob, output: "_Output") -> None:
    demuxer = demuxer_of(job.data)
    until = time.process_time() + _COUNT_SECONDS
    with opened(job.data, demuxer, _OPTIONS, _audio_of) as container:
        _check_length(container, job.max_seconds, until)
    with opened(job.data, demuxer, _OPTIONS, _audio_of) as container:
        _decode_stream(container, output)


def _audio_of(container: "InputContainer") -> "av.AudioStream":
    if not container.streams.audio:
        raise Refused("it holds no sound")
    stream = container.streams.audio[0]
    context = stream.codec_context
    if context.codec.name not in DECODERS:
        raise Refused(f"its codec is not among those of {KNOWN}")
    return stream


def _check_length(container: "InputContainer", most: float, until: float) -> None:
    """Sums the durations of packets, which costs little: a small file may hold hours of silence.

    After ``until`` seconds of this process's time the rest is estimated from the file's own statement and the bytes
    read so far.
    """
    import av

    stream = _audio_of(container)
    ticks, unit = 0, stream.time_base
    if not unit:
        return
    longest = most / unit
    try:
        for at, packet in enumerate(container.demux(stream)):
            ticks += packet.duration or 0
            if ticks > longest:
                raise _too_long(most)
            if at % 1024 == 0 and time.process_time() > until:
                says = (stream.duration or 0, int((container.duration or 0) / 1e6 / unit))
                guess = ticks * container.size / max(packet.pos or 0, 1) / _MISTAKEN
                if max(*says, guess) > longest:
                    raise _too_long(most)
                return
    except av.FFmpegError:
        return  # audio before the damage is decoded


def _decode_stream(container: "InputContainer", output: "_Output") -> None:
    import av

    stream = _audio_of(container)
    stream.codec_context.thread_count = 1
    bad = 0
    packets = container.demux(stream)
    while True:
        try:
            packet = next(packets)
            frames = packet.decode()
        except StopIteration:
            return
        except (av.error.EOFError, av.error.BlockingIOError):
            return
        except av.error.InvalidDataError:
            bad += 1
            if bad > _BAD_PACKETS:
                return
            continue
        if frames:
            bad = 0
        for frame in frames:
            output.push(frame)


class _Output:
    """Turns decoded frames into pieces of pcm."""

    def __init__(self, most: float, piece: Any, allow: Allow) -> None:
        self._most = most
        self._piece = piece
        self._allow = allow
        self._source: object = None
        self._mixer: _Mixer | None = None
        self._resampler: Resampler | None = None
        self._block = bytearray()
        self._pcm = bytearray()
        self.seconds = 0.0
        """Decoded seconds."""

    def push(self, frame: "av.AudioFrame") -> None:
        if not frame.samples:
            return
        source = (frame.format.name, frame.layout.name, frame.sample_rate)
        if source != self._source:
            self._change(frame)
            self._source = source
        assert self._mixer is not None
        self.seconds += frame.samples / frame.sample_rate
        if self.seconds > self._most:
            raise _too_long(self._most)
        self._block += self._mixer.mix(frame)
        if len(self._block) >= _BLOCK_BYTES:
            self._resample()

    def _change(self, frame: "av.AudioFrame") -> None:
        """The audio continues in another format."""
        if not MIN_RATE <= frame.sample_rate <= MAX_RATE:
            found = f"it has {frame.sample_rate} samples a second"
            raise Refused(f"{found}; this server takes {MIN_RATE} to {MAX_RATE}")
        self._flush()
        self._mixer = _Mixer(frame)
        self._resampler = Resampler(frame.sample_rate, RATE)

    def _resample(self) -> None:
        assert self._resampler is not None
        self._pcm += self._resampler.push(bytes(self._block))
        self._block.clear()
        while len(self._pcm) >= _PIECE_BYTES:
            self._piece(bytes(self._pcm[:_PIECE_BYTES]))
            del self._pcm[:_PIECE_BYTES]
            self._allow(PIECE_SECONDS)

    def _flush(self) -> None:
        if self._resampler is not None:
            self._pcm += self._resampler.finish(bytes(self._block))
            self._block.clear()

    def finish(self) -> bytes:
        """The rest, at least one sample if there was any."""
        self._flush()
        return bytes(self._pcm)


class _Mixer:
    """Frames of one form as pcm of one channel, at their rate."""

    def __init__(self, frame: "av.AudioFrame") -> None:
        from av.audio.resampler import AudioResampler

        self._mono = AudioResampler(format="s16", layout="mono", rate=frame.sample_rate)
        self._floats: AudioResampler | None = None
        """For channels unknown to FFmpeg, and floats that are no numbers, which it makes the loudest: their mean."""

    def mix(self, frame: "av.AudioFrame") -> bytes:
        import av

        if self._floats is None and _has_nan(frame):
            self._floats = av.AudioResampler(format="flt", layout=frame.layout, rate=frame.sample_rate)
        if self._floats is None:
            try:
                return b"".join(bytes(mixed.planes[0])[: 2 * mixed.samples] for mixed in self._mono.resample(frame))
            except (av.FFmpegError, ValueError):
                # not planar: PyAV reads past the end of the list of planes if there are many
                self._floats = av.AudioResampler(format="flt", layout=frame.layout, rate=frame.sample_rate)
        import numpy as np

        mixed = []
        for piece in self._floats.resample(frame):
            channels = piece.layout.nb_channels
            floats = np.frombuffer(memoryview(piece.planes[0]), np.float32, piece.samples * channels)
            floats = floats.reshape(-1, channels)
            with np.errstate(all="ignore"):  # floats may be anything, infinite too
                loud = np.nan_to_num(np.rint(floats.mean(axis=1) * 32767))
            mixed.append(np.clip(loud, -32768, 32767).astype("<i2").tobytes())
        return b"".join(mixed)


def _has_nan(frame: "av.AudioFrame") -> bool:
    """Whether interleaved samples (of a wav file) contain NaN; those of a decompressor are planar and numbers."""
    if frame.format.name not in ("flt", "dbl"):
        return False
    import numpy as np

    samples = np.frombuffer(memoryview(frame.planes[0]), np.float32 if frame.format.name == "flt" else np.float64)
    return bool(np.isnan(samples[: frame.samples * frame.layout.nb_channels]).any())


def _too_long(most: float) -> Refused:
    return Refused(f"it is longer than the {most:g} seconds that this server decodes", TOO_LONG)


def _allow(seconds: float) -> None:
    """Limits this process to ``seconds`` of CPU time from now on; the kernel kills it beyond. 0: no limit."""
    signal.setitimer(signal.ITIMER_PROF, seconds)


if __name__ == "__main__":
    sys.exit(main())
