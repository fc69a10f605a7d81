"""From one rate to another, as pcm comes in."""

from typing import Final

MIN_RATE: Final = 1_000
MAX_RATE: Final = 768_000


class Resampler:
    """Resampler with state: any cut into pieces gives the same samples. Owned by one task.

    Linear phase, by soxr. It delays up to 35 ms between 16 and 24 kHz, and up to 100 ms to and from 8 kHz, mostly for
    filling blocks. A second of audio takes a quarter of a millisecond, so some seconds at a time may be resampled on
    the event loop.
    """

    def __init__(self, source_rate: int, target_rate: int) -> None:
        """Rates in samples a second. Raises ``ValueError`` outside [:data:`MIN_RATE`, :data:`MAX_RATE`]."""
        for rate in (source_rate, target_rate):
            if not MIN_RATE <= rate <= MAX_RATE:
                raise ValueError(f"{rate} Hz is not between {MIN_RATE} and {MAX_RATE}")
        self.target_rate: Final = target_rate
        self._half = b""
        self._finished = False
        self._stream = None
        if source_rate != target_rate:
            import soxr  # late: see the package

            # not in integers, which it dithers: the same samples would not give the same
            self._stream = soxr.ResampleStream(source_rate, target_rate, 1, dtype="float32", quality="HQ")

    @property
    def delay(self) -> float:
        """Seconds of audio that have gone in and not come out yet."""
        return 0.0 if self._stream is None else self._stream.delay() / self.target_rate

    def push(self, pcm: bytes) -> bytes:
        """New samples at the target rate, none while there is too little input. Half a sample waits for its other
        half."""
        return self._feed(pcm, last=False)

    def finish(self, pcm: bytes = b"") -> bytes:
        """The rest, after ``pcm``. Half a sample is dropped. The resampler takes nothing more."""
        rest = self._feed(pcm, last=True)
        self._finished = True
        return rest

    def _feed(self, pcm: bytes, *, last: bool) -> bytes:
        if self._finished:
            raise ValueError("the resampler has finished")
        if self._half or len(pcm) % 2:
            pcm = self._half + pcm
            whole = len(pcm) & ~1
            pcm, self._half = pcm[:whole], pcm[whole:]
        if self._stream is None:
            return pcm
        if not pcm and not last:
            return b""
        import numpy as np

        samples = self._stream.resample_chunk(np.frombuffer(pcm, "<i2").astype(np.float32), last=last)
        return bytes(np.clip(np.rint(samples), -32768, 32767).astype("<i2").data)
