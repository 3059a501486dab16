"""``python -m benchmarks.cp PART``: the cost of a replicated cluster compared with an independent node in the same run. Needs
Go.
"""

import argparse
import importlib
import sys

PARTS = {
    "reads": "route queries by consistency level: CPU a request of the node asked and of the others, latency",
    "observers": "CPU of the leader with and without observers",
    "look_ups": "route queries a second with and without an observer on the same machine",
    "watch": "time until watchers of every node receive a change",
    "registrations": "brokers: latency of a change, cost of renewals, all brokers returning at once, restart",
}


def main() -> int:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parts = parser.add_subparsers(dest="part", required=True, metavar="PART")
    for name, text in PARTS.items():
        module = importlib.import_module(f"benchmarks.cp.{name}")
        module.add_arguments(parts.add_parser(name, help=text, description=module.__doc__))
    arguments = parser.parse_args()
    result: int = importlib.import_module(f"benchmarks.cp.{arguments.part}").run(arguments)
    return result


if __name__ == "__main__":
    sys.exit(main())
