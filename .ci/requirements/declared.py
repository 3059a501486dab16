"""Prints declarations of pyproject.toml for the script that pins versions.

``declared.py fingerprint`` prints a checksum of all declarations, ``declared.py NAME`` the requirements of one list. The list of
an extra contains only what the extra adds to the base, so several lists can be installed together without repeating the base.
"""

import hashlib
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def fingerprint(tables: dict[str, Any]) -> str:
    """SHA-256, in hexadecimal, over requires-python and all declared dependencies. Lists made from other ones are stale."""
    project = tables["project"]
    declared = [
        project["requires-python"],
        project["dependencies"],
        project["optional-dependencies"],
        tables["dependency-groups"],
    ]
    return hashlib.sha256(json.dumps(declared, sort_keys=True).encode()).hexdigest()


def requirements(tables: dict[str, Any], name: str) -> list[str]:
    """The requirements of list ``name``: ``base``, ``build`` or an extra, whose references to other extras are followed."""
    project = tables["project"]
    if name == "base":
        return list(project["dependencies"])
    if name == "build":
        return list(tables["dependency-groups"]["build"])
    found: list[str] = []
    for requirement in project["optional-dependencies"][name]:
        if requirement.startswith(project["name"] + "["):
            found += requirements(tables, requirement.partition("[")[2].rstrip("]"))
        else:
            found.append(requirement)
    return found


if __name__ == "__main__":
    declared_tables = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))
    wanted = sys.argv[1]
    print(fingerprint(declared_tables) if wanted == "fingerprint" else "\n".join(requirements(declared_tables, wanted)))
