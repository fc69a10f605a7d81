"""Describes what the first layer gets of tokens. Torch-free."""

from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True)
class TokenInputSpec:
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
        return found


EMBEDDINGS: Final = TokenInputSpec()
"""They alone."""
