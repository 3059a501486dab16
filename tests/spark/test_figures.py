"""Figures from small results: what is drawn has to be what is known."""

import numpy
from matplotlib.figure import Figure

from replicated_namesrv.spark import figures
from replicated_namesrv.spark.analysis import Results


def test_mean_divergence_never_exceeds_one() -> None:
    """Bins finer than the grid, and several runs of a mode, are a mean of maxima, not a sum."""
    runs = [{"run": run, "mode": "ap"} for run in ("a", "b")]
    curve = [{"run": run, "at_s": number / 20, "divergence": 1.0} for run in ("a", "b") for number in range(40)]
    faults = [{"run": run, "steady_s": -1.0, "end_s": 1.0, "until_s": 4.0} for run in ("a", "b")]
    results = Results(runs, [], [], [], [], [], [], curve, faults, [], [], [], {})
    canvas = Figure()
    axes = canvas.add_subplot()
    assert set(figures._divergence([axes], results)) == {"a", "b"}
    (line,) = axes.get_lines()
    heights = numpy.asarray(line.get_ydata()).tolist()
    assert heights[:6] == [0.0] * 2 + [1.0] * 4
    assert heights[-1] == 0.0
