"""The common part of towers on our own layers: loading by name, and yielding between parts."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

import torch
from msgspec.structs import replace

from stentor import kernels

from ...layers.forward_batch import Texts
from ...layers.linear.layer_context import LayerContext
from ...layers.linear.parts import BeforePart
from ...layers.linear.weights import WeightMap
from ...layers.norm import Norm, make_norm
from ...layers.varlen_batch import VarlenBatch
from ...model_config.spec.model import Backbone
from ...quantization.formats import OnlineFormat, QuantizedCheckpoint
from .payload import Encoded, Payload


class Tower(ABC):
    """Encodes the output of a model's processor to embeddings."""

    def __init__(self, backbone: Backbone, context: LayerContext) -> None:
        self.weights = WeightMap()
        self._backbone = backbone
        self._pause: BeforePart | None = None
        self._context = replace(
            context,
            float32_stream=context.packed,
            adapters=None,  # all requests share the encodings
            quantized=_online(context),
            tells_experts=False,
            before_part=self._before_part,
        )

    def _table(self, name: str, rows: int) -> torch.Tensor:
        table = self._context.empty(rows, self._backbone.hidden_size, dtype=self._context.stream)
        self.weights.add(f"{name}.weight", table)
        return table

    def _norm(self, name: str) -> Norm:
        return make_norm(self.weights, name, self._backbone.layers[0].norms, self._backbone, self._context)

    def before_parts(self, pause: BeforePart) -> None:
        """Call ``pause`` before each product and attention, or before each part of one."""
        self._pause = pause

    def _before_part(self, seconds: float) -> float:
        return math.inf if self._pause is None else self._pause(seconds)

    def words(self) -> dict[int, torch.Tensor]:
        """Embeddings [hidden] that the tower provides for text tokens, by id: none by default."""
        return {}

    @property
    def dtype(self) -> torch.dtype:
        """The compute dtype."""
        return self._context.dtype

    @property
    @abstractmethod
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of its weights by their names in :attr:`weights`."""

    @abstractmethod
    def load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Load a checkpoint's tensors outside of the decoder. Raises :class:`...layers.linear.weights.WeightError`."""

    @abstractmethod
    def encode(self, payload: Payload) -> Encoded:
        """Encode a payload. Raises ValueError for an unsupported modality or wrong tensors."""


def _online(context: LayerContext) -> QuantizedCheckpoint | None:
    """The context's formats if weights are quantised while loading or listed by name (GGUF). Other towers are stored
    plain, under names that rules for stored formats do not mean."""
    quantized = context.quantized
    return quantized if quantized and all(isinstance(rule.format, OnlineFormat) for rule in quantized.rules) else None


def sequences(lengths: Sequence[int], device: torch.device, real: torch.Tensor | None = None) -> Texts:
    """Sequences of these lengths with attention within each, to all positions or the ``real`` ones."""
    starts = _starts(torch.tensor(lengths))
    varlen = VarlenBatch(starts, max(lengths))
    if real is None:
        seen, query_starts = None, None
    else:
        owner = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
        seen, query_starts = real.nonzero().flatten().to(device), starts.to(device)
        starts = _starts(torch.bincount(owner[real.cpu()], minlength=len(lengths)))
    starts = starts.to(device)
    return Texts(varlen, starts, kernels.lay_out_keys(starts), query_starts, seen=seen)


def _starts(lengths: torch.Tensor) -> torch.Tensor:
    """int32 [n + 1]"""
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int()
