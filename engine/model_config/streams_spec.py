"""Several residual streams in place of one, and what a layer adds besides its mixer: Gemma 3n's. Torch-free."""

from collections.abc import Iterator
from dataclasses import dataclass

from .config_fields import ConfigError
from .projection import Projection

Shapes = Iterator[tuple[str, tuple[int, ...]]]

MOST_STREAMS, MOST_ITERATIONS = 16, 100
"""More than any model has."""


@dataclass(frozen=True)
class AltUpSpec:
    """Several streams of which each layer computes one, and predicts and corrects the others by what came of it
    (alternating updates, arXiv:2301.13310)."""

    streams: int
    active: int = 0
    """The stream that layers compute."""
    scaled: bool = True
    """What a layer makes its own input of is the active stream times a learned vector."""

    def outer_shapes(self, hidden: int) -> Shapes:
        """Of what makes streams of the embeddings, and one of all streams behind the last layer."""
        for name in ("altup_projections", "altup_unembed_projections"):
            yield from ((f"model.{name}.{at}.weight", (hidden, hidden)) for at in range(self.streams - 1))

    def shapes(self, prefix: str, hidden: int) -> Shapes:
        """Of what a layer has besides."""
        yield f"{prefix}.altup.correct_output_scale", (hidden,)
        yield f"{prefix}.altup.correction_coefs.weight", (self.streams, self.streams)
        yield f"{prefix}.altup.prediction_coefs.weight", (self.streams**2, self.streams)
        yield f"{prefix}.altup.modality_router.weight", (self.streams, hidden)
        yield f"{prefix}.altup.router_norm.weight", (hidden,)

    def products(self, hidden: int) -> int:
        """Elements of the matrices of a layer that a token is multiplied with: the router's, which it takes twice."""
        return 2 * self.streams * hidden + self.streams**2 * (self.streams + 1)

    def check(self) -> None:
        """Raises :class:`ConfigError`."""
        if not 1 < self.streams <= MOST_STREAMS:
            raise ConfigError(f"it has {self.streams} residual streams, expected 2 to {MOST_STREAMS}")
        if self.active >= self.streams:
            raise ConfigError(f"layers compute stream {self.active} of {self.streams}")


@dataclass(frozen=True)
class HyperSpec:
    """Several streams of which mixer and network each take a sum, and to each of which they add a multiple of their
    output; before that, the streams are mixed (manifold-constrained hyper-connections, arXiv:2512.24880). All weights
    follow from the streams."""

    streams: int
    iterations: int = 20
    """Divisions of the mixing matrix by the sums of its columns; between them, by those of its rows."""
    eps: float = 1e-6
    """Added to weights of sums, to elements of the matrix, and to sums that are divided by."""
    parts: tuple[str, str] = ("hc_attn", "hc_ffn")
    """Beginnings of the stored names, of mixer and network."""
    head: str = "hc_head"
    """Of the sum behind the last layer."""

    @property
    def weights(self) -> int:
        """Of a part, for a token: of its sum, of its output, and of the mixing matrix."""
        return self.streams * (2 + self.streams)

    def outer_shapes(self, hidden: int) -> Shapes:
        """Of what makes one stream of all behind the last layer."""
        yield f"{self.head}_fn", (self.streams, self.streams * hidden)
        yield f"{self.head}_base", (self.streams,)
        yield f"{self.head}_scale", (1,)

    def shapes(self, prefix: str, hidden: int) -> Shapes:
        """Of what a layer has besides."""
        for part in self.parts:
            yield f"{prefix}.{part}_fn", (self.weights, self.streams * hidden)
            yield f"{prefix}.{part}_base", (self.weights,)
            yield f"{prefix}.{part}_scale", (3,)

    def products(self, hidden: int) -> int:
        """Elements of the matrices of a layer that a token is multiplied with."""
        return 2 * self.weights * self.streams * hidden

    def check(self) -> None:
        """Raises :class:`ConfigError`."""
        if not 1 < self.streams <= MOST_STREAMS:
            raise ConfigError(f"it has {self.streams} residual streams, expected 2 to {MOST_STREAMS}")
        if not 1 <= self.iterations <= MOST_ITERATIONS:
            raise ConfigError(f"streams are mixed by {self.iterations} iterations, expected 1 to {MOST_ITERATIONS}")


StreamsSpec = AltUpSpec | HyperSpec


@dataclass(frozen=True)
class LaurelSpec:
    """x + norm(right(left(x))), of what the mixer beside it takes (learned augmented residual, arXiv:2411.07501)."""

    rank: int
    name: str = "laurel"

    def projections(self, hidden: int) -> tuple[Projection, Projection]:
        return (
            Projection(((f"{self.name}.linear_left", self.rank),), hidden, bias=False),
            Projection(((f"{self.name}.linear_right", hidden),), self.rank, bias=False),
        )

    def shapes(self, prefix: str, hidden: int) -> Shapes:
        """Of what a checkpoint stores of it."""
        for projection in self.projections(hidden):
            yield from projection.shapes(prefix)
        yield f"{prefix}.{self.name}.post_laurel_norm.weight", (hidden,)

    @property
    def keeps(self) -> None:
        """Nothing of a token."""
        return None

    def states(self, hidden: int) -> tuple[()]:
        return ()

    def work(self, tokens: int, context: int) -> int:
        """Multiplications and additions besides its projections: next to none."""
        return 0

    def check(self) -> None:
        """It has no parts that could contradict each other."""
