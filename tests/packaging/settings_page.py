"""Builds docs/settings.md from the table of settings, and puts their names into the schema of the Helm chart's values.

``python -m tests.packaging.settings_page`` writes both files."""

import json

from replicated_namesrv.settings import NAMESRV, NETTY_CLIENT, NETTY_SERVER, NEVER_BY_REMOTING, OWN, ROWS, Row
from replicated_namesrv.settings_sources import environment_name
from tests.packaging.tree import ROOT

PAGE = ROOT / "docs" / "settings.md"
CHART_SCHEMA = ROOT / "deploy" / "helm" / "namesrv" / "values.schema.json"

HEAD = """# Settings

<!-- Made by: python -m tests.packaging.settings_page -->

This page lists every setting of a node. The value of a setting comes from the first of these sources that has one:

1. a flag: `--set listenPort=9877`; some settings also have a flag of their own (`namesrv serve --help`);
2. an environment variable: `NAMESRV_LISTEN_PORT=9877`;
3. a change at run time (`namesrv config set`, `mqadmin updateNamesrvConfig`), stored in `runtime.properties` in `dataDir`;
4. the properties file of `-c FILE`, which the node never writes: `listenPort=9877`;
5. its default.

`namesrv serve -p` prints the values of RocketMQ's settings that a node would use, and exits. If a value is invalid, or
contradicts another one, the node does not start. It prints one line with key, value and remedy.

A properties file may have been written for RocketMQ. Therefore two kinds of errors in it only cause a warning:

- a malformed value of one of RocketMQ's settings: the default is used. But a boolean that is neither `true` nor `false` counts as
  `false`;
- an unknown key: it has no effect. `mqadmin getNamesrvConfig` shows it, unless its name contains a word such as `password` or
  `secret`. But if the key is similar to a setting of this name server, the node does not start.

The column "When" says when a change takes effect. *start*: at the next start; a change at run time is refused. *live*: a change
at run time takes effect immediately, and a change of the properties file when the node receives SIGHUP. *replicated*:
immediately, and with `mode=cp` on all nodes. *file*: when the properties file has changed and the node receives SIGHUP; other
changes at run time are refused.
"""

GROUPS = {
    OWN: "Settings of this name server, and TLS settings with the names of RocketMQ's system properties",
    NAMESRV: "RocketMQ's NamesrvConfig",
    NETTY_SERVER: "RocketMQ's NettyServerConfig: connections that brokers and clients open",
    NETTY_CLIENT: "RocketMQ's NettyClientConfig: connections opened to brokers",
}


def line(row: Row) -> str:
    """One line of a table."""
    default = row.show(row.default)
    live = "file" if row.name in NEVER_BY_REMOTING else "live"
    when = "replicated" if row.replicated else live if row.live else "start"
    return f"| `{row.name}` | {f'`{default}`' if default else 'empty'} | {when} | {row.meaning} | `{environment_name(row)}` |"


def page() -> str:
    """The whole text."""
    parts = [HEAD]
    for group, title in GROUPS.items():
        lines = "\n".join(line(row) for row in ROWS.values() if row.group == group)
        parts.append(
            f"## {title}\n\n| Setting | Default | When | Meaning | In the environment |\n|---|---|---|---|---|\n{lines}\n"
        )
    return "\n".join(parts)


def chart_schema() -> str:
    """The schema of the chart's values, in which only names of settings are accepted below ``settings``."""
    schema = json.loads(CHART_SCHEMA.read_text(encoding="utf-8"))
    schema["properties"]["settings"]["propertyNames"] = {"enum": sorted(ROWS)}
    return json.dumps(schema, indent=1) + "\n"


if __name__ == "__main__":
    for file, text in ((PAGE, page()), (CHART_SCHEMA, chart_schema())):
        file.write_text(text, encoding="utf-8")
        print(f"wrote {file}")
