"""The divergence that the checks find in generated traces."""

import json
from pathlib import Path

import pytest

from replicated_namesrv.chaos.checks.story import Story
from replicated_namesrv.chaos.checks.timing import divergence_segments
from replicated_namesrv.chaos.records import read_trace
from replicated_namesrv.chaos.scenario import ChaosScenario
from replicated_namesrv.spark.generate import generate
from replicated_namesrv.verify.divergence import divergence_of
from tests.chaos.traces import manifest

ANY_SCENARIO = ChaosScenario("by hand", "by hand").as_json()


def test_divergence_of_generated_traces_is_what_they_were_made_with(tmp_path: Path) -> None:
    """tests/spark/test_analysis.py compares the analysis with the same truth."""
    for folder in generate(10_000, 3, 5, tmp_path, print):
        made, known = (json.loads((folder / name).read_text()) for name in ("manifest.json", "truth.json"))
        story = Story(read_trace(folder / "trace.jsonl"), manifest(made["mode"]) | made | {"scenario": ANY_SCENARIO})
        found = divergence_of(divergence_segments(story))
        assert found.seconds == pytest.approx(known["divergent_ns"] / 1e9)
        assert found.greatest == (1.0 if made["mode"] == "ap" else 0.0)
        assert found.seconds > 0 or made["mode"] == "cp"
