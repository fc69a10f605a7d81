"""``stentor bench report``: saved results as one HTML file, or a single plot as SVG."""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from ..record import RecordError, Result, Startup, Sweep, load_record
from .html import ReportError, check_axes, write_html, write_startup_html, write_sweep_html
from .plot import Plot
from .result_plots import RESULT_PLOTS
from .startup_plots import STARTUP_PLOTS
from .svg import draw
from .sweep_plots import SWEEP_PLOTS

_WIDTH: Final = 760
_HEIGHT: Final = 400


def main(argv: list[str]) -> int:
    """0 written, 2 used wrongly."""
    options = _parser().parse_args(argv)
    try:
        if options.out and not options.svg:
            raise ReportError("--out is for --svg: name the page by --html")
        records = [load_record(path) for path in options.files]
        kind = _kind(records)
        title = options.title or " and ".join(dict.fromkeys(record.name for record in records))
        if options.svg:
            out = options.out or Path(f"{options.svg}.svg")
            write_svg(records, options.svg, out, width=options.width, height=options.height)
            print(out)
        if options.html or not options.svg:
            out = options.html or options.files[0].with_suffix(".html")
            kind.write([*records], out, title)
            print(out)
    except (RecordError, ReportError) as error:
        print(f"stentor bench report: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"stentor bench report: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    return 0


def write_svg(
    records: Sequence[Result | Sweep | Startup], name: str, path: Path, *, width: int = _WIDTH, height: int = _HEIGHT
) -> None:
    """One plot of results, of sweeps or of starts as a file of its own. Raises :class:`ReportError`."""
    kind = _kind(records)
    if name not in kind.plots:
        raise ReportError(f"no plot of {kind.name} is called {name}: expected one of {', '.join(kind.plots)}")
    sweeps = [record for record in records if isinstance(record, Sweep)]
    if sweeps:
        check_axes(sweeps)
    plot = kind.plots[name](records)
    if plot.empty:
        raise ReportError(f"plot {name} would be empty: what was saved has nothing of it (was it saved with requests?)")
    path.write_text(draw(plot, width=width, height=height, standalone=True) + "\n", encoding="utf-8")


class _Kind(NamedTuple):
    """What can be drawn of one kind of record."""

    name: str
    plots: Mapping[str, Callable[[Any], Plot]]
    write: Callable[[Any, Path, str], None]


_KINDS: Final = {
    Result: _Kind("results", RESULT_PLOTS, write_html),
    Sweep: _Kind("sweeps", SWEEP_PLOTS, write_sweep_html),
    Startup: _Kind("starts", STARTUP_PLOTS, write_startup_html),
}


def _kind(records: Sequence[Result | Sweep | Startup]) -> _Kind:
    kinds = {type(record) for record in records}
    if len(kinds) != 1:
        found = ", ".join(sorted({record.kind for record in records})) or "none"
        raise ReportError(f"files of kinds {found}: expected one kind in a report")
    return _KINDS[kinds.pop()]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stentor bench report",
        description="Draws what `stentor bench serve`, `stentor bench sweep` or `stentor bench startup` saved. Several "
        "files of one kind lie over one another. Without --html and --svg, the page goes beside the first file.",
        epilog=f"Plots of results: {', '.join(RESULT_PLOTS)}. Plots of sweeps: {', '.join(SWEEP_PLOTS)}. "
        f"Of starts: {', '.join(STARTUP_PLOTS)}.",
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="what they saved")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the page here")
    parser.add_argument("--svg", metavar="PLOT", help="write one plot as SVG; names below")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where --svg goes (default PLOT.svg)")
    parser.add_argument("--title", help="heading of the page (default: the names of what was run)")
    parser.add_argument("--width", type=int, default=_WIDTH, help=f"of the SVG, in pixels (default {_WIDTH})")
    parser.add_argument("--height", type=int, default=_HEIGHT, help=f"of the SVG, in pixels (default {_HEIGHT})")
    return parser
