"""RunAccess: the identities of a run's brokers and clients, for nodes with ``accessPolicy=enforce``.

Links go through Toxiproxy in plain text, so nodes accept access keys without TLS. Keys and secrets are random in each run.
"""

import os
import secrets
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from replicated_namesrv.client.credentials import NO_CREDENTIALS, Credentials

FILE, TOKEN_FILE = "access.toml", "operator-token"


class RunAccess(NamedTuple):
    """Settings of all nodes, and the credentials of their callers."""

    settings: tuple[str, ...] = ()
    brokers: Credentials = NO_CREDENTIALS
    clients: Credentials = NO_CREDENTIALS
    token: str | None = None
    """Token for the admin ports, which the run itself uses."""
    token_file: Path | None = None
    """The file with this token, for the operator's commands."""


OPEN = RunAccess()
"""Every request is allowed."""


def enforced(folder: Path) -> RunAccess:
    """Roles for a run in ``folder``: brokers have the role broker, clients operator, and the run itself admin."""
    brokers, clients = (Credentials(None, f"run-{name}", secrets.token_hex(16).encode()) for name in ("brokers", "clients"))
    token, path, token_file = secrets.token_urlsafe(32), folder.absolute() / FILE, folder.absolute() / TOKEN_FILE
    text = f"""\
[identities.brokers]
roles = ["broker"]
brokers = ["*"]
access_keys = {{ {brokers.access_key} = ["{brokers.secret.decode()}"] }}

[identities.clients]
roles = ["operator"]
access_keys = {{ {clients.access_key} = ["{clients.secret.decode()}"] }}

[identities.run]
roles = ["admin"]
tokens = ["sha256:{sha256(token.encode()).hexdigest()}"]
"""
    for name, content in ((path, text), (token_file, token)):
        with open(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(content)
    settings = "accessPolicy=enforce", f"accessFile={path}", "accessKeysInPlainText=true"
    return RunAccess(settings, brokers, clients, token, token_file)
