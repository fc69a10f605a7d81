"""Colours and type, light and dark, as plain classes: no custom properties, so that any SVG renderer reads them."""

from collections.abc import Sequence
from typing import Final

LIGHT: Final = ("#2563eb", "#d9480f", "#0f8a5f", "#9333ea", "#b8860b", "#c2255c", "#0b7285", "#5c6370")
DARK: Final = ("#7aa2ff", "#ff9457", "#4fd1a0", "#c792ff", "#e5c04b", "#ff7fae", "#4fc8dd", "#aab2c0")
"""Told apart in every common kind of colour blindness for the first four; dashes and marker shapes help the rest."""

_FONT: Final = "font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans','DejaVu Sans',sans-serif"


def plot_style() -> str:
    """The style sheet that every drawn plot needs once: in its own file, or in the page around it."""
    fixed = [
        f".plot text{{{_FONT};font-size:11px;font-variant-numeric:tabular-nums}}",
        ".plot .heading{font-size:13px;font-weight:600}",
        ".plot .line{fill:none;stroke-width:1.75;stroke-linejoin:round;stroke-linecap:round}",
        ".plot .dashed{stroke-dasharray:5 4}",
        ".plot .dots{fill:none;stroke-width:4;stroke-linecap:round;stroke-opacity:.55}",
        ".plot .cross{fill:none;stroke-width:1.5}",
        ".plot .band{stroke:none;fill-opacity:.16}",
        ".plot .bar{stroke:none;fill-opacity:.75}",
        ".plot .heat{stroke:none}",
        ".plot .rule{fill:none;stroke-width:1.25;stroke-dasharray:2 3}",
    ]
    dark = "".join(_colours(DARK, "#14171c", "#e6e8eb", "#9aa3ae", "#2b3038"))
    light = _colours(LIGHT, "#ffffff", "#1b1f24", "#5b6570", "#e3e6ea")
    return "\n".join([*fixed, *light, f"@media (prefers-color-scheme:dark){{{dark}}}"])


def _colours(series: Sequence[str], paper: str, ink: str, muted: str, grid: str) -> list[str]:
    return [
        f".plot .paper{{fill:{paper}}}",
        f".plot text{{fill:{muted}}}",
        f".plot .heading,.plot .key{{fill:{ink}}}",
        f".plot .grid{{stroke:{grid};fill:none}}",
        f".plot .axis,.plot .rule{{stroke:{muted}}}",
        *(
            f".plot .s{number}{{stroke:{colour}}}.plot .f{number}{{fill:{colour}}}"
            for number, colour in enumerate(series)
        ),
    ]
