"""Decoders that run transformers' modules over the batch's caches."""

from collections.abc import Iterable, Mapping
from typing import Final

import torch

from ...layers.forward_batch import ForwardBatch
from ...layers.linear.layer_context import LayerContext
from ...layers.linear.weights import WeightMap
from ...model_config.transformers_config import TransformersSpec
from .attention import PAGED, PagedAttention
from .modules import check_decoder, fix_positions, layer_numbers, make_modules
from .names import module_tensors
from .rows import check_rows, hidden_by_row

_BUFFERS: Final = ("rotary_emb.inv_freq", "attn.bias", "attn.masked_bias", "attention.bias", "attention.masked_bias")
"""Endings of buffers in old checkpoints that modules make themselves."""


class TransformersDecoder:
    """Token ids in, hidden states and logits out, as :class:`..decoder.Decoder`.

    The rows are concatenated in a batch of one, each token with its position; only attention separates them. Hidden
    states are those behind the last norm. As far as torch's products depend on the batch, so do a row's results.
    """

    def __init__(
        self, config: TransformersSpec, described: Mapping[str, object], context: LayerContext, max_model_len: int
    ) -> None:
        """``described``: the config.json. Raises :class:`...model_config.config_fields.ConfigError`."""
        self.config = config
        self.context = context
        self.weights = WeightMap()
        self._modules = make_modules(described, context.dtype, context.place, None if config.rows else PAGED)
        if not context.shapes_only:
            fix_positions(self._modules, max_model_len, context.dtype, context.device)
        self._numbers = layer_numbers(config.layers)
        self._specs = [layer.attention for layer in config.layers]
        tied = self._modules.head.all_tied_weights_keys
        self.weights.pass_over(*tied)
        for name, tensor in self._modules.tensors.items():
            if name not in tied:
                self.weights.add(name, tensor)

    def load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Load the modules from a checkpoint's tensors.

        Raises :class:`...layers.linear.weights.WeightError` for a tensor that is missing, unknown or of another
        shape, and if modules compute something else here than in transformers.
        """
        modules = self._modules
        named = module_tensors(modules.head, modules.conversions, modules.tensors, tensors)
        self.weights.load(named, ignore=_BUFFERS)
        check_decoder(modules, self.config.vocab_size, self.context.device)
        if self.config.rows:
            check_rows(modules, self.config, self.context.device)

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """Hidden states [tokens, hidden] behind the last norm; writes keys and values to the batch's caches."""
        assert isinstance(batch.tokens, torch.Tensor)
        if self.config.rows:
            return hidden_by_row(self._modules, self.config, batch)
        return self._modules.hidden(batch.tokens, batch.positions, PagedAttention(batch, self._numbers, self._specs))

    def logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Hidden states [rows, hidden] from :meth:`forward` → float32 [rows, vocabulary], in ``out`` if given."""
        logits = self._modules.logits(hidden)
        return logits.float() if out is None else out.copy_(logits)
