"""A text model of which each of several workers has a part: see :class:`.families.Family`."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import torch

from stentor.protocols.ipc.config import WorkerConfig

from ..layers.layer_context import LayerContext
from ..loading.checkpoint import Checkpoint
from ..loading.errors import CheckpointError
from ..loading.stored_cuts import stored_block, stored_cuts, stored_format
from ..model_config.config_fields import ConfigError
from ..model_config.model_spec import ModelSpec
from ..model_config.tensor_parallel.cuts import Cut
from ..model_config.tensor_parallel.split import split_model
from ..quantization.formats import Format, GGUFFormat, GroupedInt8Format, Int4Format
from .errors import SetupError
from .families import Text, TextModel


class SplitText(Text):
    """One rank's part. Raises :class:`.errors.SetupError` for a model that cannot be split."""

    def __init__(self, checkpoint: Checkpoint, device: str, config: WorkerConfig) -> None:
        super().__init__(checkpoint, device)
        asked = f"--tensor-parallel-size {config.tensor_parallel_size}"
        if config.batch_invariant and config.tensor_parallel_size > 2:
            raise SetupError(f"{asked}: sums of more than 2 workers depend on the batch; leave --batch-invariant out")
        self._cuts: dict[str, Cut] = {}
        """Of all that is stored, where blocks of GGUF files come expanded."""
        self._of_blocks: dict[str, Cut] = {}
        """The same of blocks that come as they are stored."""
        self._loose: dict[str, Format] = {}
        """Formats of parts whose groups are not whole here."""
        try:
            block_of = partial(stored_block, checkpoint.quantized)
            split = split_model(self.spec, config.rank, config.tensor_parallel_size, block_of)
            for name, cut in split.cuts.items():
                self._add(name, cut)
        except ConfigError as error:
            raise SetupError(f"{asked}: {error}") from error
        self._plain_cuts = split.cuts
        if (quantized := checkpoint.quantized) is not None and self._loose:
            quantized = replace(quantized, parts=quantized.parts | self._loose)
            self.checkpoint = replace(checkpoint, quantized=quantized)
        self.spec = split.spec
        self.groups = split.spec.cache_groups

    def _add(self, name: str, cut: Cut) -> None:
        part, format = name.removesuffix(".weight"), stored_format(self.checkpoint.quantized, name)
        if format is None:
            self._cuts[name] = cut
        elif isinstance(format, GGUFFormat):
            self._cuts[name] = cut
            self._of_blocks.update(stored_cuts(part, cut, format))
        else:
            self._cuts.update(stored_cuts(part, cut, format))
            if cut.inputs and isinstance(format, Int4Format | GroupedInt8Format) and format.act_order:
                self._loose[part] = replace(format, whole_groups=False)

    def make(self, context: LayerContext, longest: int) -> TextModel:
        if context.adapters is None:
            return super().make(context, longest)
        context.adapters.cuts = self._plain_cuts
        model = super().make(context, longest)
        context.adapters.spec = self.checkpoint.decoder
        return model

    def fill(self, model: TextModel, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        raw = model.weights.raw
        of_blocks = {name: cut for name, cut in self._of_blocks.items() if name in raw}
        super().fill(model, sliced(tensors, self._cuts | of_blocks))


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
    if cut.scale and tensor.numel() == 1:
        return tensor
    stored = tensor[:, 0, :, 0] if cut.scale and tensor.dim() == 4 else tensor
    if cut.turned and stored.dim() == 3 and stored.shape[cut.dim] != cut.size:
        stored = stored.transpose(-1, -2)
    if not -stored.dim() <= cut.dim < stored.dim() or stored.shape[cut.dim] != cut.size:
        raise CheckpointError(
            f"{name} has shape {tuple(tensor.shape)} in the checkpoint, expected {cut.size} in dimension {cut.dim}"
        )
    if cut.zero:
        return torch.zeros_like(stored)
    parts = [stored.narrow(cut.dim, first, count) for first, count in cut.ranges]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=cut.dim)
