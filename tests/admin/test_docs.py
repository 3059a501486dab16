"""docs/admin-http.md names every path, event and limit there is, docs/metrics.md every metric, docs/schemas every JSON output.

Every event is also known to the modules that treat kinds of events differently."""

import inspect
import json
import re
from pathlib import Path

from replicated_namesrv.admin import app, http_changes, paging, time_line
from replicated_namesrv.admin.paths import ROUTES
from replicated_namesrv.chaos import watcher
from replicated_namesrv.routes import history
from tests.packaging import json_page, metrics_page
from tests.support.event_kinds import kinds_of_events

TEXT = (Path(__file__).parents[2] / "docs" / "admin-http.md").read_text()


def test_every_path_is_documented() -> None:
    for route in ROUTES:
        path = re.sub(r"\{(\w+):[^}]*\}", r"{\1}", route.path).replace("nsaddr-{unit}", "nsaddr-UNIT")
        if path != "/console/{file}":
            assert f"`{route.method} {path}`" in TEXT, f"docs/admin-http.md does not describe {route.method} {path}"


def test_metrics_page_is_the_catalogue() -> None:
    assert metrics_page.PAGE.read_text(encoding="utf-8") == metrics_page.page(), (
        "stale: run .venv/bin/python -m tests.packaging.metrics_page and commit docs/metrics.md"
    )


def test_every_event_has_a_row() -> None:
    kinds = kinds_of_events()
    table = TEXT[TEXT.index("| event | what happened |") :].partition("\n\n")[0]
    rows = {name for line in table.splitlines()[2:] for name in re.findall(r"`([\w-]+)`", line.split("|")[1])}
    wrong = [
        f"event {kind} of routes/history.py has no row in docs/admin-http.md: add '| `{kind}` | … | … |'"
        for kind in sorted(kinds - rows)
    ]
    wrong += [
        f"event {kind} is in docs/admin-http.md, but describe() in routes/history.py does not return it" for kind in rows - kinds
    ]
    assert not wrong, "\n".join(wrong)


def test_every_event_has_a_text_in_the_console() -> None:
    script = (Path(time_line.__file__).parent / "console" / "timeline.js").read_text(encoding="utf-8")
    table = script[script.index("const TEXTS = {") :].partition("\n};")[0]
    missing = kinds_of_events() - set(re.findall(r'^  "?([\w-]+)"?: ', table, re.MULTILINE))
    assert not missing, f"events without a text in TEXTS of admin/console/timeline.js: {', '.join(sorted(missing))}"


NOT_OF_A_BROKER = {history.GROUP_CHANGED}
"""Events of a broker name whose kind begins with 'broker-' nevertheless."""


def test_every_event_of_kv_and_brokers_is_known_to_the_time_line_and_to_chaos() -> None:
    watched = inspect.getsource(watcher)
    of_kv = {kind for kind in kinds_of_events() if kind.startswith("kv-")}
    of_brokers = {kind for kind in kinds_of_events() if kind.startswith("broker-")} - NOT_OF_A_BROKER
    wrong = [f"event {kind} is not in OF_KV of admin/time_line.py" for kind in sorted(of_kv - set(time_line.OF_KV))]
    wrong += [
        f"event {kind} is not in OF_BROKERS of admin/time_line.py" for kind in sorted(of_brokers - set(time_line.OF_BROKERS))
    ]
    wrong += [
        f"event {kind} is not in chaos/watcher.py, which records what events say about each KV key and broker"
        for kind in sorted(of_kv | of_brokers)
        if f'"{kind}"' not in watched
    ]
    assert not wrong, "\n".join(wrong)


def test_limits_are_those_of_the_code() -> None:
    words = " ".join(TEXT.split())
    assert f"{app.CONNECTIONS_MAX} connections" in words
    assert f"{app.ADDRESS_CONNECTIONS_MAX} from one address" in words
    assert f"for {app.KEEPALIVE_TIMEOUT_S:g} s" in words
    assert http_changes.BODY_BYTES_MAX == 1 << 20
    assert f"at most 1 MiB long, and has to arrive within {http_changes.BODY_TIMEOUT_S:g} s" in words
    assert f"(1 to {paging.ROWS_MAX}, default {paging.ROWS_DEFAULT})" in words
    assert f"slices of {paging.SLICE_S * 1000:g} ms" in words


def test_schemas_of_json_output_are_those_that_outputs_are_tested_with() -> None:
    for path, text in json_page.files().items():
        assert path.read_text(encoding="utf-8") == text, (
            f"stale: run .venv/bin/python -m tests.packaging.json_page and commit {path.name}"
        )
    left = {path.stem for path in json_page.FOLDER.iterdir()} - json_page.OUTPUTS.keys()
    assert not left, (
        f"docs/schemas has files of outputs that tests/packaging/json_page.py lacks: {', '.join(sorted(left))}; delete them"
    )


def test_published_schemas_accept_fields_of_later_versions() -> None:
    """Scripts that check output with a schema must keep working after an upgrade."""
    closed = [path.name for path in json_page.FOLDER.glob("*.json") if '"additionalProperties": false' in path.read_text("utf-8")]
    assert not closed, f"these schemas reject new fields: {', '.join(closed)}"
    assert '"additionalProperties": false' in json.dumps(json_page.OUTPUTS["status"].schema), "the tests accept only known fields"
