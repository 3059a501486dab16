"""``namesrv completion``: prints a script that lets a shell complete commands, options and their values.

The script is made from the parsers of all commands, so it never lacks an option. It needs no Python while the user types. zsh
uses the script for bash.
"""

import argparse
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
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} words
  if (( COMP_CWORD == 1 )); then
    words="{commands}"
  else
    case "${{COMP_WORDS[1]}} $previous" in
{values}
    *)
      case ${{COMP_WORDS[1]}} in
{options}
      esac ;;
    esac
  fi
  COMPREPLY=( $(compgen -W "$words" -- "$current") )
}}
complete -o bashdefault -o default -F _namesrv namesrv
"""


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
    options, values = [], []
    for name in names:
        words: dict[str, None] = {}
        for action in _actions(parser_of(name)[0]):
            choices = [str(choice) for choice in action.choices or ()]
            if action.option_strings:
                words |= dict.fromkeys(action.option_strings)
                if choices:
                    patterns = "|".join(f"'{name} {option}'" for option in action.option_strings)
                    values.append(f'    {patterns}) words="{" ".join(choices)}" ;;')
            else:
                words |= dict.fromkeys(choices)
        options.append(f'      {name}) words="{" ".join(words)}" ;;')
    commands = " ".join((*names, "--help", "--version"))
    return _SCRIPT.format(commands=commands, values="\n".join(values), options="\n".join(options))


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The options of a parser and of its subcommands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                yield from _actions(sub)
