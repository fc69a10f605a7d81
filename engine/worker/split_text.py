"""A text model of which each of several workers has a part: see :class:`.families.Family`."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import torch

from stentor.protocols.ipc.config import WorkerConfig

from ..layers.layer_context import LayerContext
from ..loading.checkpoint import Checkpoint
from ..loading.errors import CheckpointError
from ..loading.gguf_types import GGMLType, row_bytes
from ..model_config.config_fields import ConfigError
from ..model_config.model_spec import ModelSpec
from ..model_config.tensor_parallel.cuts import Cut
from ..model_config.tensor_parallel.split import split_model
from ..quantization.formats import GGUFFormat
from .errors import SetupError
from .families import Text, TextModel


class SplitText(Text):
    """One rank's part. Raises :class:`.errors.SetupError` for a model that cannot be split."""

    def __init__(self, checkpoint: Checkpoint, device: str, config: WorkerConfig) -> None:
        super().__init__(checkpoint, device)
        asked = f"--tensor-parallel-size {config.tensor_parallel_size}"
        self._quantized = quantized = checkpoint.quantized
        if quantized is not None and checkpoint.format != "gguf":
            raise SetupError(
                f"{asked}: the weights are quantised ({quantized.method}), expected plain ones, which --quantization "
                "may quantise as they load, or a GGUF file"
            )
        if config.batch_invariant and config.tensor_parallel_size > 2:
            raise SetupError(f"{asked}: sums of more than 2 workers depend on the batch; leave --batch-invariant out")
        try:
            split = split_model(self.spec, config.rank, config.tensor_parallel_size)
        except ConfigError as error:
            raise SetupError(f"{asked}: {error}") from error
        self.spec = split.spec
        self.groups = split.spec.cache_groups
        self._cuts = split.cuts
        for name, cut in split.cuts.items():
            if (kind := self._kind(name)) is not None and not _whole_blocks(cut, kind):
                raise SetupError(
                    f"{asked}: {name} is stored in blocks of {kind.elements} values ({kind.name}), which do not divide "
                    f"the {cut.ranges[0][1]} values of a row that each worker takes"
                )

    def make(self, context: LayerContext, longest: int) -> TextModel:
        if context.adapters is None:
            return super().make(context, longest)
        context.adapters.cuts = self._cuts
        model = super().make(context, longest)
        context.adapters.spec = self.checkpoint.decoder
        return model

    def fill(self, model: TextModel, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        raw = model.weights.raw
        cuts = {name: self._of_blocks(name, cut) if name in raw else cut for name, cut in self._cuts.items()}
        super().fill(model, sliced(tensors, cuts))

    def _kind(self, name: str) -> GGMLType | None:
        """Of a stored matrix; None where it is plain."""
        format = self._quantized.format_of(name.removesuffix(".weight")) if self._quantized else None
        return GGMLType[format.kind] if isinstance(format, GGUFFormat) else None

    def _of_blocks(self, name: str, cut: Cut) -> Cut:
        """The same of a matrix that comes as it is stored: along a row, in bytes."""
        kind = self._kind(name)
        if not cut.inputs or kind is None:
            return cut
        ranges = tuple((row_bytes(kind, first), row_bytes(kind, count)) for first, count in cut.ranges)
        return replace(cut, size=row_bytes(kind, cut.size), ranges=ranges)


def _whole_blocks(cut: Cut, kind: GGMLType) -> bool:
    return not cut.inputs or not any(edge % kind.elements for first_and_count in cut.ranges for edge in first_and_count)


def split_family(checkpoint: Checkpoint, device: str, config: WorkerConfig) -> SplitText:
    """Raises :class:`.errors.SetupError` for what is no text model, or cannot be split."""
    if not isinstance(checkpoint.config, ModelSpec):
        raise SetupError(
            f"--tensor-parallel-size {config.tensor_parallel_size}: {checkpoint.config.architecture} is no decoder of "
            "text, which alone is split; leave it out"
        )
    return SplitText(checkpoint, device, config)


def sliced(tensors: Iterable[tuple[str, torch.Tensor]], cuts: Mapping[str, Cut]) -> Iterator[tuple[str, torch.Tensor]]:
    """What ``cuts`` leave of each tensor, by name; the rest of it is neither copied nor kept.

    Raises :class:`..loading.errors.CheckpointError` for a tensor that is not of the size that is cut.
    """
    for name, tensor in tensors:
        cut = cuts.get(name)
        yield name, tensor if cut is None else _taken(name, tensor, cut)


def _taken(name: str, tensor: torch.Tensor, cut: Cut) -> torch.Tensor:
    if tensor.dim() <= cut.dim or tensor.shape[cut.dim] != cut.size:
        raise CheckpointError(
            f"{name} has shape {tuple(tensor.shape)} in the checkpoint, expected {cut.size} in dimension {cut.dim}"
        )
    if cut.zero:
        return torch.zeros_like(tensor)
    parts = [tensor.narrow(cut.dim, first, count) for first, count in cut.ranges]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=cut.dim)
