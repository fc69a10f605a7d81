"""Decoders that run on transformers' modelling code; see :class:`.family.Family`."""

from collections.abc import Mapping, Sequence
from typing import Final

from stentor.protocols.ipc.config import WorkerConfig

from ...layers.linear.layer_context import LayerContext
from ...loading.checkpoint import Checkpoint
from ...loading.errors import CheckpointError
from ...loading.safetensors_index import read_json
from ...model_config.config_fields import ConfigError
from ...model_config.transformers_config import TransformersSpec
from ...models.transformers.decoder import TransformersDecoder
from ...models.transformers.modules import probed
from .family import Text
from .setup_parts import check_plain

_NOTE: Final = (
    "{} runs on transformers' modelling code, slower than a native model: an operation a call, weights as they are "
    "stored, no CUDA graphs"
)
_BY_ROW: Final = "its modules attend by their own code, so each row of a step reads all weights again"
_TEXT_ALONE: Final = "it is served for its text: media run on native models alone"


class TransformersText(Text):
    """Text, computed an operation a call. The attention of its layers is determined before weights are loaded."""

    packs = False

    def __init__(self, checkpoint: Checkpoint, device: str) -> None:
        super().__init__(checkpoint, device)
        self._described: Mapping[str, object] = read_json(checkpoint.folder / "config.json")
        assert isinstance(self.spec, TransformersSpec)
        try:
            self._found = probed(self._described, self.spec)
        except ConfigError as error:
            raise CheckpointError(f"Cannot load {checkpoint.folder}: {error}.") from error
        self.spec = self._found
        self.groups = self._found.cache_groups
        self.notes: Sequence[str] = (
            _NOTE.format(self.spec.architecture),
            *([_BY_ROW] if self._found.rows else []),
            *([_TEXT_ALONE] if self._found.takes_media else []),
        )

    def runs_ahead(self, config: WorkerConfig) -> bool:
        return False

    def longest(self, config: WorkerConfig) -> int:
        check_plain(config)
        return super().longest(config)

    def make(self, context: LayerContext, longest: int) -> TransformersDecoder:
        return TransformersDecoder(self._found, self._described, context, longest)
