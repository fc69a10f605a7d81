"""Describes a transformer block whose weights several layers share, as values (Zamba, Zamba2). Torch-free."""

from collections.abc import Iterator

import msgspec

from ..config_fields import ConfigError
from .attention import AttentionSpec
from .cache import CacheSpec
from .mlp import OWN_ACTIVATIONS, MLPSpec
from .projection import Projection


class SharedBlockSpec(msgspec.Struct, frozen=True):
    """linear(network(norm(attention(norm(x | e))))) of the stream x and the embeddings e, which is added to the input
    of the layer's mixer alone (Zamba2, arXiv:2411.15242).

    The layers of :attr:`source` share all but ``linear`` and additions of low rank, which each layer has of its own.
    """

    attention: AttentionSpec
    """Of twice the hidden size."""
    mlp: MLPSpec
    source: int
    """The layer under which files store what is shared."""
    use: int
    """Its number among all layers with such a block."""
    rank: int
    """Of the additions; 0: there are none (Zamba)."""
    adapts_attention: bool
    """Whether queries, keys and values have additions too."""
    name: str = "shared_transformer"
    linear: str = "linear"

    @property
    def norms(self) -> tuple[str, str]:
        """Stored names of the norms, of twice the hidden size and of the hidden size."""
        return f"{self.name}.input_layernorm", f"{self.name}.pre_ff_layernorm"

    def out(self, hidden: int) -> Projection:
        """The layer's own projection."""
        return Projection(((self.linear, hidden),), hidden, False)

    def additions(self, hidden: int) -> tuple[tuple[Projection, tuple[Projection, ...]], ...]:
        """The low-rank additions of this use of the block: to queries, keys and values, if it adapts attention, and to
        gate and up. Each is one projection down to all ranks, and a projection up for each part.

        They are stored beside the shared weights.
        """
        if not self.rank:
            return ()
        heads = self.attention
        wanted = []
        if self.adapts_attention:
            sizes = (("q", heads.q_size), ("k", heads.kv_size), ("v", heads.kv_size))
            lists = tuple((f"{heads.name}.linear_{which}_adapter_list", size) for which, size in sizes)
            wanted.append((lists, heads.inputs * hidden))
        wanted.append((((f"{self.name}.feed_forward.gate_up_proj_adapter_list", 2 * self.mlp.inner),), hidden))
        return tuple(
            (
                Projection(tuple((f"{each}.{self.use}.0", self.rank) for each, _ in lists), inputs, False),
                tuple(Projection(((f"{each}.{self.use}.1", size),), self.rank, False) for each, size in lists),
            )
            for lists, inputs in wanted
        )

    def projections(self, hidden: int) -> tuple[Projection, ...]:
        """All products of a token."""
        low = (each for down, ups in self.additions(hidden) for each in (down, *ups))
        return (*self.attention.projections(hidden), *self.mlp.projections(hidden), self.out(hidden), *low)

    def shapes(self, prefix: str, source: str, hidden: int, *, shared: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Shapes of the stored tensors of the layer with this ``prefix``, and if ``shared`` of the block, by name.

        ``source``: prefix of the layer under which files store the block.
        """
        if shared:
            yield from self.attention.shapes(source, hidden)
            yield from self.mlp.shapes(source, hidden)
            for name, size in zip(self.norms, (self.attention.inputs * hidden, hidden), strict=True):
                yield f"{source}.{name}.weight", (size,)
        for down, ups in self.additions(hidden):
            for projection in (down, *ups):
                yield from projection.shapes(source)
        yield from self.out(hidden).shapes(prefix)

    @property
    def keeps(self) -> CacheSpec | None:
        """The cache of one such layer."""
        return self.attention.keeps

    def work(self, tokens: int, context: int) -> int:
        """Multiplications and additions besides products."""
        return self.attention.work(tokens, context)

    def check(self) -> None:
        """Raise :class:`ConfigError` for contradictory fields."""
        self.attention.check()
        self.mlp.check()
        if self.attention.window or self.attention.qk_norm != "none" or self.attention.gated:
            raise ConfigError("a shared block with more than plain attention is not known")
        if self.mlp.activation in OWN_ACTIVATIONS or (self.rank and len(self.mlp.into) != 1):
            raise ConfigError(
                f"a shared block with {self.mlp.activation}, or additions to gate and up apart, is not known"
            )
