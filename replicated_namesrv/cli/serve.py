"""``namesrv serve``: runs one name server, with the command line of RocketMQ's own script plus our settings.

``-c -p -n -h``, the exit codes and the stdout lines that start scripts wait for are those of ``NamesrvStartup.java`` 5.3.3.
Everything else goes to the log on stderr.

SIGHUP rereads the file and applies the settings that may change at run time. If NOTIFY_SOCKET is set, the service manager is
notified when the node serves, reloads and stops, and receives watchdog messages if it asked for them (systemd: Type=notify).

Exit codes: 0 stopped as requested (or ``-p``, ``-h``), 1 bad option or setting, 255 a file cannot be read or the start failed.
"""

import argparse
import contextlib
import logging
import os
import sys
from collections.abc import Callable
from datetime import datetime
from typing import NoReturn

from replicated_namesrv.cli.command_parser import CommandParser
from replicated_namesrv.errors import BodyError, SettingError
from replicated_namesrv.settings import NAMESRV, NETTY_CLIENT, NETTY_SERVER, ROWS, Settings
from replicated_namesrv.settings_sources import load_settings

HELP = "run one name server; takes the options and the properties file of RocketMQ's mqnamesrv"

EXIT_BAD_OPTION = 1
EXIT_START_FAILED = 255
_MISSING_ARGUMENT = "expected one argument"

_MORE = """\
The value of a setting comes from its flag or --set, else from the environment (listenPort is NAMESRV_LISTEN_PORT), else from
the file, else it is the default. The file has RocketMQ's format; RocketMQ's settings and ours go into the same file. -p prints
RocketMQ's settings with the values that would be used; docs/settings.md lists all settings.

examples:
  namesrv serve                                     0.0.0.0:9876, admin port on 127.0.0.1:9886
  namesrv serve -c namesrv.properties
  namesrv serve --listen 10.0.0.5:9876 --data-dir /var/lib/namesrv --set orderMessageEnable=true
"""


class RocketMQParser(CommandParser):
    """Reports errors as commons-cli does in ``ServerUtil.parseCmdLine``: the error on stderr, usage on stdout, exit code 1."""

    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments: "):
            message = f"Unrecognized option: {message.removeprefix('unrecognized arguments: ').split()[0]}"
        elif message.endswith(_MISSING_ARGUMENT):
            option = message.removeprefix("argument ").partition(":")[0].partition("/")[0].lstrip("-")
            message = f"Missing argument for option: {option}"
        print(message, file=sys.stderr)
        self.print_usage(sys.stdout)
        sys.exit(EXIT_BAD_OPTION)


PARSER_CLASS = RocketMQParser


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _MORE
    rocketmq = parser.add_argument_group("as RocketMQ's mqnamesrv")
    rocketmq.add_argument("-c", "--configFile", metavar="FILE", help="properties file")
    rocketmq.add_argument("-p", "--printConfigItem", action="store_true", help="print RocketMQ's settings and exit")
    rocketmq.add_argument("-n", "--namesrvAddr", metavar="ADDRS", help="accepted; has no effect, as in RocketMQ")
    ours = parser.add_argument_group("more")
    ours.add_argument("--mode", metavar="ap|cp", help="ap: an independent node (default); cp: a node of a replicated cluster")
    ours.add_argument("--node-id", metavar="ID", help="name of this node, unique in its cluster (nodeId)")
    ours.add_argument("--listen", metavar="HOST:PORT", help="address for brokers and clients; port 0 picks a free port")
    ours.add_argument("--admin", metavar="HOST:PORT|off", help="address of the admin port (adminListen)")
    ours.add_argument("--data-dir", metavar="DIR", help="folder for everything that the node writes (dataDir)")
    ours.add_argument(
        "--join", metavar="HOST:PORT,…", help="join a running cluster with an empty disk: peer addresses of some members (join)"
    )
    ours.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any setting; repeatable")


def run(arguments: argparse.Namespace) -> int:
    try:
        settings = load_settings(arguments.configFile, flags_of(arguments))
    except (OSError, BodyError) as cause:
        reason = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause)
        print(f"cannot read the properties file {arguments.configFile}: {reason}", file=sys.stderr)
        return EXIT_START_FAILED
    settings.rocketmq_home = settings.rocketmq_home or os.environ.get("ROCKETMQ_HOME", "")
    if arguments.join is not None and settings.mode != "cp":
        raise SettingError(
            f"--join {arguments.join} with mode={settings.mode}: an independent node joins no cluster; give --mode cp, or leave "
            "out --join"
        )
    if arguments.configFile is not None:
        print(f"load config properties file OK, {arguments.configFile}", flush=True)
    if arguments.printConfigItem:
        print(printed_settings(settings, datetime.now()))
        return 0
    return _serve(settings, lambda: load_settings(arguments.configFile, flags_of(arguments)))


def flags_of(arguments: argparse.Namespace) -> dict[str, str]:
    """Settings from the command line, by name in the properties file. Raises SettingError: malformed, or given twice with
    different values."""
    given: list[tuple[str, str]] = []
    for name, value in (
        ("mode", arguments.mode),
        ("nodeId", arguments.node_id),
        ("listen", arguments.listen),
        ("adminListen", arguments.admin),
        ("dataDir", arguments.data_dir),
        ("join", arguments.join),
    ):
        if value is not None:
            given.append((name, value))
    for text in arguments.set:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise SettingError(f"--set {text}: give KEY=VALUE, for example --set orderMessageEnable=true")
        given.append((key.strip(), value))
    flags: dict[str, str] = {}
    for key, value in given:
        if flags.setdefault(key, value) != value:
            raise SettingError(f"{key} is given twice on the command line: {flags[key]} and {value}; leave one out")
    return flags


def printed_settings(settings: Settings, now: datetime) -> str:
    """The output of ``-p``: one line for each field of the three configuration objects, in Java's order of declaration."""
    prefix = now.strftime("%Y-%m-%d %H:%M:%S INFO main - ")
    lines = []
    for group in (NAMESRV, NETTY_SERVER, NETTY_CLIENT):
        names = [row.name for row in ROWS.values() if row.group == group]
        if group == NETTY_CLIENT:  # two of its fields share their names and settings with NETTY_SERVER
            after = names.index("socksProxyConfig") + 1
            names[after:after] = ["writeBufferHighWaterMark", "writeBufferLowWaterMark"]
        lines += [f"{prefix}{name}={ROWS[name].show(settings.get(ROWS[name]))}" for name in names]
    return "\n".join(lines)


def _serve(settings: Settings, load: Callable[[], Settings]) -> int:
    from replicated_namesrv.admin.logs import configure_logging
    from replicated_namesrv.process import ServingNode, StartError
    from replicated_namesrv.process import run as run_node

    as_json = {"human": False, "json": True}.get(settings.log_format)
    handler = configure_logging(settings.log_level, as_json=as_json)

    def report_started(node: ServingNode) -> None:
        with contextlib.suppress(OSError):  # OSError: nobody reads stdout; serve anyway
            print(f"The Name Server boot success. serializeType=JSON, address {node.listen_address}", flush=True)

    try:
        run_node(settings, report_started, load)
        return 0
    except StartError as error:
        handler.close()
        print(f"the name server did not start: {error}", file=sys.stderr)
        return EXIT_START_FAILED
    finally:
        logging.shutdown()
