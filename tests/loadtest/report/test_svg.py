"""Drawn plots, read back as XML: what is where."""

import math
import re
import xml.etree.ElementTree as ET

import pytest

from stentor.loadtest.report.plot import Axis, Band, Bars, Dots, Heat, Line, Mark, Plot, Rule, Steps, Stretches
from stentor.loadtest.report.svg import HEIGHT, WIDTH, draw

NAMESPACE = "{http://www.w3.org/2000/svg}"


def _plot(*marks: Mark, x: Axis | None = None, y: Axis | None = None) -> Plot:
    return Plot("name", "A title", x or Axis("seconds"), y or Axis("ms"), marks, "What it shows.")


def _scale(svg: ET.Element, axis: str) -> tuple[float, float, float, float, bool]:
    low, high, start, end, log = svg.attrib[f"data-{axis}"].partition("|")[0].split()
    return float(low), float(high), float(start), float(end), log == "1"


def _vertices(element: ET.Element) -> list[tuple[float, float]]:
    found = re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", element.attrib["d"])
    return [(float(x), float(y)) for x, y in found]


def _drawn(svg: ET.Element, kind: str) -> list[ET.Element]:
    return [one for one in svg.iterfind(".//g//*") if kind in one.get("class", "").split()]


EVERY_KIND: list[Mark] = [
    Line("line", [(0, 1), (1, 2)], markers=True, labels=["a", "b"]),
    Line("dashed", [(0, 1), (1, 2)], 1, dashed=True),
    Steps("steps", [(0, 0), (1, 3)], 2),
    Dots("dots", [(0.5, 1.5)], 3),
    Dots("crosses", [(0.5, 2.5)], 4, cross=True),
    Bars("bars", [0, 0.5, 1], [1, 3], 5),
    Band("band", [0, 1], [0, 1], [1, 2], 6),
    Heat("heat", [0, 0.5, 1], [0, 1.5, 3], [[1, 0], [2, 9]], 7),
    Stretches("stretch", [(0, 0, 0.5), (1, 0.5, 1)], 8),
    Rule("upright", 0.7),
    Rule("level", 2, upright=False),
]


def test_every_mark_is_well_formed_within_a_page_and_by_itself() -> None:
    plot = _plot(*EVERY_KIND)
    assert ET.fromstring(draw(plot)).tag == "svg"
    alone = ET.fromstring(draw(plot, standalone=True))
    assert alone.tag == f"{NAMESPACE}svg"
    title, style = alone.find(f"{NAMESPACE}title"), alone.find(f"{NAMESPACE}style")
    assert title is not None
    assert title.text == "A title. What it shows."
    assert style is not None
    assert "prefers-color-scheme:dark" in (style.text or "")


def test_a_plot_tells_a_screen_reader_what_it_shows() -> None:
    svg = ET.fromstring(draw(_plot(Line("a", [(0, 1)]))))
    assert (svg.get("role"), svg.get("aria-label")) == ("img", "A title. What it shows.")


@pytest.mark.parametrize("log", [False, True])
def test_points_lie_where_the_axes_say(log: bool) -> None:
    points = [(1.0, 10.0), (2.0, 35.0), (4.0, 1000.0)]
    svg = ET.fromstring(draw(_plot(Line("a", points), y=Axis("ms", log=log))))
    (line,) = _drawn(svg, "line")
    x_low, x_high, left, right, _ = _scale(svg, "x")
    y_low, y_high, bottom, top, is_log = _scale(svg, "y")
    assert is_log == log
    assert bottom > top
    grow = math.log if log else float
    for (x, y), (px, py) in zip(points, _vertices(line), strict=True):
        assert px == pytest.approx(left + (x - x_low) / (x_high - x_low) * (right - left), abs=0.02)
        share = (grow(y) - grow(y_low)) / (grow(y_high) - grow(y_low))
        assert py == pytest.approx(bottom + share * (top - bottom), abs=0.02)


def test_labels_of_ticks_stand_at_the_pixels_of_their_values() -> None:
    svg = ET.fromstring(draw(_plot(Line("a", [(0, 0), (10, 40)]))))
    _, _, bottom, top, _ = _scale(svg, "y")
    texts = {one.text: one for one in svg.iterfind("text") if one.get("text-anchor") == "end"}
    assert float(texts["40"].attrib["y"]) == pytest.approx(top + 4, abs=0.1)
    assert float(texts["0"].attrib["y"]) == pytest.approx(bottom + 4, abs=0.1)
    assert float(texts["20"].attrib["y"]) == pytest.approx((top + bottom) / 2 + 4, abs=0.1)


def test_everything_stays_within_the_picture() -> None:
    svg = ET.fromstring(draw(_plot(*EVERY_KIND)))
    for element in svg.iter("path"):
        for x, y in _vertices(element):
            assert 0 <= x <= WIDTH
            assert 0 <= y <= HEIGHT


def test_steps_hold_until_the_next_value() -> None:
    svg = ET.fromstring(draw(_plot(Steps("a", [(0, 0), (4, 2), (10, 5)]))))
    (line,) = _drawn(svg, "line")
    vertices = _vertices(line)
    assert len(vertices) == 5
    assert vertices[1][1] == vertices[0][1]
    assert vertices[1][0] == vertices[2][0]


