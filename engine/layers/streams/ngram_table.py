"""Tables of embeddings of n-grams, which take most of a model's memory and are kept as they are stored."""

from collections.abc import Mapping

import torch

from ...model_config.spec.projection import Projection
from ...model_config.spec.streams import NGramSpec
from ...quantization.formats import FP8Format
from ...quantization.stored import StoredError, checked_weight, e8m0
from ..linear.layer_context import LayerContext, LinearParts
from ..linear.linear import plain_weight
from ..linear.weights import WeightMap


class NGramTable:
    """Plain numbers in the compute dtype; or float8 with an exponent for each few numbers of a row (MXFP8)."""

    def __init__(self, weights: WeightMap, prefix: str, spec: NGramSpec, context: LayerContext) -> None:
        """``prefix``: of the layer. Raises :class:`..linear.weights.WeightError` for formats that rows do not have."""
        dim, self._dtype = spec.dim // len(spec.sizes), context.dtype
        shards = tuple((spec.table.format(number), rows) for number, rows in enumerate(spec.shard_rows))
        of = LinearParts(weights, {f"{prefix}.{name}": rows for name, rows in shards}, dim, context)
        (part, format), *others = of.formats.items()
        self._scales: torch.Tensor | None = None
        if others or not isinstance(format, FP8Format) or format.granularity != "block" or format.block[0] != 1:
            self._rows = plain_weight(weights, prefix, Projection(shards, dim, bias=False), context)
            return
        self._rows = context.empty(spec.rows, dim, dtype=torch.uint8)
        self._scales = context.empty(spec.rows, -(-dim // format.block[1]), dtype=torch.uint8)
        self._width, ending = format.block[1], format.scale_ending
        nbytes = self._rows.nbytes + self._scales.nbytes

        def place(stored: Mapping[str, torch.Tensor]) -> None:
            assert self._scales is not None
            scales = stored[ending]
            if scales.itemsize != 1 or scales.shape != self._scales.shape:
                raise StoredError(
                    f"{ending} is {scales.dtype} {tuple(scales.shape)}, expected exponents {tuple(self._scales.shape)}"
                )
            self._rows.copy_(checked_weight(stored, torch.float8_e4m3fn, *self._rows.shape).view(torch.uint8))
            self._scales.copy_(scales.view(torch.uint8))

        weights.gather(part, ("weight", ending), place, nbytes=nbytes)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Embeddings [..., dim] of rows, int64 [...]."""
        found = self._rows[rows]
        if self._scales is None:
            return found
        factors = e8m0(self._scales[rows]).repeat_interleave(self._width, -1)[..., : found.shape[-1]]
        return (found.view(torch.float8_e4m3fn).float() * factors).to(self._dtype)
