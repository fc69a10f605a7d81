"""Keys of an index that several tokens have together (GLM 5.3 Flash)."""

import torch

from stentor import kernels

from ...model_config.spec.latent_attention import IndexSpec
from ..forward_batch import ForwardBatch, LayerCache
from ..linear.layer_context import LayerContext
from ..linear.weights import WeightMap
from .entries import EntryBlocks, PassTokens, completed, gated_sums
from .token_history import TokenHistory, keep_inputs_


class PooledKeys:
    """One key of every few tokens: the sum of theirs with a softmax of gates for each dimension.

    A pool's key is written when its last token comes. Until then a state holds the keys and gates of its tokens.
    """

    def __init__(
        self, weights: WeightMap, prefix: str, layer: int, spec: IndexSpec, hidden: int, context: LayerContext
    ) -> None:
        """``prefix``: of the index's tensors."""
        self._spec, self._layer, self._invariant = spec, layer, context.invariant
        self._gate = context.empty(spec.head_dim, hidden)
        self._bias = context.empty(spec.pool, spec.head_dim, dtype=torch.float32)
        weights.add(f"{prefix}.{spec.gates}_gate", self._gate)
        weights.add(f"{prefix}.{spec.gates}_ape", self._bias)

    def write_(self, key: torch.Tensor, x: torch.Tensor, batch: ForwardBatch, cache: LayerCache) -> None:
        """Write the keys of the pools that tokens of the pass complete, of the tokens' keys [tokens, head_dim]; ``x``:
        the layer's input [tokens, hidden]."""
        assert batch.states is not None, "the rows of the batch have no recurrent states"
        rows, pool = batch.states.rows, self._spec.pool
        inputs = torch.cat([key, kernels.linear(x, self._gate, invariant=self._invariant)], dim=1)
        history = TokenHistory(inputs, batch.states.of_layer[self._layer][0], rows)
        if (made := completed(history, PassTokens.of(rows.cu_seqlens, batch.positions), pool, pool)) is not None:
            keys, gates = made.inputs.float().chunk(2, dim=2)
            blocks = EntryBlocks(batch.attention[cache.group].block_tables, cache.block, pool)
            made.write_(gated_sums(keys, gates + self._bias).to(cache.index.dtype), cache.index, blocks)
        keep_inputs_(inputs, batch, self._layer)
