"""A checkpoint of which each of several workers takes a part."""

from functools import partial

from msgspec.structs import replace

from stentor.protocols.ipc.config import WorkerConfig

from ...loading.checkpoint import Checkpoint
from ...loading.stored_cuts import stored_block, stored_cuts, stored_format
from ...model_config.config_fields import ConfigError
from ...model_config.encoders.pooling import PoolingConfig
from ...model_config.spec.model import Backbone, ModelSpec
from ...model_config.stages import part_of, stage_ends
from ...model_config.tensor_parallel.cuts import Cut, Rank
from ...model_config.tensor_parallel.rank_part import RankPart
from ...model_config.tensor_parallel.split import split_model
from ...quantization.formats import Format, GGUFFormat, GroupedIntFormat
from ..errors import SetupError


def split_checkpoint(checkpoint: Checkpoint, config: WorkerConfig) -> Checkpoint:
    """The checkpoint with this worker's part of it. Raises :class:`..errors.SetupError` for a model that cannot be
    split."""
    if config.pipeline_parallel_size > 1:
        return _stage(checkpoint, config)
    asked = f"--tensor-parallel-size {config.tensor_parallel_size}"
    if config.batch_invariant and config.tensor_parallel_size > 2:
        raise SetupError(f"{asked}: sums of more than 2 workers depend on the batch; leave --batch-invariant out")
    spec = checkpoint.config.backbone if isinstance(checkpoint.config, PoolingConfig) else checkpoint.config
    if not isinstance(spec, Backbone):
        raise SetupError(f"{asked}: {spec.architecture} transcribes, and models of text alone are split; leave it out")
    try:
        rank = Rank(config.rank, config.tensor_parallel_size, config.enable_expert_parallel)
        part, cuts = split_model(spec, rank, partial(stored_block, checkpoint.quantized))
        left_out = frozenset(name.rpartition(".")[0] for name, cut in cuts.items() if not cut.ranges)
        stored, blocks, loose = _as_stored(checkpoint, cuts)
    except ConfigError as error:
        raise SetupError(f"{asked}: {error}") from error
    quantized = checkpoint.quantized
    if quantized is not None and loose:
        quantized = replace(quantized, parts=quantized.parts | loose)
    return replace(checkpoint, quantized=quantized, part=RankPart(spec, part, cuts, stored, blocks, left_out))


def _stage(checkpoint: Checkpoint, config: WorkerConfig) -> Checkpoint:
    """The part of one worker of several that have different layers. Raises :class:`..errors.SetupError`."""
    asked = f"--pipeline-parallel-size {config.pipeline_parallel_size}"
    others = {
        "--tensor-parallel-size": config.tensor_parallel_size > 1,
        "--enable-lora": config.enable_lora,
        "--enable-return-routed-experts": config.return_routed_experts,
    }
    if wrong := [name for name, wanted in others.items() if wanted]:
        raise SetupError(f"{asked}: not together with {wrong[0]}; leave one of them out")
    spec = checkpoint.config
    if not isinstance(spec, ModelSpec):
        raise SetupError(
            f"{asked}: only models that are a decoder alone are split by layers, and {spec.architecture} is none; "
            "leave it out"
        )
    try:
        ends = stage_ends(spec, config.pipeline_parallel_size)
    except ConfigError as error:
        raise SetupError(f"{asked}: {error}") from error
    part = part_of(spec, ends, config.rank)
    layers = enumerate(zip(spec.layers, part.layers, strict=True))
    left_out = frozenset(spec.layer_prefix(number) for number, (whole, own) in layers if own is not whole)
    return replace(checkpoint, part=RankPart(spec, part, {}, {}, {}, left_out, ends))


def _as_stored(
    checkpoint: Checkpoint, cuts: dict[str, Cut]
) -> tuple[dict[str, Cut], dict[str, Cut], dict[str, Format]]:
    """Returns the cuts of stored tensors, the cuts of GGUF's blocks, and the formats of parts of which this worker has
    incomplete groups of scales."""
    stored: dict[str, Cut] = {}
    blocks: dict[str, Cut] = {}
    loose: dict[str, Format] = {}
    for name, cut in cuts.items():
        part, format = name.removesuffix(".weight"), stored_format(checkpoint.quantized, name)
        if not cut.ranges:
            continue
        if format is None:
            stored[name] = cut
        elif isinstance(format, GGUFFormat):
            stored[name] = cut
            blocks.update(stored_cuts(part, cut, format))
        else:
            stored.update(stored_cuts(part, cut, format))
            if cut.inputs and isinstance(format, GroupedIntFormat) and format.act_order:
                loose[part] = replace(format, whole_groups=False)
    return stored, blocks, loose
