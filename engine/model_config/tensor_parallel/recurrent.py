"""Mixers with a recurrent state split over workers: each has some of the channels, and their states. Torch-free."""

from msgspec.structs import replace

from ..config_fields import ConfigError
from ..spec.layer import BesideSpec, RecurrentSpec
from ..spec.lightning import LightningSpec
from ..spec.recurrent import GatedDeltaSpec, Mamba2Spec, MambaSpec, RGLRUSpec, ShortConvSpec
from ..spec.streams import LaurelSpec
from .cuts import Cut, Cuts, Ranges, Rank


def split_recurrent(spec: RecurrentSpec, rank: Rank, prefix: str, hidden: int) -> tuple[RecurrentSpec, dict[str, Cut]]:
    """A rank's part of a recurrent mixer, and how its tensors are cut. ``prefix`` is that of the layer.

    Raises :class:`..config_fields.ConfigError` for one that cannot be split.
    """
    match spec:
        case ShortConvSpec():
            channels = rank.each(spec.channels, "channels of a convolution")
            return replace(spec, channels=channels), dict(_cut_short_conv(spec, rank, prefix, hidden))
        case GatedDeltaSpec():
            heads, (_, keys) = rank.each(spec.v_heads, "value heads"), rank.shared(spec.k_heads, "key heads")
            return replace(spec, k_heads=keys, v_heads=heads), dict(_cut_delta(spec, rank, prefix, hidden))
        case Mamba2Spec():
            return _part_of_mamba2(spec, rank), dict(_cut_mamba2(spec, rank, prefix, hidden))
        case MambaSpec(heads=heads) if heads > 1:
            raise ConfigError("a state space with several heads of channels is not split")
        case MambaSpec():
            inner = rank.each(spec.inner, "channels of a state space")
            return replace(spec, inner=inner), dict(_cut_mamba(spec, rank, prefix, hidden))
        case LightningSpec():
            return _part_of_lightning(spec, rank), dict(_cut_lightning(spec, rank, prefix, hidden))
        case RGLRUSpec():
            blocks = rank.each(spec.blocks, "blocks of a recurrence's channels")
            return replace(spec, blocks=blocks), dict(_cut_rglru(spec, rank, prefix, hidden))


def _part_of_lightning(spec: LightningSpec, rank: Rank) -> LightningSpec:
    rank.each(spec.heads, "heads of linear attention")
    first, count = rank.own(spec.heads)
    rates = spec.rates[first : first + count]
    if spec.norm_groups > 1:
        return replace(spec, rates=rates, norm_groups=rank.each(spec.norm_groups, "groups of a norm"))
    return replace(spec, rates=rates, norm_workers=rank.size)


def _cut_lightning(spec: LightningSpec, rank: Rank, prefix: str, hidden: int) -> Cuts:
    first, count = own = rank.own(spec.inner)
    into, out = spec.projections(hidden)
    parts = tuple((part * spec.inner + first, count) for part in range(3))
    yield from rank.columns(into, prefix, [((3 * first, 3 * count),) if spec.by_head else parts, (own,)])
    yield from rank.rows(out, prefix, own)
    yield f"{prefix}.{spec.name}.{spec.norm}.weight", Cut(0, spec.inner, (own,))


def _cut_rglru(spec: RGLRUSpec, rank: Rank, prefix: str, hidden: int) -> Cuts:
    first, count = blocks = rank.own(spec.blocks)
    own = first * spec.block, count * spec.block
    into, out = spec.projections(hidden)
    yield from rank.columns(into, prefix, [(own,), (own,)])
    yield from rank.rows(out, prefix, own)
    yield from _cut_convolution(f"{prefix}.{spec.name}.conv_1d", spec.channels, (own,), bias=True)
    for gate in spec.gates:
        yield from ((f"{prefix}.{gate}_{which}", Cut(0, spec.blocks, (blocks,))) for which in ("weight", "bias"))
    yield f"{prefix}.{spec.name}.rg_lru.recurrent_param", Cut(0, spec.channels, (own,))


def split_beside(spec: BesideSpec, rank: Rank, prefix: str, hidden: int) -> tuple[BesideSpec, dict[str, Cut]]:
    """A rank's part of the mixer beside the first, and how its tensors are cut; LAuReL's few columns are whole in each
    rank. Raises :class:`..config_fields.ConfigError` for one that cannot be split."""
    return (spec, {}) if isinstance(spec, LaurelSpec) else split_recurrent(spec, rank, prefix, hidden)


def _cut_short_conv(spec: ShortConvSpec, rank: Rank, prefix: str, hidden: int) -> Cuts:
    first, count = own = rank.own(spec.channels)
    into, out = spec.projections(hidden)
    yield from rank.columns(into, prefix, [tuple((part * spec.channels + first, count) for part in range(3))])
    yield from rank.rows(out, prefix, own)
    yield from _cut_convolution(f"{prefix}.{spec.name}.conv", spec.channels, (own,), spec.bias)


