"""What the plots draw, read back from matplotlib's axes and from the SVG."""

import xml.etree.ElementTree as ET
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stentor.loadtest.record import RequestRecord
from stentor.loadtest.report.plots import (
    RESULT_PLOTS,
    STARTUP_PLOTS,
    STEP_PLOTS,
    SWEEP_PLOTS,
    Plot,
    gaps_over_time,
    in_flight,
    latencies,
    output_rate,
    percentile_over_time,
    render,
    wide,
)
from stentor.tests.loadtest.report.synthetic import lively, request, result, startup, steps, sweep

NAMESPACE = "{http://www.w3.org/2000/svg}"
SIZE = {"width": 600, "height": 360}


def _drawn(plot: Plot, records: list[Any]) -> Axes:
    axes = Figure().subplots()
    plot.draw(axes, records)
    return axes


def _labels(axes: Axes) -> list[str]:
    return axes.get_legend_handles_labels()[1]


def _points(axes: Axes) -> list[list[list[float]]]:
    return [np.asarray(line.get_xydata()).tolist() for line in axes.lines]


def _texts(svg: str) -> list[str]:
    return ["".join(text.itertext()) for text in ET.fromstring(svg).iter(f"{NAMESPACE}text")]


@pytest.mark.proof(each="plots")
@pytest.mark.parametrize(
    ("plots", "records"),
    [
        (RESULT_PLOTS, [result(lively(count=60), limits={"ttft": 300.0})]),
        (SWEEP_PLOTS, [sweep({1: [100, 90, 95], 8: [400, 410, 420]})]),
        (STARTUP_PLOTS, [startup([(True, 4.0), (False, 2.0)])]),
        (STEP_PLOTS, [steps()]),
    ],
    ids=["results", "sweeps", "starts", "steps"],
)
def test_every_plot_is_a_well_formed_picture_of_its_size_with_a_title_and_named_axes(
    plots: dict[str, Plot], records: list[Any]
) -> None:
    for name, plot in plots.items():
        svg = render([plot], records, **SIZE)
        assert svg is not None
        root = ET.fromstring(svg)
        assert [float(root.attrib[side].removesuffix("pt")) for side in ("width", "height")] == [450, 270]
        assert plot.title in _texts(svg)
        assert plot.about in svg
        axes = _drawn(plot, records)
        assert axes.get_xlabel()
        assert axes.get_ylabel() or name == "startup-phases"


def test_the_same_data_make_the_same_file() -> None:
    first, second = (render([RESULT_PLOTS["itl-time"]], [result(lively(count=40))], **SIZE) for _ in range(2))
    assert first == second


def test_a_name_is_drawn_as_it_is_and_can_be_neither_markup_nor_a_formula() -> None:
    evil = "<script>$\\frac{1}$</script>\"'&"
    svg = render([SWEEP_PLOTS["output-rate"]], [sweep({evil: [100.0]}, evil, evil), sweep({evil: [50.0]})], **SIZE)
    assert svg is not None
    assert not list(ET.fromstring(svg).iter(f"{NAMESPACE}script"))
    assert _texts(svg).count(evil) == 3, "a tick, the axis and a series"


def test_nothing_to_show_is_no_picture() -> None:
    assert render([RESULT_PLOTS["ttft-cdf"]], [result()], **SIZE) is None
    assert render([SWEEP_PLOTS["goodput"]], [sweep({})], **SIZE) is None


def test_plots_of_one_picture_stand_two_a_row() -> None:
    plots = list(STEP_PLOTS.values())
    svg = render(plots, [steps()], **SIZE)
    assert svg is not None
    assert {plot.title for plot in plots} <= set(_texts(svg))


def test_points_lie_where_the_figures_say_on_axes_that_begin_at_zero_or_are_logarithmic() -> None:
    axes = _drawn(SWEEP_PLOTS["output-rate"], [sweep({1: [100], 2: [200], 8: [400]})])
    assert _points(axes) == [[[1, 100], [2, 200], [8, 400]]]
    assert (axes.get_xscale(), axes.get_yscale(), axes.get_ylim()[0]) == ("log", "linear", 0)
    assert axes.get_xticks().tolist() == [1, 2, 8]
    ttft = _drawn(SWEEP_PLOTS["ttft"], [sweep({1: [10], 8: [400]})])
    assert ttft.get_yscale() == "log", "from 250 ms to 20 s"


def test_a_sweep_plot_shows_medians_of_repeats_and_their_reach() -> None:
    axes = _drawn(SWEEP_PLOTS["output-rate"], [sweep({8: [400, 380, 500], 1: [100, 90, 95]})])
    assert _points(axes) == [[[1, 95], [8, 400]]]
    (band,) = axes.collections
    corners = np.asarray(band.get_paths()[0].vertices).tolist()
    assert {(1.0, 90.0), (1.0, 100.0), (8.0, 380.0), (8.0, 500.0)} <= {tuple(corner) for corner in corners}


def test_words_on_the_axis_keep_their_order() -> None:
    axes = _drawn(SWEEP_PLOTS["output-rate"], [sweep({"chat": [10], "completions": [20]}, axis="api")])
    assert [label.get_text() for label in axes.get_xticklabels()] == ["chat", "completions"]
    assert np.asarray(axes.lines[0].get_ydata()).tolist() == [10, 20]
    assert axes.get_xlabel() == "api"


