"""A dense decoder split over workers: what one of them computes, and what it takes of each stored tensor. Torch-free.

Heads and inner dimensions are split; each worker has an equal part, and what it computes of the residual stream is
summed over all behind each attention and each network (Megatron-LM, arXiv:1909.08053). Embeddings, norms and the head
are whole in each. Where there are fewer key-value heads than workers, several workers have the same one.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from .attention_spec import AttentionSpec
from .config_fields import ConfigError
from .mlp_spec import MLPSpec
from .model_spec import LayerSpec, ModelSpec
from .projection import Projection

Ranges = tuple[tuple[int, int], ...]
"""First and count of each, of one dimension."""


@dataclass(frozen=True)
class Cut:
    """What one rank takes of a stored tensor."""

    dim: int
    size: int
    """Of the dimension, whole."""
    ranges: Ranges
    zero: bool = False
    """It takes zeros in place: another adds what is stored."""


@dataclass(frozen=True)
class SplitModel:
    """One rank's part of a decoder."""

    spec: ModelSpec
    """As of a model of its own."""
    cuts: dict[str, Cut]
    """By the names of stored tensors; the others are taken whole."""


def split_model(spec: ModelSpec, rank: int, size: int) -> SplitModel:
    """Raises :class:`ConfigError` for a model that cannot be split so."""
    if type(spec) is not ModelSpec:
        raise ConfigError(f"{spec.architecture} runs on transformers' modules, which are not split")
    if spec.per_layer is not None or spec.adapters is not None:
        raise ConfigError(f"{spec.architecture} has embeddings or adapters of each layer, which are not split")
    layers = []
    cuts: dict[str, Cut] = {}
    for number, layer in enumerate(spec.layers):
        part, own = _Split(rank, size).layer(layer, f"{spec.prefix}.{number}", spec)
        layers.append(part)
        cuts.update(own)
    return SplitModel(replace(spec, layers=tuple(layers)), cuts)


@dataclass(frozen=True)
class _Split:
    rank: int
    size: int

    def layer(self, layer: LayerSpec, prefix: str, spec: ModelSpec) -> tuple[LayerSpec, dict[str, Cut]]:
        mixer, mlp = layer.mixer, layer.mlp
        if not isinstance(mixer, AttentionSpec) or not isinstance(mlp, MLPSpec) or layer.beside or layer.cross:
            parts = [part for part in (*layer.mixers, layer.cross, mlp) if part is not None]
            kinds = " and ".join(type(part).__name__.removesuffix("Spec") for part in parts)
            raise ConfigError(f"{spec.architecture} has layers of {kinds}, which are not split")
        if mixer.by_group or mixer.transposed or mlp.transposed:
            raise ConfigError(f"{spec.architecture} stores heads one after another, or transposed: it is not split")
        if mixer.shares >= 0 or mixer.qk_norm in ("full", "layer_own"):
            raise ConfigError(f"{spec.architecture} norms heads together, or shares keys of layers: it is not split")
        part = replace(mlp, inner=self._each(mlp.inner, "inner units"))
        cuts = dict(self._cut_attention(mixer, prefix, spec.hidden_size))
        cuts.update(self._cut_mlp(mlp, prefix, spec.hidden_size))
        return replace(layer, mixer=self._attention(mixer), mlp=part), cuts

    def _each(self, count: int, what: str) -> int:
        if count % self.size:
            raise ConfigError(f"{count} {what} do not divide among {self.size} workers")
        return count // self.size

    def _own(self, count: int) -> tuple[int, int]:
        """The first of its part, and how many."""
        each = count // self.size
        return self.rank * each, each

    def _kv_heads(self, spec: AttentionSpec) -> tuple[int, int]:
        """The same of key-value heads, which may be fewer than ranks."""
        if spec.kv_heads % self.size and self.size % spec.kv_heads:
            raise ConfigError(f"{spec.kv_heads} key-value heads do not divide among {self.size} workers")
        if spec.kv_heads >= self.size:
            return self._own(spec.kv_heads)
        return self.rank * spec.kv_heads // self.size, 1

    def _attention(self, spec: AttentionSpec) -> AttentionSpec:
        return replace(spec, heads=self._each(spec.heads, "query heads"), kv_heads=self._kv_heads(spec)[1])

    def _cut_attention(self, spec: AttentionSpec, prefix: str, hidden: int) -> Iterator[tuple[str, Cut]]:
        first, heads = self._own(spec.heads)
        first_kv, kv_heads = self._kv_heads(spec)
        width = spec.head_dim * (2 if spec.gated and not spec.gate else 1)
        queries = first * width, heads * width
        keys = first_kv * spec.head_dim, kv_heads * spec.head_dim
        into, out = spec.projections(hidden)
        if spec.fused:
            asked = spec.heads * width
            values = asked + spec.kv_size
            ranges: list[Ranges] = [(queries, (asked + keys[0], keys[1]), (values + keys[0], keys[1]))]
        else:
            gates = (first, heads) if spec.gate_by_head else queries
            ranges = [(queries,), *[(gates,)] * (len(into.parts) - 3), (keys,), (keys,)]
        yield from _columns(into, prefix, ranges)
        yield from self._rows(out, prefix, (first * spec.head_dim, heads * spec.head_dim))
        if spec.sinks:
            yield f"{prefix}.{spec.name}.sinks", Cut(0, spec.heads, ((first, heads),))

    def _cut_mlp(self, spec: MLPSpec, prefix: str, hidden: int) -> Iterator[tuple[str, Cut]]:
        first, inner = self._own(spec.inner)
        into, out = spec.projections(hidden)
        together = spec.gated and len(into.parts) == 1
        ranges: Ranges = ((first, inner), (spec.inner + first, inner)) if together else ((first, inner),)
        yield from _columns(into, prefix, [ranges] * len(into.parts))
        yield from self._rows(out, prefix, (first, inner))

    def _rows(self, projection: Projection, prefix: str, own: tuple[int, int]) -> Iterator[tuple[str, Cut]]:
        """Of some inputs; the first rank adds the bias."""
        for name, shape in projection.shapes(prefix):
            if len(shape) == 2:
                yield name, Cut(1, shape[1], (own,))
            elif self.rank:
                yield name, Cut(0, shape[0], ((0, shape[0]),), zero=True)


def _columns(projection: Projection, prefix: str, ranges: Iterable[Ranges]) -> Iterator[tuple[str, Cut]]:
    """Of some outputs of each part."""
    own = {f"{prefix}.{name}": each for (name, _), each in zip(projection.parts, ranges, strict=True)}
    for name, shape in projection.shapes(prefix):
        yield name, Cut(0, shape[0], own[name.rpartition(".")[0]])
