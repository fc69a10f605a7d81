"""``stentor env MODEL``: a model's structure, its costs, and its fit on this machine.

Numbers follow from the model's description and the headers of its files; no weight is read.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Final

from stentor.engine.loading.checkpoint import Checkpoint, open_checkpoint
from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.kind import kind_of
from stentor.engine.loading.pooling_checkpoint import open_pooling
from stentor.engine.loading.stored_cuts import stored_block
from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.encoders.pooling import PoolingConfig
from stentor.engine.model_config.encoders.transformers_config import TransformersEncoder
from stentor.engine.model_config.spec.attention import AttentionSpec
from stentor.engine.model_config.spec.cache import CacheSpec
from stentor.engine.model_config.spec.compressed_attention import CompressedAttentionSpec
from stentor.engine.model_config.spec.latent_attention import IndexSpec, LatentAttentionSpec
from stentor.engine.model_config.spec.layer import BesideSpec, LayerSpec, MixerSpec
from stentor.engine.model_config.spec.lightning import LightningSpec
from stentor.engine.model_config.spec.mlp import FeedForwardSpec, MLPSpec, OpaqueSpec
from stentor.engine.model_config.spec.model import ModelSpec
from stentor.engine.model_config.spec.recurrent import (
    GatedDeltaSpec,
    Mamba2Spec,
    MambaSpec,
    RGLRUSpec,
    ShortConvSpec,
)
from stentor.engine.model_config.spec.seq2seq import Seq2SeqConfig
from stentor.engine.model_config.spec.streams import LaurelSpec
from stentor.engine.model_config.speech.encoder_decoder import EncoderDecoderConfig
from stentor.engine.model_config.tensor_parallel.cuts import Rank
from stentor.engine.model_config.tensor_parallel.split import split_model
from stentor.engine.model_config.towers.audio_hf import audio_spec_from_hf
from stentor.engine.model_config.towers.vision_hf import vision_spec_from_hf
from stentor.engine.model_config.transformers_config import TransformersSpec
from stentor.engine.worker.memory import GIB, available_memory, default_kv_bytes

LENGTHS: Final = (8192, 32768)
"""Tokens of the sequences whose cache size is printed."""
CACHE_BYTES: Final = 2
"""Bytes of one value in a bfloat16 cache."""
STATE_BYTES: Final = 4
"""Bytes of one value of a recurrent state, in float32."""
_VALUE_BYTES: Final = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
GPU_SHARE: Final = 0.9
"""The default of ``--gpu-memory-fraction``."""
MOST_KINDS: Final = 4

MIB: Final = 1 << 20

Fact = tuple[str, str]


def describe_model(path: Path, gpus: Sequence[tuple[str, int]]) -> str:
    """Lines of ``name  value``. ``gpus``: name and bytes of memory of each. Raises ``CheckpointError``."""
    try:
        checkpoint = open_pooling(path) if kind_of(path) == "embedding" else open_checkpoint(path)
    except ConfigError as error:
        raise CheckpointError(f"Cannot load {path}: {error}.") from error
    rows = list(_facts(checkpoint, gpus))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:{width}}  {value}" for name, value in rows)


def _tower_code(checkpoint: Checkpoint) -> str:
    assert isinstance(checkpoint.config, ModelSpec)
    for read in (vision_spec_from_hf, audio_spec_from_hf):
        with suppress(ConfigError):
            read(checkpoint.described or {}, checkpoint.config.hidden_size)
            return "layers of our own"
    return "transformers' modelling code"


def _facts(checkpoint: Checkpoint, gpus: Sequence[tuple[str, int]]) -> Iterator[Fact]:
    config = checkpoint.config
    yield "architecture", config.architecture
    spec = config.backbone if isinstance(config, PoolingConfig) else config
    if isinstance(spec, ModelSpec):
        yield from _layers(spec)
    if isinstance(spec, TransformersSpec | TransformersEncoder):
        yield "parameters", f"{_elements(checkpoint) / 1e6:,.1f} M as stored"
        yield "runs on", "transformers' modelling code, an operation a call"
    elif isinstance(spec, ModelSpec):
        yield "parameters", _parameters(spec)
    stored = ", ".join(f"{_size(size)} in {dtype}" for dtype, size in checkpoint.stored_bytes.items())
    yield "weights", stored
    tower = 0 if checkpoint.tower is None else checkpoint.tower.nbytes
    if tower:
        yield "sees or hears by", f"{_size(tower)} as stored, on {_tower_code(checkpoint)}"
    if isinstance(spec, ModelSpec):
        if not isinstance(spec, TransformersSpec):  # of whose networks no product is known
            work = (f"{spec.flops(1, at, 1) / 1e9:,.2f} GFLOP at {at:,}" for at in (0, LENGTHS[0]))
            yield "work a token", " and ".join(work)
        if not (spec.bidirectional or spec.by_text):
            yield from _cache(spec)
            token = sum(group.token_bytes(CACHE_BYTES) for group in spec.cache_groups)
            if token:
                yield from _fits(token, "tokens", checkpoint.total_bytes + tower, gpus)
                if len(gpus) > 1:
                    room = min(size for _, size in gpus) - int(tower / GPU_SHARE)
                    yield f"fits {len(gpus)} workers", _fits_split(spec, checkpoint, room, len(gpus))
            else:
                state = spec.state_bytes(CACHE_BYTES, STATE_BYTES)
                yield from _fits(state, "states", checkpoint.total_bytes, gpus, "them")
    if isinstance(spec, Seq2SeqConfig):
        yield "context", f"{spec.max_position:,} tokens"
        groups = (*spec.cache_groups, spec.cross_group)
        yield from map(_group, groups)
        each = sum(group.cached_bytes(spec.max_position, CACHE_BYTES) for group in groups)
        outputs = "transcripts" if isinstance(spec, EncoderDecoderConfig) else "inputs and outputs"
        yield from _fits(each, outputs, checkpoint.total_bytes, gpus)


def _layers(spec: ModelSpec) -> Iterator[Fact]:
    """Equal neighbouring layers on one line each."""
    head = "the head is the embedding" if spec.tie_embeddings else "a head of its own"
    yield "vocabulary", f"{spec.vocab_size:,} tokens, {head}"
    yield "context", f"{spec.max_position:,} tokens"
    runs = [(layer, len(list(alike))) for layer, alike in groupby(spec.layers)]
    again = f", runs of {len(set(spec.runs))} stored ones" if spec.runs else ""
    yield "layers", f"{len(spec.layers)} of {spec.hidden_size} columns{again}"
    for layer, count in runs[:MOST_KINDS]:
        yield "", f"{count} of {_layer(layer, both_ways=spec.bidirectional)}"
    if len(runs) > MOST_KINDS:
        yield "", "and so on"


def _layer(layer: LayerSpec, *, both_ways: bool) -> str:
    opaque = isinstance(layer.mlp, OpaqueSpec)
    mixers = " beside ".join(_mixer(mixer, positioned=opaque, both_ways=both_ways) for mixer in layer.mixers)
    late = "" if layer.shortcut is None else f"{_mlp(layer.shortcut)} added behind the next layer"
    return "; ".join(filter(None, (mixers, "" if layer.mlp is None else _mlp(layer.mlp), late)))


def _mixer(mixer: MixerSpec | BesideSpec, *, positioned: bool, both_ways: bool) -> str:
    """``positioned``: whether its own code handles positions, which the spec does not describe. ``both_ways``: whether
    it also sees what is behind a token."""
    if isinstance(mixer, LatentAttentionSpec):
        return (
            f"attention of {mixer.heads} heads to latents of {mixer.kv_lora_rank} and {mixer.rope_dim} rotated, "
            f"sees {_seen(mixer.index)}"
        )
    if isinstance(mixer, CompressedAttentionSpec):
        return _compressed(mixer)
    if not isinstance(mixer, AttentionSpec):
        return _other(mixer)
    part = "chunk" if mixer.chunked else "window"
    sees = f"a {part} of {mixer.window:,}" if mixer.window else "all" if both_ways else "all before"
    sees += " on either side" if mixer.window and both_ways else ""
    positions = "" if mixer.rope or positioned else ", no positions"
    sinks = ", sinks" if mixer.sinks else ""
    return f"attention of {mixer.heads} heads to {mixer.kv_heads} of {mixer.head_dim}, sees {sees}{positions}{sinks}"


def _compressed(mixer: CompressedAttentionSpec) -> str:
    heads = f"attention of {mixer.heads} heads to one of {mixer.head_dim}, sees a window of {mixer.window:,}"
    if not mixer.ratio:
        return f"{heads}, sinks"
    seen = f"the {mixer.index.top_k:,} best entries" if mixer.index else "all entries"
    each = f"{mixer.ratio} tokens each" if mixer.ratio > 1 else "a token each"
    return f"{heads} and {seen} of {each} before it, sinks"


def _seen(index: IndexSpec | None) -> str:
    if index is None:
        return "all before"
    chosen = f"the {index.top_k:,} best of all before"
    if index.shared:
        return f"{chosen}, as the layer before chose them"
    pools = f" and a key of every {index.pool} tokens" if index.pool > 1 else ""
    return f"{chosen} by an index of {index.heads} heads of {index.head_dim}{pools}"


def _other(mixer: BesideSpec) -> str:
    match mixer:
        case LaurelSpec():
            return f"a product of rank {mixer.rank}"
        case ShortConvSpec():
            return f"a convolution over {mixer.width} tokens"
        case GatedDeltaSpec():
            return f"a gated delta rule of {mixer.v_heads} heads, states of {mixer.k_dim} by {mixer.v_dim}"
        case Mamba2Spec():
            return f"a state space (Mamba-2) of {mixer.heads} heads, states of {mixer.head_dim} by {mixer.state_dim}"
        case MambaSpec():
            return f"a state space (Mamba) of {mixer.inner} channels, states of {mixer.state_dim}"
        case RGLRUSpec():
            return f"a gated linear recurrence of {mixer.channels} channels, in {mixer.blocks} blocks"
        case LightningSpec():
            return f"lightning attention of {mixer.heads} heads, states of {mixer.head_dim} by {mixer.head_dim}"


def _mlp(mlp: FeedForwardSpec) -> str:
    if isinstance(mlp, OpaqueSpec):
        return "a network of transformers' own"
    if isinstance(mlp, MLPSpec):
        return f"{mlp.activation} of {mlp.inner}"
    shared = f" and one of {mlp.shared.inner} for all" if mlp.shared else ""
    idle = f" and {mlp.identities} that return their input" if mlp.identities else ""
    return f"{mlp.router.top_k} of {mlp.experts} experts{idle}, {mlp.activation} of {mlp.inner}{shared}"


def _elements(checkpoint: Checkpoint) -> int:
    """Number of elements of all stored tensors, which are unquantised."""
    return sum(size // _VALUE_BYTES[dtype] for dtype, size in checkpoint.stored_bytes.items())


def _parameters(spec: ModelSpec) -> str:
    active = spec.active_parameters
    of_them = "" if active == spec.parameters else f", {active / 1e6:,.1f} M of them active for a token"
    return f"{spec.parameters / 1e6:,.1f} M{of_them}"


def _cache(spec: ModelSpec) -> Iterator[Fact]:
    """Cache bytes of a token, by group of layers."""
    yield from map(_group, spec.cache_groups)
    if spec.states:
        each, half = (spec.state_bytes(CACHE_BYTES, width) / 1024 for width in (STATE_BYTES, CACHE_BYTES))
        smaller = f"; {half:,.0f} KiB with --mamba-ssm-cache-dtype float16" if half < each else ""
        taken = f"{each:,.0f} KiB a sequence, of {len(spec.states)} layers, whatever its length"
        yield "recurrent state", f"{taken}{smaller}"
    for length in LENGTHS if spec.cache_groups else ():
        if length > spec.max_position:
            continue
        everything = sum(group.token_bytes(CACHE_BYTES) for group in spec.cache_groups) * length
        needed = sum(group.cached_bytes(length, CACHE_BYTES) for group in spec.cache_groups)
        windows = f", {_size(needed)} of it seen" if needed < everything else ""
        yield f"KV at {length:,}", f"{_size(everything)}{windows}"


def _group(group: CacheSpec) -> Fact:
    """Cache bytes of a group's layers for a token, or for an input of an encoder."""
    of_layers = f"in bfloat16 of {len(group.layers)} layers"
    if group.kind == "cross":
        size = _size(group.cached_bytes(0, CACHE_BYTES))
        return "KV a window", f"{size} {of_layers}, {group.positions:,} positions of the encoder"
    what = f"window of {group.window:,}" if group.window else group.kind
    return "KV a token", f"{group.token_bytes(CACHE_BYTES) / 1024:.1f} KiB {of_layers}, {what}"