def _cut_delta(spec: GatedDeltaSpec, rank: Rank, prefix: str, hidden: int) -> Cuts:
    first, count = heads = rank.own(spec.v_heads)
    first_key, keys = rank.shared(spec.k_heads, "key heads")
    decays = spec.decays // spec.v_heads
    of_keys = first_key * spec.k_dim, keys * spec.k_dim
    of_values, of_decays = ((first * width, count * width) for width in (spec.v_dim, decays))
    convolved = of_keys, (spec.keys + of_keys[0], of_keys[1]), (2 * spec.keys + of_values[0], of_values[1])
    apart: list[Ranges] = [(of_keys,), (of_keys,), (of_values,)]
    ranges: list[Ranges]
    match spec.stored:
        case "by_head":
            ranges = [_by_key_head(spec, rank, 2 * spec.k_dim, spec.v_dim), _by_key_head(spec, rank, 0, 1)]
        case "by_part":
            ranges = [convolved, (of_values,), (heads,), (heads,)]
        case "fused":
            after = spec.channels, spec.channels + spec.values, spec.channels + spec.values + spec.v_heads
            parts = zip(after, (of_values, heads, heads), strict=True)
            ranges = [(*convolved, *((start + at, size) for start, (at, size) in parts))]
        case "apart":
            ranges = [*apart, (of_values,), (heads,), (heads,)]
        case "low_rank":  # the few columns that gates and decays are made of are whole in each
            ranges = [*apart, ((0, spec.v_dim),), (heads,), ((0, spec.k_dim),)]
        case "full_rank":
            ranges = [*apart, (of_values,), (heads,), (of_decays,)]
        case "full_gates":
            ranges = [*apart, (of_values,), (heads,), ((0, spec.k_dim),)]
    into, out, *low = spec.projections(hidden)
    yield from rank.columns(into, prefix, ranges)
    for projection, own in zip(low, (of_values, of_decays)[-len(low) :], strict=bool(low)):
        yield from rank.columns(projection, prefix, [(own,)])
    yield from rank.rows(out, prefix, *(_tiles(spec, rank) if spec.tiled else (of_values,)))
    convolutions = spec.convolutions
    for (name, channels), part in zip(convolutions, apart if len(convolutions) > 1 else [convolved], strict=True):
        yield from _cut_convolution(f"{prefix}.{name}", channels, part, bias=False)
    yield f"{prefix}.{spec.name}.dt_bias", Cut(0, spec.decays, (of_decays,))
    yield f"{prefix}.{spec.name}.A_log", Cut(2 if len(spec.rates) > 1 else 0, spec.v_heads, (heads,))


def _by_key_head(spec: GatedDeltaSpec, rank: Rank, before: int, width: int) -> Ranges:
    """The rank's ranges of values stored key head by key head: ``before`` of the key head itself, then twice ``width``
    of each of its value heads."""
    (first, count), (first_key, keys) = rank.own(spec.v_heads), rank.shared(spec.k_heads, "key heads")
    each = spec.v_heads // spec.k_heads
    whole = before + 2 * each * width
    start = first_key * whole
    if count == keys * each:
        return ((start, keys * whole),)
    values = start + before + (first - first_key * each) * width
    found = (start, before), (values, count * width), (values + each * width, count * width)
    return found if before else found[1:]


def _tiles(spec: GatedDeltaSpec, rank: Rank) -> Ranges:
    """The rank's ranges of value heads stored alternately: the first of every key head, then the second of every key
    head, and so on."""
    (first, count), (first_key, keys) = rank.own(spec.v_heads), rank.shared(spec.k_heads, "key heads")
    skipped = first - first_key * (spec.v_heads // spec.k_heads)
    repeats = range(skipped, skipped + count // keys)
    return tuple(((repeat * spec.k_heads + first_key) * spec.v_dim, keys * spec.v_dim) for repeat in repeats)


def _part_of_mamba2(spec: Mamba2Spec, rank: Rank) -> Mamba2Spec:
    heads, (_, groups) = rank.each(spec.heads, "heads of a state space"), rank.shared(spec.groups, "groups of B and C")
    if spec.norm == "none":
        return replace(spec, heads=heads, groups=groups)
    _, normed = rank.shared(spec.norm_groups, "groups of a norm")
    workers = max(1, rank.size // spec.norm_groups)
    return replace(spec, heads=heads, groups=groups, norm_groups=normed, norm_workers=workers)


def _cut_mamba2(spec: Mamba2Spec, rank: Rank, prefix: str, hidden: int) -> Cuts:
    first, count = heads = rank.own(spec.heads)
    first_group, groups = rank.shared(spec.groups, "groups of B and C")
    channels = first * spec.head_dim, count * spec.head_dim
    of_b = spec.inner + first_group * spec.state_dim, groups * spec.state_dim
    of_c = of_b[0] + spec.groups * spec.state_dim, of_b[1]
    convolved = channels, of_b, of_c
    behind = (spec.inner + spec.channels + first, count)
    into, out = spec.projections(hidden)
    parts = channels, *((spec.inner + start, own) for start, own in convolved), behind
    yield from rank.columns(into, prefix, [parts])
    yield from rank.rows(out, prefix, channels)
    name = f"{prefix}.{spec.name}"
    yield from _cut_convolution(f"{name}.conv1d", spec.channels, convolved, spec.conv_bias)
    yield from ((f"{name}.{which}", Cut(0, spec.heads, (heads,))) for which in ("dt_bias", "A_log", "D"))
    yield f"{name}.norm.weight", Cut(0, spec.inner, (channels,))


def _cut_mamba(spec: MambaSpec, rank: Rank, prefix: str, hidden: int) -> Cuts:
    first, count = own = rank.own(spec.inner)
    into, out, low, steps = spec.projections(hidden)
    yield from rank.columns(into, prefix, [(own, (spec.inner + first, count))])
    yield from rank.columns(steps, prefix, [(own,)])
    for projection in (out, low):
        yield from rank.rows(projection, prefix, own)
    name = f"{prefix}.{spec.name}"
    yield from _cut_convolution(f"{name}.conv1d", spec.inner, (own,), spec.conv_bias)
    yield from ((f"{name}.{which}", Cut(0, spec.inner, (own,))) for which in ("dt_proj.bias", "A_log", "D"))


def _cut_convolution(name: str, channels: int, own: Ranges, bias: bool) -> Cuts:
    yield f"{name}.weight", Cut(0, channels, own)
    if bias:
        yield f"{name}.bias", Cut(0, channels, own)
