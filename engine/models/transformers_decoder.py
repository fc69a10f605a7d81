"""Decoders that transformers' own modules compute, over the caches of a batch."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, Final

import torch

from ..layers.forward_batch import ForwardBatch
from ..layers.layer_context import LayerContext
from ..layers.weights import WeightError, WeightMap
from ..model_config.transformers_config import TransformersSpec
from .transformers_attention import AttendsPaged
from .transformers_modules import fix_positions, layer_numbers, make_modules

_BUFFERS: Final = ("rotary_emb.inv_freq", "attn.bias", "attn.masked_bias", "attention.bias", "attention.masked_bias")
"""Endings of buffers that old checkpoints hold, and that modules make themselves."""


class TransformersDecoder:
    """Token ids in, hidden states and logits out, as :class:`.decoder.Decoder`: rows stand one after another in a batch
    of one, each token with its position, and attention alone tells them apart.

    Hidden states come behind the last norm. A row's numbers may depend on what shares its pass as far as torch's
    products do.
    """

    def __init__(
        self, config: TransformersSpec, described: Mapping[str, object], context: LayerContext, max_model_len: int
    ) -> None:
        """``described``: the config.json. Raises :class:`..model_config.config_fields.ConfigError`."""
        self.config = config
        self.context = context
        self.weights = WeightMap()
        self._modules = make_modules(described, context.dtype, context.place)
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
        """Fills the modules from a checkpoint's tensors. Raises :class:`..layers.weights.WeightError` for one that is
        missing, has no place or another shape."""
        modules = self._modules
        named = _module_tensors(modules.head, modules.conversions, modules.tensors, tensors)
        self.weights.load(named, ignore=_BUFFERS)

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """Hidden states [tokens, hidden] behind the last norm; keys and values go to the batch's caches."""
        assert isinstance(batch.tokens, torch.Tensor)
        return self._modules.hidden(batch.tokens, batch.positions, AttendsPaged(batch, self._numbers, self._specs))

    def logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Hidden states [rows, hidden] from :meth:`forward` → float32 [rows, vocabulary], in ``out`` if given."""
        logits = self._modules.logits(hidden)
        return logits.float() if out is None else out.copy_(logits)


def _module_tensors(
    model: Any,
    conversions: Sequence[Any],
    known: Mapping[str, torch.Tensor],
    tensors: Iterable[tuple[str, torch.Tensor]],
) -> Iterator[tuple[str, torch.Tensor]]:
    """A checkpoint's tensors under the names of transformers' modules, joined or cut as these want them.

    By transformers' own ``conversions``. A tensor that is stored under its module's name comes at once; one that is
    made of several comes once all have been read. Those that the model passes over are left out. Raises
    :class:`WeightError`."""
    from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

    renamings = [each for each in conversions if isinstance(each, WeightRenaming)]
    converters = [each for each in conversions if isinstance(each, WeightConverter)]
    by_pattern = {pattern: converter for converter in converters for pattern in converter.source_patterns}
    unused = [re.compile(pattern) for pattern in model._keys_to_ignore_on_load_unexpected or ()]
    waiting: defaultdict[str, list[tuple[Any, str, str, torch.Tensor]]] = defaultdict(list)
    prefix, names = model.base_model_prefix, dict(known)
    for stored, tensor in tensors:
        name, pattern = rename_source_key(stored, renamings, converters, prefix, names)
        if name not in known and stored in known:
            name, pattern = stored, None
        if pattern is not None and name in known:
            waiting[name].append((dot_natural_key(stored), stored, pattern, tensor))
        elif name in known or not any(each.search(stored) for each in unused):
            yield name, tensor
    for name, parts in waiting.items():
        parts.sort(key=lambda part: part[0])
        converter = deepcopy(by_pattern[parts[0][2]])
        for _, stored, pattern, tensor in parts:
            converter.add_tensor(name, stored, pattern, tensor)  # type: ignore[arg-type]  # it takes tensors as well
        try:
            made = converter.convert(name, model=model, config=model.config)
        except Exception as error:  # operations of another library over what a file holds
            raise WeightError(f"{name} cannot be made of what the checkpoint holds: {error}") from error
        for target, found in made.items():
            yield target, found[0] if isinstance(found, list) else found
