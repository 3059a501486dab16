"""Figures from small results: they show exactly the known values."""

import inspect
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import numpy
from matplotlib.figure import Figure

from replicated_namesrv.spark import charts
from replicated_namesrv.spark.analysis import Results
from replicated_namesrv.spark.curves import KV
from tests.support.places import assert_same_names


def results_of(runs: list[dict[str, Any]], **rows: list[dict[str, Any]]) -> Results:
    """Results with these rows only."""
    nothing: dict[str, Any] = {field.name: [] for field in fields(Results)}
    return Results(**{**nothing, "folders": {}, "runs": runs, **rows})


def test_mean_divergence_never_exceeds_one() -> None:
    """A point of the line is the mean over the runs of the greatest value in each run near this time, not a sum."""
    runs = [{"run": run, "mode": "ap", "scenario": "cut"} for run in ("a", "b")]
    curve = [{"run": run, "at_s": number / 20, "divergence": 1.0, "possible": 1.0} for run in ("a", "b") for number in range(40)]
    faults = [{"run": run, "steady_s": -1.0, "end_s": 1.0, "until_s": 4.0} for run in ("a", "b")]
    results = results_of(runs, divergence=curve, faults=faults)
    canvas = Figure()
    axes = canvas.add_subplot()
    assert set(charts._divergence([axes], results)) == {"a", "b"}
    line, _ = axes.get_lines()
    heights = numpy.asarray(line.get_ydata()).tolist()
    assert heights[:6] == [0.0] * 2 + [1.0] * 4
    assert heights[-1] == 0.0


def test_a_node_stands_with_most_of_those_that_answer() -> None:
    """Half is not a majority. A node without an answer belongs to no side."""
    said = {"n1": (7, 7, 7, None), "n2": (7, 7, 8, None), "n3": (7, 8, None, 9)}
    rows = [
        {"run": "a", "node": node, "at_s": at / 2 - 1, "width_s": 0.5, "answer": answer}
        for node, answers in said.items()
        for at, answer in enumerate(answers)
        if answer is not None
    ]
    runs = [{"run": "a", "mode": "ap", "scenario": "cut", "seed": 1, "nodes": 3}]
    faults = [{"run": "a", "steady_s": -1.0, "end_s": 0.5, "until_s": 1.0}]
    axes = Figure().subplots(1, 2)
    assert list(charts._standings(axes, results_of(runs, pair_standings=rows, faults=faults))) == ["a"]
    assert [axis.get_visible() for axis in axes] == [True, False], "CP was not run"
    none, as_most, otherwise = range(3)
    assert numpy.asarray(axes[0].get_images()[0].get_array()).tolist() == [
        [as_most, as_most, otherwise, none],
        [as_most, as_most, otherwise, none],
        [as_most, otherwise, none, as_most],
    ]


def test_a_caption_says_how_well_clocks_agree_where_it_matters() -> None:
    runs = [
        {
            "run": "a",
            "mode": "cp",
            "read_consistency": "linearizable",
            "scenario": "cut",
            "fault_s": 7.0,
            "clock_uncertainty_ns": 0,
        }
    ]
    windows = [{"mode": "cp", "about": KV, "quantile": share, "window_ms": 5.0, "writes": 3} for share in (0.0, 1.0)]
    assert charts._clocks(results_of(runs), ["a"]) == " All times are of one clock."
    runs[0]["clock_uncertainty_ns"] = 2_500_000
    (figure,) = charts.draw(results_of(runs, windows=windows))
    assert figure.caption.endswith(" Times of two processes are known to ± 5 ms. Based on 1 run (1 CP).")
    assert {drawing.name for drawing in charts._DRAWINGS if drawing.compares_clocks} == {"windows", "visibility", "lengths"}


def test_every_function_that_draws_is_a_figure() -> None:
    drawn = {drawing.painter.__name__ for drawing in charts._DRAWINGS}
    painters = {
        name
        for name, value in vars(charts).items()
        if inspect.isfunction(value)
        and list(inspect.signature(value).parameters) == ["axes", "results"]
        and inspect.signature(value).return_annotation == Iterable[str]
    }
    assert_same_names(painters, "the drawing functions of spark/charts.py", drawn, "its _DRAWINGS")
