"""The shipped alert rules: their file, the metrics that they need, and how long each condition has to hold."""

import re

from ruamel.yaml import YAML

from tests.packaging.tree import ROOT
from tests.support.recorded_metrics import names_in


def _seconds(text: str) -> float:
    """``1m30s`` in seconds."""
    return float(sum(int(n) * {"s": 1, "m": 60, "h": 3600}[u] for n, u in re.findall(r"(\d+)([smh])", text)))


RULES = ROOT / "deploy" / "prometheus" / "alerts.yaml"
NAMES = names_in(RULES.read_text(encoding="utf-8")) | {"namesrv_raft_last_index"}
WAITS = {
    rule["alert"]: _seconds(rule.get("for", "0s"))
    for group in YAML(typ="safe", pure=True).load(RULES)["groups"]
    for rule in group["rules"]
}
"""Alert to how long its condition has to hold."""
