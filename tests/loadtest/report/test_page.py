"""Whole pages: what stands in them, and that nothing from outside becomes markup; and the command that draws."""

import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest
from msgspec.structs import replace

from stentor.loadtest.record import Result, Saved, Spread, Sweep, save_record
from stentor.loadtest.report.page import main, write_html
from stentor.loadtest.report.plots import RESULT_PLOTS, STEP_PLOTS, SWEEP_PLOTS, Plot
from stentor.loadtest.tool import UsageError
from stentor.tests.loadtest.report.synthetic import lively, request, result, startup, steps, summary, sweep

RESULTS = Path(__file__).parents[3] / "loadtest" / "results"

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


@pytest.fixture
def run(tmp_path: Path) -> Path:
    save_record(result(lively(count=40)), tmp_path / "run.json")
    return tmp_path / "run.json"


@pytest.fixture
def swept(tmp_path: Path) -> Path:
    save_record(sweep({1: [100], 8: [400]}), tmp_path / "sweep.json")
    return tmp_path / "sweep.json"


def test_a_page_goes_beside_the_first_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, swept = tmp_path / "run.json", tmp_path / "sweep.json"
    save_record(result(), run)  # neither has anything to draw, which takes longest
    save_record(sweep({}), swept)
    assert main([str(run)]) == main([str(swept)]) == 0
    assert run.with_suffix(".html").is_file()
    assert swept.with_suffix(".html").is_file()
    assert capsys.readouterr().out.split() == [str(run.with_suffix(".html")), str(swept.with_suffix(".html"))]


def test_starts_have_a_page_and_a_plot(tmp_path: Path) -> None:
    path = tmp_path / "startup.json"
    save_record(startup([(True, 4.0), (False, 2.0)]), path)
    assert main([str(path), "--svg", "startup-phases", "--out", str(tmp_path / "x.svg")]) == main([str(path)]) == 0
    assert "importing" in [text.text for text in ET.fromstring((tmp_path / "x.svg").read_text()).iter()]
    assert "importing" in path.with_suffix(".html").read_text()


def test_the_committed_picture_of_steps_is_drawn_from_the_committed_figures(tmp_path: Path) -> None:
    plots = ["--svg", ",".join(STEP_PLOTS), "--width", "1040", "--height", "640", "--out", str(tmp_path / "steps.svg")]
    assert main([str(RESULTS / "2026-11-steps-cpu.json"), *plots]) == 0
    drawn, kept = (
        [text.text for text in ET.parse(file).getroot().iter("{http://www.w3.org/2000/svg}text")]
        for file in (tmp_path / "steps.svg", RESULTS / "steps.svg")
    )
    assert drawn == kept


def test_a_single_plot_is_a_file_of_its_own(run: Path, swept: Path, tmp_path: Path) -> None:
    out = tmp_path / "plot.svg"
    assert main([str(run), "--svg", "itl-time", "--out", str(out), "--width", "900"]) == 0
    svg = ET.fromstring(out.read_text())
    assert svg.attrib["width"] == "675pt", "900 pixels of CSS"
    assert main([str(swept), str(swept), "--svg", "output-rate", "--out", str(out)]) == 0
    assert not run.with_suffix(".html").exists()


@pytest.mark.parametrize(
    ("plot", "why"), [("nothing", "no plot of a serve is called nothing"), ("ttft-cdf", "would be empty")]
)
def test_a_plot_that_is_not_there_is_refused(
    tmp_path: Path, plot: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save_record(result(), tmp_path / "run.json")
    assert main([str(tmp_path / "run.json"), "--svg", plot]) == 2
    assert why in capsys.readouterr().err


def test_where_a_plot_goes_is_not_taken_for_where_the_page_goes(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(run), "--out", str(tmp_path / "x.html")]) == 2
    assert "--out is for --svg: name the page by --html" in capsys.readouterr().err
    assert not run.with_suffix(".html").exists()


def test_results_and_sweeps_do_not_mix(run: Path, swept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(run), str(swept)]) == 2
    assert "files of kinds serve, sweep" in capsys.readouterr().err


def test_a_file_of_something_else_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.json").write_text("{}")
    assert main([str(tmp_path / "x.json")]) == 2
    assert main([str(tmp_path / "missing.json")]) == 2
    assert capsys.readouterr().err.count("stentor bench report: ") == 2


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    one = result(lively(count=60), of=summary(rate=1234, share=0.93), limits={"ttft": 300.0})
    write_html([one], path, "A run")
    return path


def test_a_report_shows_headlines_every_plot_and_the_circumstances(report: Path) -> None:
    page = _Page(report)
    for text in (
        "A run",
        "output tokens/s1,234",
        "93.0%",
        "limit of TTFT300 ms",
        "stentor bench serve",
        "a processor",
        "timeout1",
    ):
        assert text in page.text
    assert page.ids == list(RESULT_PLOTS)


def test_a_report_needs_nothing_from_elsewhere(report: Path) -> None:
    page = _Page(report)
    assert all(link.startswith("data:image/svg+xml;base64,") for link in page.links)
    assert page.tags.count("img") == len(page.ids) > 0
    assert "script" not in page.tags
    text = report.read_text()
    assert "default-src 'none'" in text
    assert "@import" not in text
    assert "url(" not in text


def test_what_users_and_servers_say_cannot_become_markup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # one of each way in which a name, a value or an axis comes into a picture
    few: dict[type[Saved], dict[str, Plot]] = {Result: {"ttft-cdf": RESULT_PLOTS["ttft-cdf"]}}
    few[Sweep] = {name: SWEEP_PLOTS[name] for name in ("output-rate", "pareto-tpot")}
    monkeypatch.setattr("stentor.loadtest.report.page.PLOTS", few)
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
        assert "script" not in page.tags
        assert EVIL in page.text
        assert page.ids == ["ttft-cdf"]
    write_html([sweep({EVIL: [100.0]}, EVIL, EVIL)], path, EVIL)
    page = _Page(path)
    assert "script" not in page.tags
    assert len(page.ids) == 2


def test_a_run_of_errors_alone_still_has_a_report(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    failed = [request(ttft=None, itl=(), error="refused: nobody there")] * 3
    nothing = replace(
        summary(rate=0), completed=0, errors=3, errors_by_kind={"refused": 3}, ttft=Spread(), itl=Spread()
    )
    write_html([result(failed, of=nothing)], path, "Down")
    page = _Page(path)
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
    write_html([ours, theirs], path, "Both")
    page = _Page(path)
    assert page.ids == list(SWEEP_PLOTS)
    assert page.tags.count("table") >= 2
    assert "410" in page.text


def test_a_page_of_starts_has_the_median_of_each_phase(tmp_path: Path) -> None:
    path = tmp_path / "startup.html"
    starts = startup([(True, 4.0), (False, 2.0), (True, 8.0), (False, 2.0), (True, 6.0)])
    write_html([starts], path, "Starts")
    page = _Page(path)
    assert page.ids == ["startup-phases"]
    assert "6.00" in page.text


def test_sweeps_over_different_axes_are_not_drawn_together(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="sweeps over concurrency and rate"):
        write_html([sweep({1: [1]}), sweep({1: [1]}, axis="rate")], tmp_path / "x.html", "x")
    with pytest.raises(UsageError, match="files of kinds none"):
        write_html([], tmp_path / "x.html", "x")


def test_a_page_of_steps_has_every_plot_and_a_table_a_kind(tmp_path: Path) -> None:
    path = tmp_path / "steps.html"
    write_html([steps()], path, "Steps")
    page = _Page(path)
    assert page.ids == list(STEP_PLOTS)
    assert page.tags.count("table") >= 3
