"""``mqnamesrv``: ``namesrv serve`` under the name of RocketMQ's own start script."""

from replicated_namesrv.cli.serve import PARSER_CLASS, add_arguments, run

__all__ = ["HELP", "PARSER_CLASS", "add_arguments", "run"]

HELP = "the same as serve, under the name of RocketMQ's start script"
