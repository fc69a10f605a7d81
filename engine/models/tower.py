"""What towers on our own layers have in common: they are filled by name, and let others compute between their parts."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch

from stentor import kernels

from ..layers.forward_batch import Texts
from ..layers.layer_context import LayerContext
from ..layers.norm import Norm, make_norm
from ..layers.parts import BeforePart
from ..layers.varlen_batch import VarlenBatch
from ..layers.weights import WeightMap
from ..model_config.model_spec import Backbone
from ..quantization.formats import OnlineFormat, QuantizedCheckpoint
from .payload import Encoded, Payload


class Tower(ABC):
    """Takes what a model's processor makes of media, and returns their embeddings."""

    def __init__(self, backbone: Backbone, context: LayerContext) -> None:
        self.weights = WeightMap()
        self._backbone = backbone
        self._pause: BeforePart | None = None
        self._context = replace(
            context,
            float32_stream=context.packed,
            adapters=None,  # what is encoded is shared by all requests
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
        """``pause`` is called before each of its products and attentions from now on, or before each part of one."""
        self._pause = pause

    def _before_part(self, seconds: float) -> float:
        return math.inf if self._pause is None else self._pause(seconds)

    def words(self) -> dict[int, torch.Tensor]:
        """Tokens of text whose embeddings are the tower's, [hidden] each by id: there are none."""
        return {}

    @property
    def dtype(self) -> torch.dtype:
        """That weights are multiplied in."""
        return self._context.dtype

    @property
    @abstractmethod
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of its weights, by the names that :attr:`weights` has for them."""

    @abstractmethod
    def load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Fills it from a checkpoint's tensors that are not the decoder's. Raises
        :class:`..layers.weights.WeightError`."""

    @abstractmethod
    def encode(self, payload: Payload) -> Encoded:
        """Raises ValueError for a modality that the tower has not, and for tensors that it does not take."""


def _online(context: LayerContext) -> QuantizedCheckpoint | None:
    """The context's formats where weights are quantised as they are loaded, or listed by their names (GGUF): other
    towers are stored plain, under names that rules for stored formats do not mean."""
    quantized = context.quantized
    return quantized if quantized and all(isinstance(rule.format, OnlineFormat) for rule in quantized.rules) else None


def sequences(lengths: Sequence[int], device: torch.device, real: torch.Tensor | None = None) -> Texts:
    """So many positions each, of which all are seen, or the ``real`` ones."""
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
