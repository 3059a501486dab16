"""``namesrv completion``: the words that bash offers with the script."""

import subprocess

import pytest

from replicated_namesrv.cli.completion import script
from replicated_namesrv.cli.main import available_commands
from tests.support.nodes import run_command
from tests.support.places import assert_same_names


def completed(*words: str) -> set[str]:
    """The words that bash offers for the last word."""
    typed = " ".join(f"'{word}'" for word in words)
    lines = f'{script()}\nCOMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _namesrv; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", lines], capture_output=True, text=True, check=True, timeout=60)
    assert not done.stderr
    return set(done.stdout.split())


def test_bash_completes_commands_options_and_values() -> None:
    assert_same_names(completed("namesrv", ""), "what bash completes", [*available_commands(), "help"], "available_commands()")
    assert completed("namesrv", "--") == {"--help", "--version"}
    assert completed("namesrv", "sta") == {"status"}
    assert completed("namesrv", "status", "--js") == {"--json"}
    assert completed("namesrv", "leader", "tr") == {"transfer"}
    assert completed("namesrv", "leader", "--to") == {"--token-file"}
    assert completed("namesrv", "cluster", "--mode", "") == {"ap", "cp"}
    assert completed("namesrv", "status", "no-such") == set()
    assert completed("namesrv", "help", "sta") == {"status"}


def test_bash_completes_what_fits_the_place() -> None:
    assert completed("namesrv", "leader", "") == {"show", "transfer"}, "options are offered after a dash"
    assert completed("namesrv", "kv", "-n", "host:1", "ex") == {"export"}
    assert completed("namesrv", "kv", "export", "") == set(), "bash completes files"
    assert completed("namesrv", "status", "--ca", "") == set(), "bash completes files"
    assert completed("namesrv", "serve", "--mode", "") == {"ap", "cp"}
    assert completed("namesrv", "chaos", "su") == {"suite"}
    assert completed("namesrv", "chaos", "list", "--") == {"--help", "--json"}, "options of other actions are not offered"
    assert completed("namesrv", "chaos", "suite", "") >= {"smoke", "full"}


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_command_prints_the_script(shell: str) -> None:
    done = run_command("completion", shell)
    assert done.returncode == 0
    assert done.stdout.endswith(script())
    assert ("bashcompinit" in done.stdout) == (shell == "zsh")
    assert run_command("completion", "fish").returncode == 2
