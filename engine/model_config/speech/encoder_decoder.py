"""Describes encoder-decoders that transcribe: an encoder of a window of audio, and a decoder that attends to it.
Torch-free."""

from abc import abstractmethod

from ..spec.layer import LayerSpec
from ..spec.model import Backbone
from ..spec.seq2seq import Seq2SeqConfig

MOST_POSITIONS = 1 << 20
LONGEST_TRANSCRIPT = 448
"""Tokens of a prompt and its transcript that are asked for, at most: Whisper's context."""
_EPS = 1e-5


class EncoderDecoderConfig(Seq2SeqConfig, frozen=True, kw_only=True):
    """The decoder, and what it attends to: windows of audio. Each family adds its encoder."""

    alignment_heads: tuple[tuple[int, int], ...] = ()
    """(decoder layer, head) of cross-attention that follows the speech; see :attr:`aligning_heads`."""
    median_filter: int = 7
    """Width, in positions, of the median filter on aligning heads' weights; odd."""

    def backbone(self, prefix: str, layers: tuple[LayerSpec, ...], max_position: int) -> Backbone:
        """Layers of the decoder's size."""
        return Backbone(
            architecture=self.architecture,
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            layers=layers,
            max_position=max_position,
            norm_eps=_EPS,
            prefix=prefix,
        )

    @property
    def aligns(self) -> bool:
        """Whether words are aligned by its cross-attention."""
        return False

    @property
    @abstractmethod
    def samples(self) -> int:
        """Samples of the longest window, at 16 kHz."""

    @abstractmethod
    def positions(self, samples: int) -> int:
        """Encoder positions of a window of so many samples; at least 1."""

    @property
    def aligning_heads(self) -> tuple[tuple[int, int], ...]:
        """The configured alignment heads, or all heads of the upper half of the layers."""
        if self.alignment_heads:
            return self.alignment_heads
        layers = range(self.num_layers // 2, self.num_layers)
        return tuple((layer, head) for layer in layers for head in range(self.num_heads))
