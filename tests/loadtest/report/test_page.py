"""The command that draws."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from stentor.loadtest.record import save_record
from stentor.loadtest.report.page import main
from stentor.tests.loadtest.report.synthetic import lively, result, startup, sweep


@pytest.fixture
def run(tmp_path: Path) -> Path:
    save_record(result(lively(count=40)), tmp_path / "run.json")
    return tmp_path / "run.json"


@pytest.fixture
def swept(tmp_path: Path) -> Path:
    save_record(sweep({1: [100], 8: [400]}), tmp_path / "sweep.json")
    return tmp_path / "sweep.json"


def test_a_page_goes_beside_the_first_file(run: Path, swept: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_a_single_plot_is_a_file_of_its_own(run: Path, swept: Path, tmp_path: Path) -> None:
    out = tmp_path / "plot.svg"
    assert main([str(run), "--svg", "itl-time", "--out", str(out), "--width", "900"]) == 0
    svg = ET.fromstring(out.read_text())
    assert svg.attrib["viewBox"].split()[2] == "900"
    assert main([str(swept), str(swept), "--svg", "output-rate", "--out", str(out)]) == 0
    assert not run.with_suffix(".html").exists()


@pytest.mark.parametrize(
    ("plot", "why"), [("nothing", "no plot of results is called nothing"), ("send-delay", "would be empty")]
)
def test_a_plot_that_is_not_there_is_refused(
    run: Path, plot: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(run), "--svg", plot]) == 2
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
