"""``namesrv completion``: prints a script that lets a shell complete commands, options and their values.

The script is made from the parsers of all commands, so it never lacks an option. It needs no Python while the user types. zsh
uses the script for bash.
"""

import argparse
import re
from collections.abc import Iterator

from replicated_namesrv.cli.main import available_commands, parser_of

HELP = "print a script that completes commands and options in bash or zsh"

_EXAMPLES = """\
examples:
  source <(namesrv completion bash)                                           in this shell
  namesrv completion bash > /etc/bash_completion.d/namesrv                    for all users
  source <(namesrv completion zsh)
"""
_FOR_ZSH = "autoload -U +X compinit bashcompinit && compinit && bashcompinit\n"
_SCRIPT = """\
_namesrv() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} command=${{COMP_WORDS[1]}} options= words= at
  if (( COMP_CWORD == 1 )); then
    words="{commands} help" options="--help --version"
  else
    case "$command ${{COMP_WORDS[2]}}" in
{actions}) (( COMP_CWORD > 2 )) && command="$command ${{COMP_WORDS[2]}}" ;;
    esac
    case "$command $previous" in
{values}
    *)
      case $command in
      help) words="{commands}" ;;
{options}
      esac
      for (( at = 2; at < COMP_CWORD; at++ )); do
        case " $words " in *" ${{COMP_WORDS[at]}} "*) words= ;; esac
      done ;;
    esac
  fi
  case $current in -*) words=$options ;; esac
  COMPREPLY=( $(compgen -W "$words" -- "$current") )
}}
complete -o bashdefault -o default -F _namesrv namesrv
"""
_LISTED_VALUES = re.compile(r"[a-z]+(\|[a-z]+)+")
"""Metavar of an option that lists its values, such as ``ap|cp``."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.epilog = _EXAMPLES
    parser.add_argument("shell", choices=("bash", "zsh"))


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code."""
    print((_FOR_ZSH if arguments.shell == "zsh" else "") + script(), end="")
    return 0


def script() -> str:
    """The script for bash."""
    names = available_commands()
    found = [each for name in names for each in _parsers(name, parser_of(name)[0])]
    values, options = [], []
    for name, parser in found:
        actions = [action for action in parser._actions if action.option_strings]
        for action in actions:
            if action.nargs != 0:  # a value without a list may be a file: the shell's default
                patterns = "|".join(f"'{name} {option}'" for option in action.option_strings)
                values.append(f"""    {patterns}) words="{" ".join(_values(action))}" ;;""")
        flags = " ".join(option for action in actions for option in action.option_strings)
        words = " ".join(_words(parser)) or ("" if parser._get_positional_actions() else "$options")
        options.append(f"""      '{name}') options="{flags}" words="{words}" ;;""")
    return _SCRIPT.format(
        commands=" ".join(names),
        actions="|".join(f"'{name}'" for name, _ in found if " " in name),
        values="\n".join(values),
        options="\n".join(options),
    )


def _values(action: argparse.Action) -> list[str]:
    """The values that an option can have; empty if there is no list of them."""
    if action.choices is not None:
        return [str(choice) for choice in action.choices]
    return action.metavar.split("|") if isinstance(action.metavar, str) and _LISTED_VALUES.fullmatch(action.metavar) else []


def _words(parser: argparse.ArgumentParser) -> list[str]:
    """The words that can stand where a parser expects arguments without a dash."""
    return [word for action in parser._get_positional_actions() for word in _values(action)]


def _parsers(name: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """A parser and those of its subcommands, each with its name."""
    yield name, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub_name, sub in action.choices.items():
                yield from _parsers(f"{name} {sub_name}", sub)
