"""Whole pages: what stands in them, and that nothing from outside becomes markup."""

from html.parser import HTMLParser
from pathlib import Path

import pytest
from msgspec.structs import replace

from stentor.loadtest.record import Result, Spread, Sweep
from stentor.loadtest.report.html import ReportError, write_html, write_startup_html, write_sweep_html
from stentor.loadtest.report.result_plots import RESULT_PLOTS, result_plots
from stentor.loadtest.report.startup_plots import startup_phases
from stentor.loadtest.report.sweep_plots import SWEEP_PLOTS, sweep_plots
from stentor.tests.loadtest.report.synthetic import lively, request, result, startup, summary, sweep

VOID = {"meta", "link", "br", "img"}
EVIL = "<script>alert(1)</script>\"'&"


class _Page(HTMLParser):
    """Texts, elements and their nesting; an end without its start fails."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(path.read_text())
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            assert not name.startswith("on")
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href", "xlink:href"):
                self.links.append(value or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] not in (["script"], ["style"]):
            self.text += data


def test_a_report_shows_headlines_every_plot_and_the_circumstances(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    one = result(lively(), of=summary(rate=1234, share=0.93), limits={"ttft": 300.0})
    write_html([one], path, "A run")
    page = _Page(path)
    for text in (
        "A run",
        "Output tokens/s1,234",
        "93.0%",
        "TTFT ≤ 300 ms",
        "stentor bench serve",
        "a processor",
        "1 timeout",
    ):
        assert text in page.text
    assert page.ids == [name for name in RESULT_PLOTS if name != "send-delay"]


def test_a_report_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_html([result(lively(count=50))], path, "A run")
    page = _Page(path)
    assert page.links == []
    assert page.tags.count("script") == 1
    text = path.read_text()
    assert "default-src 'none'" in text
    assert "@import" not in text
    assert "url(" not in text


def test_what_users_and_servers_say_cannot_become_markup(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    failed = request(error=f"kind {EVIL}: {EVIL}")
    one = result(
        [*lively(count=20), failed],
        name=EVIL,
        of=summary(),
        command=["stentor", EVIL],
        workload={EVIL: EVIL},
        machine={"cpu": EVIL},
        limits={EVIL: 5.0},
        metrics_after={EVIL: 1.0},
    )
    for results in ([one], [one, one]):
        write_html(results, path, EVIL)
        page = _Page(path)
        assert page.tags.count("script") == 1
        assert EVIL in page.text
    write_sweep_html([sweep({EVIL: [100.0]}, EVIL, EVIL)], path, EVIL)
    assert _Page(path).tags.count("script") == 1


def test_several_runs_lie_over_one_another_by_name() -> None:
    runs = [result(lively(count=30), "ours"), result(lively(2, count=30), "theirs")]
    for plot in result_plots(runs):
        labels = {mark.label for mark in plot.marks if mark.label}
        if plot.name != "errors":
            assert {label.split()[0] for label in labels} == {"ours", "theirs"}
    twins = [result(lively(count=30), "run"), result(lively(2, count=30), "run")]
    assert [mark.label for mark in RESULT_PLOTS["ttft-cdf"](twins).marks] == ["run (1)", "run (2)"]


def test_a_run_of_errors_alone_still_has_a_report(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    failed = [request(ttft=None, itl=(), error="refused: nobody there")] * 3
    nothing = replace(
        summary(rate=0), completed=0, errors=3, errors_by_kind={"refused": 3}, ttft=Spread(), itl=Spread()
    )
    write_html([result(failed, of=nothing)], path, "Down")
    page = _Page(path)
    assert "errors" in page.ids
    assert "refused: nobody there" in page.text
    assert "ttft-cdf" not in page.ids


def test_a_run_saved_without_its_requests_has_figures_and_no_plots(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_html([result()], path, "Brief")
    assert _Page(path).ids == []
    assert "TTFT" in _Page(path).text


def test_a_sweep_report_draws_the_sweeps_together_and_tables_each(tmp_path: Path) -> None:
    path = tmp_path / "sweep.html"
    ours = sweep({1: [100, 90, 95], 8: [400, 410, 420]})
    theirs = sweep({1: [50], 8: [200]}, "theirs")
    write_sweep_html([ours, theirs], path, "Both")
    page = _Page(path)
    assert page.ids == list(SWEEP_PLOTS)
    assert page.tags.count("table") >= 2
    assert "410" in page.text


def test_starts_are_drawn_phase_after_phase(tmp_path: Path) -> None:
    path = tmp_path / "startup.html"
    starts = startup([(True, 4.0), (False, 2.0), (True, 8.0), (False, 2.0), (True, 6.0)])
    write_startup_html([starts], path, "Starts")
    page = _Page(path)
    assert page.ids == ["startup-phases"]
    assert "6.00" in page.text
    plot = startup_phases([starts])
    assert list(plot.y.names) == ["warm", "cold"]
    assert [mark.stretches for mark in plot.marks] == [  # type: ignore[union-attr]
        [(0, 0.0, 0.5), (1, 0.0, 1.5)],
        [(0, 0.5, 2.0), (1, 1.5, 6.0)],
    ]
    assert list(startup_phases([starts, starts]).y.names)[-1] == "ours, cold"


def test_sweeps_over_different_axes_are_not_drawn_together(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="sweeps over concurrency and rate"):
        write_sweep_html([sweep({1: [1]}), sweep({1: [1]}, axis="rate")], tmp_path / "x.html", "x")
    with pytest.raises(ReportError, match="no sweep"):
        write_sweep_html([], tmp_path / "x.html", "x")
    with pytest.raises(ReportError, match="no result"):
        write_html([], tmp_path / "x.html", "x")


def test_a_sweep_plot_shows_medians_of_repeats_and_their_reach() -> None:
    band, line = SWEEP_PLOTS["output-rate"]([sweep({8: [400, 380, 500], 1: [100, 90, 95]})]).marks
    assert line.points == [(1, 95), (8, 400)]  # type: ignore[union-attr]
    assert (band.low, band.high) == ([90, 380], [100, 500])  # type: ignore[union-attr]


def test_words_on_the_axis_keep_their_order() -> None:
    plot = SWEEP_PLOTS["output-rate"]([sweep({"chat": [10], "completions": [20]}, axis="api")])
    assert list(plot.x.names) == ["chat", "completions"]
    assert [mark.points for mark in plot.marks] == [[(0, 10), (1, 20)]]  # type: ignore[union-attr]


def test_each_plot_of_sweeps_goes_by_its_name() -> None:
    sweeps: list[Sweep] = [sweep({1: [100], 8: [400]})]
    assert [plot.name for plot in sweep_plots(sweeps)] == list(SWEEP_PLOTS)
    assert [make(sweeps).name for make in SWEEP_PLOTS.values()] == list(SWEEP_PLOTS)
    runs: list[Result] = [result(lively(count=20))]
    assert [make(runs).name for make in RESULT_PLOTS.values()] == list(RESULT_PLOTS)
