"""docs/settings.md, made from the table of settings: ``python -m tests.packaging.settings_page`` writes it."""

from replicated_namesrv.settings import NAMESRV, NETTY_CLIENT, NETTY_SERVER, OWN, ROWS, Row, environment_name
from tests.packaging.tree import ROOT

PAGE = ROOT / "docs" / "settings.md"

HEAD = """# Settings

<!-- Made by: python -m tests.packaging.settings_page -->

A setting can be given five ways; the first that is given holds:

1. as a flag: `--set listenPort=9877`, for some also by a flag of its own (`namesrv serve --help`);
2. in the environment: `NAMESRV_LISTEN_PORT=9877`;
3. by a change at run time (`namesrv config set`, `mqadmin updateNamesrvConfig`), kept in `runtime.properties` in `dataDir`;
4. in the properties file of `-c FILE`, which is never written: `listenPort=9877`;
5. its default.

`namesrv serve -p` prints what would be in force and ends. A setting that does not exist or contradicts another stops the
start with a line that names key, value and remedy. Keys of RocketMQ's own files that this name server does not know are
warned about, shown by `mqadmin getNamesrvConfig` and have no effect.

"When": *start* is read at the start only, and a change at run time is refused; *live* follows `mqadmin updateNamesrvConfig` at
once; *replicated* is live and, with
`mode=cp`, one value for all nodes, changed through any of them.
"""

GROUPS = {
    OWN: "Settings of this name server, and TLS by the names of RocketMQ's system properties",
    NAMESRV: "RocketMQ's NamesrvConfig",
    NETTY_SERVER: "RocketMQ's NettyServerConfig: connections that peers open",
    NETTY_CLIENT: "RocketMQ's NettyClientConfig: connections opened to brokers",
}


def line(row: Row) -> str:
    """One line of a table."""
    default = row.show(row.default)
    when = "replicated" if row.replicated else "live" if row.live else "start"
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


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
