"""Describes a router of experts that is more than one product. Torch-free."""

from collections.abc import Iterator

import msgspec

from .projection import Projection


class RouterNetworkSpec(msgspec.Struct, frozen=True):
    """A router that is a network, and takes what that of the layer before computed (ZAYA)."""

    size: int
    norm_eps: float
    carries: bool
    """Whether there is a layer before."""
    name: str = "mlp.gate"

    @property
    def norm(self) -> str:
        """Stored name of its norm."""
        return f"{self.name}.router_mlp.norm"

    @property
    def scale(self) -> str:
        """Stored name of the factors on what the layer before computed."""
        return f"{self.name}.router_states_scale"

    def projections(self, hidden: int, choices: int) -> tuple[Projection, ...]:
        """From the token to its size, two of that size, and to the experts' logits."""
        inner = f"{self.name}.router_mlp"
        return (
            Projection(((f"{self.name}.down_proj", self.size),), hidden, bias=True),
            *(Projection(((f"{inner}.{each}", self.size),), self.size, bias=True) for each in ("fc1", "fc2")),
            Projection(((f"{inner}.out_proj", choices),), self.size, bias=False),
        )

    def shapes(self, prefix: str, hidden: int, choices: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Shapes of its stored tensors, by name."""
        for projection in self.projections(hidden, choices):
            yield from projection.shapes(prefix)
        yield f"{prefix}.{self.norm}.weight", (self.size,)
        if self.carries:
            yield f"{prefix}.{self.scale}", (self.size,)
