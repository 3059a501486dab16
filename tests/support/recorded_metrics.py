"""Scraped samples, recorded as input of promtool: the samples that Prometheus would have stored."""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

SCRAPE_S = 15
"""The scrape interval of the Prometheus that is simulated with the recorded samples."""
JOB = "namesrv"
Scrape = Mapping[str, Mapping[str, float] | None]
"""Node to its samples (name with labels, as in the text format, to value); None: it did not answer."""


def parsed(text: str, names: frozenset[str]) -> dict[str, float]:
    """The samples of an answer whose metric is in ``names``."""
    found = {}
    for line in text.splitlines():
        sample, _, value = line.rpartition(" ")
        if not line.startswith("#") and sample.partition("{")[0] in names:
            found[sample] = float(value)
    return found


def names_in(text: str) -> frozenset[str]:
    """Names of metrics of ours in rules or queries."""
    return frozenset(re.findall(r"(?<![:\w])namesrv_\w+", text))


def input_series(scrapes: Sequence[Scrape], began_s: float, hold: int) -> list[dict[str, str]]:
    """``input_series`` of a promtool test. After the last scrape its values are repeated ``hold`` times: the state lasts.

    promtool's clock starts at 0, so values that are times are shifted by ``began_s``, the time of the recording.
    """
    series: dict[str, list[float | None]] = {}
    for at, scrape in enumerate(scrapes):
        for node, samples in scrape.items():
            values = {"up": 0.0 if samples is None else 1.0, **(samples or {})}
            for sample, value in values.items():
                name, _, labels = sample.partition("{")
                every = ", ".join(filter(None, [f'job="{JOB}"', f'instance="{node}"', labels.removesuffix("}")]))
                shift = began_s if name.endswith("_timestamp_seconds") else 0.0
                series.setdefault(f"{name}{{{every}}}", [None] * len(scrapes))[at] = value - shift
    return [{"series": name, "values": _values(values, hold)} for name, values in series.items()]


def _values(values: Sequence[float | None], hold: int) -> str:
    shown = []
    for before, value in pairwise([None, *values]):
        # Prometheus marks a series as stale when a scrape fails, or lacks it
        shown.append(f"{value:.6f}" if value is not None else "_" if before is None else "stale")
    return " ".join([*shown, f"_x{hold}" if values[-1] is None else f"{values[-1]:.6f}x{hold}"])


def rule_test(
    name: str, series: list[dict[str, str]], expressions: Sequence[tuple[str, float, Any]], interval_s: int = SCRAPE_S
) -> dict[str, Any]:
    """One test of a promtool file: (expression without labels in its result, at this second, value or None)."""
    return {
        "name": name,
        "interval": f"{interval_s}s",
        "input_series": series,
        "promql_expr_test": [
            {
                "expr": expression,
                "eval_time": f"{int(at_s)}s",
                "exp_samples": [] if value is None else [{"labels": "{}", "value": value}],
            }
            for expression, at_s, value in expressions
        ],
    }
