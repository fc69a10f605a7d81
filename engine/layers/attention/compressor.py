"""Compresses the vectors of several tokens to one cached entry (DeepSeek V4, V4.1)."""

import torch

from stentor import kernels

from ...model_config.spec.compressed_attention import CompressedAttentionSpec
from ..linear.layer_context import LayerContext
from ..linear.weights import WeightMap
from ..norm import RMSNorm
from ..rotary import RotaryTable
from .entries import gated_sums


class Compressor:
    """An entry is the sum of its tokens' vectors with a softmax of gates for each dimension, normed, and rotated as its
    first token. With two halves, the first ones of the tokens before it and the second ones of its own are summed. One
    of a single token may have no gate."""

    def __init__(
        self,
        weights: WeightMap,
        prefix: str,
        name: str,
        size: int,
        spec: CompressedAttentionSpec,
        table: RotaryTable,
        context: LayerContext,
    ) -> None:
        """``prefix``: of the layer. ``name``, ``size``: see
        :attr:`...model_config.spec.compressed_attention.CompressedAttentionSpec.compressed`."""
        self._spec, self._size, self._dtype = spec, size, context.dtype
        self._cos, self._sin = table
        self._bias: torch.Tensor | None = None
        if spec.biased:
            self._bias = context.empty(spec.ratio, spec.halves * size, dtype=torch.float32)
            weights.add(f"{prefix}.{name}.ape", self._bias)
        self._norm = RMSNorm(weights, f"{prefix}.{name}.norm", size, spec.norm_eps, context)

    def __call__(self, inputs: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
        """Entries [n, size] of the inputs of their tokens [n, depth, vectors and gates]; ``first``: int64 [n], the
        position of each one's first own token."""
        return self.turned(self.still(inputs, first), first)

    def still(self, inputs: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
        """Entries before their rotation."""
        if not self._spec.gated:
            return self._norm.plain(inputs[:, 0].contiguous())
        vectors, gates = inputs.float().chunk(2, dim=2)
        spec = self._spec
        if spec.halves > 1:
            vectors, gates = self._halved(vectors), self._halved(gates)
        if self._bias is not None:
            gates = gates + torch.cat(self._bias.split(self._size, dim=1))
        if spec.halves > 1:
            # nothing stands before the first entry
            before = torch.arange(spec.depth, device=first.device) < spec.ratio
            gates = gates.masked_fill(((first == 0)[:, None] & before)[:, :, None], -torch.inf)
        return self._norm.plain(gated_sums(vectors, gates).to(self._dtype))

    def turned(self, entries: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
        """Entries [n, size], rotated."""
        return rotated(entries[:, None], self._cos, self._sin, first, self._spec.rope_dim)[:, 0]

    def _halved(self, x: torch.Tensor) -> torch.Tensor:
        """[n, depth, 2 · size] → [n, depth, size]: the first half of the first tokens, the second of the others."""
        ratio, size = self._spec.ratio, self._size
        return torch.cat([x[:, :ratio, :size], x[:, ratio:, size:]], dim=1)


def rotated(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor, rotating: int
) -> torch.Tensor:
    """A copy of x [tokens, heads, dims] with its last dimensions rotated, neighbours together."""
    still, turning = x.split_with_sizes((x.shape[2] - rotating, rotating), dim=2)
    turning = turning.clone(memory_format=torch.contiguous_format)  # that of one row would be no copy otherwise
    kernels.rotary_(turning, turning[:, :0], cos, sin, positions, interleaved=True)
    return torch.cat([still, turning], dim=2)
