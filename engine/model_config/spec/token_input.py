"""Describes what the first layer gets of tokens. Torch-free."""

from typing import Final, Literal

import msgspec

from ..config_fields import ConfigError
from .recurrent import StateTensor
from .streams import DIGITS


class NGramInputSpec(msgspec.Struct, frozen=True):
    """Embeddings of the last few tokens by hashes of them, projected, of which and the token's own the mean is taken
    (LongCat Flash Lite)."""

    vocab_size: int
    """Tokens."""
    rows: int
    """One less than the first table has; each further one has two more than the one before it."""
    before: int
    """Most tokens before one that an n-gram has."""
    each: int
    """Tables of n-grams of one length; the shortest, of two tokens, are first."""
    eos: int
    """The token behind which texts begin."""
    name: str = "model.ngram_embeddings"

    @property
    def count(self) -> int:
        """All tables."""
        return self.before * self.each

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows of each table."""
        return tuple(self.rows + 2 * number + 1 for number in range(self.count))

    @property
    def powers(self) -> tuple[tuple[int, ...], ...]:
        """By table, what each token before is multiplied by in a hash: powers of the vocabulary modulo the rows; 0 if
        its n-grams do not reach that token."""
        return tuple(
            tuple(
                pow(self.vocab_size, back, size) if back <= number // self.each + 1 else 0
                for back in range(1, self.before + 1)
            )
            for number, size in enumerate(self.sizes)
        )

    def dim(self, hidden: int) -> int:
        """Of one embedding."""
        return hidden // self.count

    def shapes(self, hidden: int) -> dict[str, tuple[int, ...]]:
        """Shapes of its stored tensors, by name."""
        found: dict[str, tuple[int, ...]] = {}
        for at, size in enumerate(self.sizes):
            found[f"{self.name}.embedders.{at}.weight"] = size, self.dim(hidden)
            found[f"{self.name}.post_projs.{at}.weight"] = hidden, self.dim(hidden)
        return found

    @property
    def state(self) -> StateTensor:
        """The last tokens, which the first layer's states end with."""
        return StateTensor((DIGITS * self.before, self.before), recurrent=False)

    def check(self, hidden: int) -> None:
        """Raise :class:`ConfigError` for contradictory fields."""
        if hidden % self.count:
            raise ConfigError(f"{hidden} dimensions do not divide among {self.count} embeddings of n-grams")
        if self.vocab_size >= 256**DIGITS or self.sizes[-1] >= 1 << 31:
            raise ConfigError(f"n-grams of a vocabulary of {self.vocab_size} in {self.rows} rows are not known")


class TokenInputSpec(msgspec.Struct, frozen=True):
    """(embedding · ``scale`` + position), normed; each part where the model has it."""

    scale: float = 1.0
    positions: str = ""
    """Stored name of learned positions (GPT-2); "": none."""
    rows: int = 0
    """Rows of their table; 0: as many as it takes for the longest text."""
    first: int = 0
    """The row of the first position, or what it counts as (OPT, BART, XGLM: 2)."""
    sinusoids: Literal["", "open", "closed"] = ""
    """Computed positions, sines before cosines, at frequencies from 1 to almost 1 / 10000 (Marian) or exactly that
    (M2M100, XGLM); "": none."""
    sinusoid_scale: float = 1.0
    norm: str | None = None
    """Stored name of the norm, which is of the layers' kind (Bloom); "": an RMS norm without weights; None: there is
    none."""
    norm_first: bool = False
    """Whether the norm stands before positions are added (decoder of BlenderbotSmall)."""
    sum: str = ""
    """Beginning of the stored names of a scale and a bias behind the norm (ZAYA); "": none."""

    apart: tuple[int, str] | None = None
    """A token whose embedding is stored apart under this name, and is not scaled (T5Gemma 2); None: there is none."""
    ngrams: NGramInputSpec | None = None
    """What embeddings are averaged with; None: nothing."""

    def table_rows(self, longest: int) -> int:
        """Rows of the table of learned positions of texts of up to ``longest`` tokens."""
        return self.rows or longest + self.first

    def shapes(self, longest: int, hidden: int, *, biased: bool) -> dict[str, tuple[int, ...]]:
        """Shapes of the stored tensors, by name. ``biased``: whether norms of the layers' kind have a bias."""
        found: dict[str, tuple[int, ...]] = {}
        if self.positions:
            found[f"{self.positions}.weight"] = (self.table_rows(longest), hidden)
        if self.norm:
            found[f"{self.norm}.weight"] = (hidden,)
            if biased:
                found[f"{self.norm}.bias"] = (hidden,)
        if self.sum:
            found |= {f"{self.sum}_{which}": (hidden,) for which in ("scale", "bias")}
        if self.apart is not None:
            found[self.apart[1]] = (hidden,)
        return found if self.ngrams is None else found | self.ngrams.shapes(hidden)


EMBEDDINGS: Final = TokenInputSpec()
"""They alone."""
