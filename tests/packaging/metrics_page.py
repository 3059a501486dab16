"""Builds docs/metrics.md from the catalogue of metrics: ``python -m tests.packaging.metrics_page`` writes it."""

from replicated_namesrv.admin.exposition import COUNTER, METRICS, OF_REPLICATION, PREFIX, Declared
from tests.packaging.tree import ROOT

PAGE = ROOT / "docs" / "metrics.md"

HEAD = """# Metrics

<!-- Made by: python -m tests.packaging.metrics_page -->

This page lists every metric of a node, for people who write queries. `GET /metrics` on the admin port returns them
([admin-http.md](admin-http.md#metrics)). [alerts.md](alerts.md) describes the alert rules that use them, [slo.md](slo.md) the
service levels. [glossary.md](glossary.md) explains terms such as lease, digest and read index.

A histogram has series with the endings `_bucket`, `_sum` and `_count`. Counters start at 0 when the process starts. The
series of a label value can be missing until this value occurs for the first time. No label contains the name of a topic, broker
or client, so the number of series is limited. Nodes also have the `process_*` metrics of prometheus_client (memory, CPU, file
descriptors).
"""
OF_EVERY_NODE = "## Every node"
OF_CP_NODES = "## Nodes of a cluster\n\nThese metrics have samples with `mode=cp` only."


def sample_name(name: str) -> str:
    """The name of a metric in queries; for a histogram, without its endings."""
    return f"{PREFIX}{name}{'_total' if METRICS[name].kind is COUNTER else ''}"


def line(name: str, metric: Declared) -> str:
    """One line of a table."""
    kind = metric.kind.__name__.removesuffix("MetricFamily").lower()
    return f"| `{sample_name(name)}` | {kind} | {', '.join(f'`{label}`' for label in metric.labels)} | {metric.meaning} |"


def page() -> str:
    """The whole text."""
    parts = [HEAD]
    for title, names in ((OF_EVERY_NODE, METRICS.keys() - OF_REPLICATION.keys()), (OF_CP_NODES, OF_REPLICATION.keys())):
        lines = "\n".join(line(name, metric) for name, metric in METRICS.items() if name in names)
        parts.append(f"{title}\n\n| Name | Type | Labels | Meaning |\n|---|---|---|---|\n{lines}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
