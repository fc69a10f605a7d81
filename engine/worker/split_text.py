"""A text model of which each of several workers has a part: see :class:`.families.Family`."""

from collections.abc import Iterable

import torch

from stentor.protocols.ipc.config import WorkerConfig

from ..loading.checkpoint import Checkpoint
from ..loading.slices import sliced
from ..model_config.config_fields import ConfigError
from ..model_config.model_spec import ModelSpec
from ..model_config.tensor_parallel import split_model
from .errors import SetupError
from .families import Text, TextModel


class SplitText(Text):
    """One rank's part. Raises :class:`.errors.SetupError` for a model that cannot be split."""

    def __init__(self, checkpoint: Checkpoint, device: str, config: WorkerConfig) -> None:
        super().__init__(checkpoint, device)
        asked = f"--tensor-parallel-size {config.tensor_parallel_size}"
        if checkpoint.quantized is not None:
            raise SetupError(
                f"{asked}: the weights are quantised ({checkpoint.quantized.method}), expected plain ones, which "
                "--quantization may quantise as they load"
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

    def fill(self, model: TextModel, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        super().fill(model, sliced(tensors, self._cuts))


def split_family(checkpoint: Checkpoint, device: str, config: WorkerConfig) -> SplitText:
    """Raises :class:`.errors.SetupError` for what is no text model, or cannot be split."""
    if not isinstance(checkpoint.config, ModelSpec):
        raise SetupError(
            f"--tensor-parallel-size {config.tensor_parallel_size}: {checkpoint.config.architecture} is no decoder of "
            "text, which alone is split; leave it out"
        )
    return SplitText(checkpoint, device, config)