def test_a_bar_is_as_high_as_its_count() -> None:
    svg = ET.fromstring(draw(_plot(Bars("a", [0, 1, 2, 3], [5, 0, 10]), y=Axis("count", low=0))))
    _, y_high, bottom, top, _ = _scale(svg, "y")
    low, high = _drawn(svg, "bar")
    assert float(high.attrib["height"]) == pytest.approx(10 / y_high * (bottom - top), abs=0.02)
    assert float(high.attrib["height"]) == pytest.approx(2 * float(low.attrib["height"]), abs=0.02)
    assert float(high.attrib["y"]) + float(high.attrib["height"]) == pytest.approx(bottom, abs=0.02)


def test_a_stretch_lies_in_its_row_from_one_value_to_the_other() -> None:
    marks = Stretches("a", [(0, 0, 2), (1, 3, 4)])
    svg = ET.fromstring(draw(_plot(marks, x=Axis("seconds", low=0), y=Axis("", names=["below", "above"]))))
    low, high, left, right, _ = _scale(svg, "x")
    below, above = _drawn(svg, "bar")
    assert float(above.attrib["x"]) == pytest.approx(left + (3 - low) / (high - low) * (right - left), abs=0.02)
    assert float(below.attrib["width"]) == pytest.approx(2 * float(above.attrib["width"]), abs=0.02)
    assert float(below.attrib["y"]) > float(above.attrib["y"]) + float(above.attrib["height"])


def test_a_fuller_cell_is_darker_and_an_empty_one_is_not_drawn() -> None:
    svg = ET.fromstring(draw(_plot(Heat("a", [0, 1, 2], [0, 1, 2], [[0, 1], [100, 0]]))))
    pale, dark = sorted(_drawn(svg, "heat"), key=lambda path: float(path.attrib["fill-opacity"]))
    assert len(_vertices(pale)) == len(_vertices(dark)) == 1
    assert _vertices(dark)[0] > _vertices(pale)[0]


def test_values_that_are_not_finite_interrupt_a_line_and_do_not_stretch_the_axes() -> None:
    svg = ET.fromstring(draw(_plot(Line("a", [(0, 1), (1, math.nan), (2, math.inf), (3, 4)]))))
    (line,) = _drawn(svg, "line")
    assert re.findall("[ML]", line.attrib["d"]) == ["M", "M"]
    assert _scale(svg, "y")[1] <= 5


def test_a_limit_far_beyond_the_data_does_not_squeeze_them() -> None:
    svg = ET.fromstring(draw(_plot(Line("a", [(0, 1), (9, 4)]), Rule("far", 1e6), Rule("near", 12))))
    assert _scale(svg, "x")[1] <= 15
    assert len([path for path in svg.iter("path") if path.get("class") == "rule"]) == 1


def test_words_on_an_axis_stand_in_their_order() -> None:
    svg = ET.fromstring(draw(_plot(Line("a", [(0, 1), (1, 4)]), x=Axis("dtype", names=["bf16", "q4"]))))
    texts = {one.text: float(one.attrib["x"]) for one in svg.iterfind("text") if one.text in ("bf16", "q4")}
    assert texts["bf16"] < texts["q4"]
    (line,) = _drawn(svg, "line")
    assert [x for x, _ in _vertices(line)] == pytest.approx(list(texts.values()), abs=0.1)


def test_given_ticks_are_the_labels_and_data_keep_off_the_ends() -> None:
    svg = ET.fromstring(draw(_plot(Line("a", [(1, 1), (32, 4)]), x=Axis("streams", log=True, ticks=[1, 8, 32]))))
    assert [one.text for one in svg.iterfind("text") if one.get("text-anchor") == "middle"] == ["1", "8", "32"]
    _, _, left, right, _ = _scale(svg, "x")
    (line,) = _drawn(svg, "line")
    first, last = _vertices(line)
    assert first[0] == pytest.approx(left + 14, abs=0.1)
    assert last[0] == pytest.approx(right - 14, abs=0.1)


def test_names_from_outside_cannot_become_markup() -> None:
    evil = "<script>alert(1)</script>&\"'"
    plot = Plot(
        evil,
        evil,
        Axis(evil, names=[evil, "b"]),
        Axis(evil),
        [
            Line(evil, [(0, 1), (1, 2)], labels=[evil]),
            Bars(evil + "2", [0, 1], [1]),
            Heat(evil + "3", [0, 1], [1, 2], [[1]]),
            Rule(evil, 0.5),
        ],
        evil,
    )
    for standalone in (False, True):
        svg = ET.fromstring(draw(plot, standalone=standalone))
        assert not [element for element in svg.iter() if "script" in element.tag]
        assert evil in [element.text for element in svg.iter()]


def test_a_plot_of_nothing_says_so() -> None:
    svg = ET.fromstring(draw(_plot(Line("a", []))))
    assert "nothing to show" in [text.text for text in svg.iter("text")]
    for kind in EVERY_KIND:
        assert _plot(kind).empty == isinstance(kind, Rule)


def test_only_series_that_need_telling_apart_have_a_legend() -> None:
    one = ET.fromstring(draw(_plot(Line("a", [(0, 1)]), Band("", [0], [1], [2]))))
    two = ET.fromstring(draw(_plot(Line("a", [(0, 1)]), Line("b", [(0, 2)], 1))))
    assert [text.text for text in one.iter("text") if text.get("class") == "key"] == []
    assert [text.text for text in two.iter("text") if text.get("class") == "key"] == ["a", "b"]
