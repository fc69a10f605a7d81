"""Describes lightning attention, whose state is of fixed size. Torch-free."""

from collections.abc import Sequence

from ..config_fields import ConfigError
from .positions import RopeConfig
from .projection import Projection
from .recurrent import Shapes, StateTensor, WithoutCache


class LightningSpec(WithoutCache, frozen=True):
    """Linear attention whose heads forget at fixed rates (lightning attention, arXiv:2401.04658), before a gated norm
    (MiniMax-01, arXiv:2501.08313; Ling 2.5)."""

    rates: tuple[float, ...]
    """A head's state is multiplied by exp(-rate) for each token."""
    head_dim: int
    by_head: bool = True
    """Whether queries, keys and values are stored head by head, not all queries first."""
    activated: bool = True
    """Whether they pass through SiLU."""
    head_norms: tuple[str, str] | None = None
    """Names of norms of the heads of queries and keys."""
    head_eps: float = 1e-6
    rope: RopeConfig | None = None
    """Rotates queries and keys behind these norms."""
    scale: float = 1.0
    """Factor on what is read of a state."""
    norm_groups: int = 1
    """Parts of all heads that are normed apart."""
    norm_eps: float = 1e-6
    norm_workers: int = 1
    """Workers that have a part of the heads, which are normed together."""
    name: str = "self_attn"
    into: tuple[str, str] = ("qkv_proj", "output_gate")
    norm: str = "norm"
    out: str = "out_proj"

    @property
    def heads(self) -> int:
        return len(self.rates)

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    def projections(self, hidden: int) -> tuple[Projection, Projection]:
        """The projections to queries, keys and values, and gates; and out."""
        sizes = 3 * self.inner, self.inner
        into = tuple((f"{self.name}.{part}", size) for part, size in zip(self.into, sizes, strict=True))
        return (
            Projection(into, hidden, bias=False),
            Projection(((f"{self.name}.{self.out}", hidden),), self.inner, bias=False),
        )

    def shapes(self, prefix: str, hidden: int) -> Shapes:
        """Shapes of its stored tensors, by name."""
        for projection in self.projections(hidden):
            yield from projection.shapes(prefix)
        yield f"{prefix}.{self.name}.{self.norm}.weight", (self.inner,)
        for name in self.head_norms or ():
            yield f"{prefix}.{self.name}.{name}.weight", (self.head_dim,)

    def states(self, hidden: int) -> tuple[StateTensor, ...]:
        return (StateTensor((self.heads, self.head_dim, self.head_dim), recurrent=True),)

    def work(self, tokens: int, context: int) -> int:
        """Multiplications and additions besides projections: the state is scaled, updated and read."""
        return 5 * tokens * self.inner * self.head_dim

    def check(self) -> None:
        """Raise :class:`..config_fields.ConfigError` if the norm's groups do not divide the heads' numbers."""
        if self.inner % self.norm_groups:
            raise ConfigError(f"group_norm_size is {self.norm_groups}, expected a divisor of {self.inner}")


def lightning_rates(slopes: Sequence[float], depth: float) -> tuple[float, ...]:
    """Rates of a layer's heads, smaller in later layers; ``depth``: of the layer, from 0 to 1."""
    factor = 1 - depth + 1e-5
    return tuple(slope * factor for slope in slopes)