def _fits(
    each: int, what: str, weights: int, gpus: Sequence[tuple[str, int]], kept: str = "KV cache"
) -> Iterator[Fact]:
    """How many of ``each`` bytes of cache the machine has room for."""
    free = available_memory()
    places = [("this host", free - weights, default_kv_bytes(weights))]
    places += [(name, int(size * GPU_SHARE) - weights, int(size * GPU_SHARE) - weights) for name, size in gpus]
    for name, left, default in places:
        if left <= 0:
            yield f"fits {name}", f"no: the weights are {_size(-left)} more than it has"
        else:
            yield f"fits {name}", f"{default // each:,} {what} in {_size(default)} of {kept}, by default"


def _fits_split(spec: ModelSpec, checkpoint: Checkpoint, nbytes: int, workers: int) -> str:
    """The same of GPUs of ``nbytes`` each between which a model is split."""
    try:
        part, _ = split_model(spec, Rank(0, workers), partial(stored_block, checkpoint.quantized))
    except ConfigError as error:
        return f"no: {error}"
    left = int(nbytes * GPU_SHARE) - checkpoint.total_bytes * part.parameters // spec.parameters
    if left <= 0:
        return f"no: the weights of one are {_size(-left)} more than a GPU has"
    tokens = left // sum(group.token_bytes(CACHE_BYTES) for group in part.cache_groups)
    return f"{tokens:,} tokens in {_size(left)} of KV cache on each GPU, by --tensor-parallel-size {workers}"


def _size(nbytes: int) -> str:
    return f"{nbytes / GIB:.2f} GiB" if nbytes >= GIB else f"{nbytes / MIB:.1f} MiB"
