"""The state of a causal Fast Conformer between two pieces of streamed audio.

It is bounded: samples of the frames that have yet to come, the last inputs of convolutions, and the keys and values of
the chunks that the next one sees.
"""

from typing import Final

import msgspec
import torch

from ...layers.audio.log_mel import HOP, samples_of
from ...layers.audio.preemphasized_mel import HALF_WINDOW, MARGIN, PreemphasizedMel, emphasised
from ...model_config.speech.fast_conformer import FEWEST_SAMPLES, CausalSpec

_KEPT: Final = MARGIN + 1
"""Samples before the middle of the next frame that it needs: emphasis takes one more than the frame."""


class BlockState(msgspec.Struct):
    """Of one layer."""

    keys: torch.Tensor
    """[positions, heads, dim], at most ``most`` between two calls."""
    values: torch.Tensor
    inputs: torch.Tensor
    """[1, hidden, width - 1]: the last inputs of the convolution."""
    most: int

    def seen(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values behind those before them; mutates."""
        keys, values = torch.cat((self.keys, keys)), torch.cat((self.values, values))
        dropped = max(0, len(keys) - self.most)
        self.keys, self.values = keys[dropped:].clone(), values[dropped:].clone()
        return keys, values

    def convolved(self, inputs: torch.Tensor) -> torch.Tensor:
        """[1, hidden, positions] behind the inputs before them; mutates."""
        joined = torch.cat((self.inputs, inputs), dim=2)
        self.inputs = joined[:, :, joined.shape[2] - self.inputs.shape[2] :].clone()
        return joined


class ConformerStream(msgspec.Struct):
    """Of one stream."""

    causal: CausalSpec
    blocks: list[BlockState]
    samples: torch.Tensor
    """float32: samples that later frames need, beginning with number ``start``."""
    start: int = 0
    frames: int = 0
    """Frames made so far."""
    position: int = 0
    """Positions encoded so far."""
    ended: bool = False
    subsampled: list[torch.Tensor] = msgspec.field(default_factory=list)
    """The last inputs of each convolution over frames."""

    @property
    def _end(self) -> int:
        """Number of the next sample."""
        return self.start + len(self.samples)

    def feed(self, pcm: bytes, *, ended: bool) -> None:
        """Add samples (s16le, 16 kHz, mono)."""
        more = samples_of([pcm], len(pcm) // 2, self.samples.device)[0]
        self.samples = torch.cat((self.samples, more))
        if ended and not self.ended and (lacking := FEWEST_SAMPLES - self._end) > 0:
            self.samples = torch.nn.functional.pad(self.samples, (0, lacking))
        self.ended = ended

    def next_frames(self, mel: PreemphasizedMel, *, last: bool) -> torch.Tensor:
        """The frames of the next chunk, or all that are left; [frames, bins].

        Raises ValueError if their samples have not come.
        """
        begin = self.frames
        if last:
            if not self.ended:
                raise ValueError("the last positions of a stream are computed, and it has not ended")
            end = self._end // HOP
        else:
            end = self.causal.frames_of(self.position + self.causal.chunk)
            lacking = (end - 1) * HOP + HALF_WINDOW - self._end
            if lacking > 0 and not self.ended:
                raise ValueError(f"position {self.position} needs {lacking} samples that have yet to come")
        first, behind = begin * HOP - MARGIN, (end - 1) * HOP + MARGIN
        """Samples of the frames: [first, behind)."""
        known = emphasised(self.samples)
        if self.start:
            known = known[1:]  # the first is there for the emphasis of the second
        at = self.start + (1 if self.start else 0)
        known = known[max(0, first - at) : behind - at]
        at = max(at, first)
        # a window ends before samples that have yet to come; before the first and behind the last there is silence
        stretch = torch.nn.functional.pad(known, (at - first, behind - at - len(known)))
        self.frames = end
        kept = max(self.start, end * HOP - _KEPT)
        self.samples, self.start = self.samples[kept - self.start :].clone(), kept
        return mel.of_stretch(stretch, end - begin)
