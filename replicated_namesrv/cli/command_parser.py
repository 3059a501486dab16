"""The parser of every command."""

import argparse
import sys
from typing import Any


class CommandParser(argparse.ArgumentParser):
    """Raises OSError if the help cannot be written, for example to a full disk. The base class ignores this error."""

    def print_help(self, file: Any = None) -> None:
        """Raises OSError."""
        print(self.format_help(), end="", file=file or sys.stdout)
