"""Access files of tests."""

from pathlib import Path

from replicated_namesrv.access.access_file import parse_access_file
from replicated_namesrv.access.identities import AccessRules, hash_of


def rules_of(text: str) -> AccessRules:
    """The rules in an access file with this content."""
    return parse_access_file("access.toml", text.encode())


def token_line(token: str) -> str:
    """A token as the file has it."""
    return "sha256:" + hash_of(token.encode()).hex()


def write_access_file(folder: Path, text: str, name: str = "access.toml") -> Path:
    """The file, readable by its owner alone."""
    path = folder / name
    path.touch(mode=0o600)
    path.write_text(text)
    return path
