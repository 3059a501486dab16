"""The report page: readable on a phone and for screen readers, and from a cell to its runs without server or network."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from replicated_namesrv.spark.ingest import Ingested
from replicated_namesrv.spark.report import page
from replicated_namesrv.spark.summary import paired, summary
from tests.spark.test_charts import results_of

RUNS = [
    {
        "run": f"{mode}-{seed}", "mode": mode, "scenario": scenario, "suite": "", "seed": seed, "nodes": 3,
        "read_consistency": "local" if mode == "ap" else "linearizable", "observe_interval_ms": 250, "clock_uncertainty_ns": 0,
        "fault_s": 7.0,
    }
    for mode in ("ap", "cp")
    for seed, scenario in ((1, "cut"), (2, "cut"), (3, "restart <all>"))
]  # fmt: skip  # items grouped by line


def made() -> str:
    """A page of six runs."""
    figures: list[dict[str, Any]] = []
    for place, run in enumerate(RUNS):
        for phase in ("all", "fault"):
            figures.append(
                {
                    **{name: run[name] for name in ("run", "mode", "scenario", "seed", "nodes", "fault_s")}, "level": "all",
                    "phase": phase, "side": "all", "metric": "harvest", "value": place / 10, "count": 3,
                    "clock_uncertainty_ms": None,
                }
            )  # fmt: skip  # items grouped by line
    ingested = [Ingested(str(run["run"]), 100 * place, 0, 0, True, 1) for place, run in enumerate(RUNS)]
    results = results_of(
        RUNS,
        per_run=figures,
        summary=summary(figures),
        paired=paired(figures, {}),
        ingested=ingested,  # type: ignore[arg-type]  # not rows
    )
    links = {str(run["run"]): (f"../runs/{run['run']}", "valid") for run in RUNS}
    return page(results, [], links)


class Outline(HTMLParser):
    """Elements of a page with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def test_tables_have_captions_and_scopes_and_the_page_has_landmarks() -> None:
    outline = Outline(made())
    assert len(outline.all("table")) == len(outline.all("caption")) == 6
    assert all(head.get("scope") in ("col", "row", "colgroup") for head in outline.all("th"))
    assert all(len(outline.all(landmark)) == 1 for landmark in ("header", "nav", "main", "footer", "h1"))
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in outline.all("meta")
    assert len(outline.all("label")) == len([field for field in outline.all("input") if field.get("type") == "search"]) == 3


def _luminance(colour: str) -> float:
    digits = colour.lstrip("#")
    digits = digits if len(digits) == 6 else "".join(2 * digit for digit in digits)
    parts = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_text_has_enough_contrast_in_both_schemes() -> None:
    """The contrast is at least 4.5 to 1 (WCAG AA)."""
    schemes = re.findall(r"--back: (#\w+); --text: (#\w+); --faint: (#\w+); --line: #\w+; --mark: (#\w+)", made())
    assert len(schemes) == 2
    for back, text, faint, mark in schemes:
        for front, behind in ((text, back), (faint, back), (text, mark)):
            light, dark = sorted((_luminance(front), _luminance(behind)), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (front, behind)


def test_every_cell_knows_its_runs() -> None:
    text = made()
    found = re.search(r"<script type='application/json' id='values'>(.*?)</script>", text, re.DOTALL)
    assert found is not None
    known = json.loads(found[1])
    cells = [str(button["data-cell"]) for button in Outline(text).all("button") if "data-cell" in button]
    assert len(cells) == 2 + 4, "two modes over all runs, and two scenarios"
    assert all(cell in known["values"] for cell in cells)
    one = known["values"]["cut|ap|harvest|all|fault"]
    assert [(known["runs"][run]["name"], value) for run, value in one] == [("ap-1", "0 %"), ("ap-2", "10 %")]
    assert known["runs"][0]["timeline"] == "../runs/ap-1/timeline.html"
    assert "<all>" not in text, "names are text"


STEPS = """<script>
const said = [];
document.querySelector("button[data-cell='cut|ap|harvest|all|fault']").click();
said.push(drill.hidden, drill.querySelectorAll("li").length, drill.querySelector("a").getAttribute("href"));
const runs = document.getElementById("table-runs"), first = () => runs.tBodies[0].rows[0].cells[6].textContent;
const head = runs.tHead.rows[0].cells[6];
head.querySelector("button").click(); said.push(first(), head.getAttribute("aria-sort"));
head.querySelector("button").click(); said.push(first(), head.getAttribute("aria-sort"));
const field = document.querySelector("input[data-filters='table-runs']");
field.value = "restart cp"; field.dispatchEvent(new Event("input"));
said.push([...runs.tBodies[0].rows].filter(row => !row.hidden).length);
said.push(document.documentElement.scrollWidth <= window.innerWidth);
document.body.replaceChildren(JSON.stringify(said));
</script>"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_browser_drills_down_sorts_and_filters_without_network(tmp_path: Path) -> None:
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("no chromium: apt-get install chromium")
    path = tmp_path / "page.html"
    path.write_text(made().replace("</body>", f"{STEPS}</body>"))
    command = [
        browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={tmp_path}/profile",
        "--host-resolver-rules=MAP * ~NOTFOUND", "--window-size=500,800", "--dump-dom", path.as_uri(),
    ]  # fmt: skip  # items grouped by line
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    body = re.search(r"<body>(.*?)</body>", done.stdout, re.DOTALL)
    assert body is not None, done.stderr[-2000:]
    assert json.loads(body[1]) == [False, 2, "../runs/ap-1/timeline.html", "0", "ascending", "500", "descending", 1, True]