def test_each_point_of_a_trade_off_says_its_value() -> None:
    axes = _drawn(SWEEP_PLOTS["pareto-ttft"], [sweep({1: [100], 8: [400]})])
    assert [text.get_text() for text in axes.texts] == ["1", "8"]


def test_several_runs_lie_over_one_another_by_name() -> None:
    runs = [result(lively(count=30), "ours"), result(lively(2, count=30), "theirs")]
    for name, plot in RESULT_PLOTS.items():
        assert {label.split()[0] for label in _labels(_drawn(plot, runs))} == {"ours", "theirs"}, name
    twins = [result(lively(count=30), "run"), result(lively(2, count=30), "run")]
    assert _labels(_drawn(RESULT_PLOTS["ttft-cdf"], twins)) == ["run (1)", "run (2)"]


def test_a_limit_is_drawn_where_it_does_not_squeeze_the_data() -> None:
    near = result([request(ttft=0.1), request(ttft=0.2)], limits={"ttft": 150.0})
    far = result([request(ttft=0.1), request(ttft=0.2)], limits={"ttft": 9000.0})
    plot = RESULT_PLOTS["ttft-cdf"]
    assert "limit 150 ms" in _labels(_drawn(plot, [near]))
    assert _labels(_drawn(plot, [far])) == ["run"]


def test_a_distribution_is_a_staircase_to_all_of_the_values() -> None:
    axes = _drawn(RESULT_PLOTS["ttft-cdf"], [result([request(ttft=0.1), request(ttft=0.2)])])
    assert _points(axes) == [[[100, 0], [100, 0.5], [200, 1]]]
    assert axes.lines[0].get_drawstyle() == "steps-post"


def test_starts_are_drawn_phase_after_phase() -> None:
    starts = startup([(True, 4.0), (False, 2.0), (True, 8.0), (False, 2.0), (True, 6.0)])
    axes = _drawn(STARTUP_PLOTS["startup-phases"], [starts])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["cold", "warm"]
    bars = [[(bar.get_x(), bar.get_width()) for bar in group] for group in axes.containers]
    assert bars == [[(0.0, 1.5), (0.0, 0.5)], [(1.5, 4.5), (0.5, 1.5)]]
    both = _drawn(STARTUP_PLOTS["startup-phases"], [starts, starts])
    assert next(iter(both.get_yticklabels())).get_text() == "ours, cold"


def test_curves_of_steps_are_thinned_to_six() -> None:
    axes = _drawn(STEP_PLOTS["context"], [steps(rows=range(1, 15))])
    assert _labels(axes) == [f"decode of {rows}" for rows in (1, 4, 7, 10, 13)]
    assert _points(_drawn(STEP_PLOTS["prefill"], [steps()])) == [[[16, 1.0], [32, 2.0]]]


def test_latencies_are_milliseconds_of_completed_requests() -> None:
    requests = [request(ttft=0.1, itl=(0.02, 0.04)), request(ttft=0.3, itl=()), request(ttft=0.9, error="timeout: x")]
    assert latencies(requests, "ttft").tolist() == pytest.approx([100, 300])
    assert latencies(requests, "itl").tolist() == pytest.approx([20, 40])
    assert latencies(requests, "tpot").tolist() == pytest.approx([30])
    assert latencies(requests, "e2e").tolist() == pytest.approx([160, 300])


def test_output_tokens_count_when_their_chunk_arrived() -> None:
    merged = RequestRecord(
        start=0.0,
        scheduled=0.0,
        prompt_tokens=5,
        output_tokens=6,
        ttft=0.5,
        itl=[1.0, 1.0],
        chunk_tokens=[3, 2],
        e2e=2.6,
    )
    late = request(start=1.0, ttft=0.2, itl=())
    rates = output_rate([merged, late, request(ttft=None, error="refused")], np.array([0.0, 1.0, 2.0, 4.0]))
    assert rates.tolist() == [1.0, 4.0, 1.0]


def test_requests_in_flight_rise_with_a_sending_and_fall_with_an_end() -> None:
    requests = [request(0.0, 1.0, (1.0,)), request(1.0, 0.5, ()), request(2.0, 1.0, ())]
    times, counts = in_flight(requests)
    assert (times.tolist(), counts.tolist()) == ([0.0, 1.0, 1.5, 2.0, 3.0], [1, 2, 1, 1, 0])


def test_percentiles_over_time_are_of_the_gaps_that_ended_in_each_slice() -> None:
    times, gaps = gaps_over_time([request(0.0, 0.5, (0.1, 0.2, 1.0)), request(1.0, 0.5, (0.3,))])
    assert times.tolist() == pytest.approx([0.6, 0.8, 1.8, 1.8])
    assert gaps.tolist() == pytest.approx([100, 200, 1000, 300])
    points = percentile_over_time(times, gaps, np.array([0.0, 1.0, 1.5, 2.0]), 50)
    assert [x for x, _ in points] == pytest.approx([0.5, 1.75])
    assert [y for _, y in points] == pytest.approx([150, 650])


def test_only_a_wide_spread_asks_for_a_logarithmic_axis() -> None:
    assert wide(np.geomspace(1, 100, 50))
    assert not wide(np.linspace(50, 100, 50))
    assert not wide(np.zeros(10))
