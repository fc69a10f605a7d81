"""Frames of one sentence on their way to samples: they are decoded while the next ones are made."""

from typing import Any, Protocol

import torch

from ..backend import Part, Stop, Stopped
from ..codec_weights import pcm_of


class FrameDecoder(Protocol):
    """Decodes the frames of one sentence. All that it returns, joined, is what it decodes at once."""

    def push(self, frames: Any) -> Any:
        """Take some frames, [1, frames, …], and return the samples that no later frame changes: [samples]."""

    def finish(self) -> Any:
        """The samples that waited for later frames."""


class FrameParts:
    """Sends the samples of a sentence in parts. A part begins when a frame follows those of the one before."""

    def __init__(self, decoder: FrameDecoder, first: int, later: int, stop: Stop, part: Part, fade: int = 0) -> None:
        """``first`` and ``later``: frames of the first part and of others; ``fade``: samples at the beginning that
        grow from silence."""
        self._decoder = decoder
        self._wanted, self._later = first, later
        self._stop = stop
        self._part = part
        self._fade_in = torch.linspace(0, 1, fade)
        self._frames: list[Any] = []

    def take(self, frame: Any) -> None:
        """Take one frame, [1, …]. Raises :class:`Stopped`."""
        if self._stop.is_set:
            raise Stopped
        self._frames.append(frame)
        if len(self._frames) > self._wanted:  # one is left for :meth:`rest`
            if pcm := self._pcm(self._decoded(self._wanted)):
                self._part(pcm)
            self._wanted = self._later

    def rest(self) -> bytes:
        """The samples that were not sent."""
        waves = [self._decoded(len(self._frames))] if self._frames else []
        return self._pcm(torch.cat([*waves, self._decoder.finish()]))

    def _decoded(self, frames: int) -> Any:
        taken, self._frames = self._frames[:frames], self._frames[frames:]
        return self._decoder.push(torch.stack(taken, dim=1))

    def _pcm(self, wave: Any) -> bytes:
        faded = min(len(self._fade_in), len(wave))
        wave[:faded] *= self._fade_in[:faded]
        self._fade_in = self._fade_in[faded:]
        return pcm_of(wave)
