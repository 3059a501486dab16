"""``namesrv access``: checks an access file, makes a token for one, and drafts one from audit logs.

``check`` reads the file as a node does. Nothing is sent to a node.
"""

import argparse
import secrets
import sys

from replicated_namesrv.access.access_draft import AccessDraft
from replicated_namesrv.access.access_file import TOKEN_PREFIX, read_access_file
from replicated_namesrv.access.identities import AccessRules, NamedIdentity, hash_of
from replicated_namesrv.access.roles import Role
from replicated_namesrv.cli.client import print_json
from replicated_namesrv.errors import StorageError

HELP = "check an access file, draft one from audit logs, or make a token"

_EXAMPLES = """\
examples:
  namesrv access check access.toml     is it valid, and who has which role?
  namesrv access report /var/lib/namesrv/audit-refusals.log > draft.toml
                                       a draft of a file, with the callers that the log lists
  namesrv access token                 a new random token, and the line for the file

exit codes: 0 good; 1 the file cannot be used; 2 usage
"""
TOKEN_BYTES = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.epilog = _EXAMPLES
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    check = actions.add_parser("check", help="is the file valid, and who has which role?")
    check.add_argument("file", metavar="FILE", help="access file, as in accessFile")
    check.add_argument("--json", action="store_true", help="print JSON instead of text")
    report = actions.add_parser("report", help="turn audit logs into a draft of an access file")
    report.add_argument("log", metavar="LOG", nargs="+", help="audit-refusals.log of a node; give those of all nodes")
    token = actions.add_parser("token", help="make a random token, and its hash for the file")
    token.add_argument("--json", action="store_true", help="print JSON instead of text")


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code. Raises AccessFileError, StorageError."""
    actions = {"token": _token, "check": _check, "report": _report}
    return actions[arguments.action](arguments)


def _report(arguments: argparse.Namespace) -> int:
    draft = AccessDraft()
    for path in arguments.log:
        try:
            with open(path, "rb") as lines:
                draft.read(lines)
        except OSError as cause:
            raise StorageError(f"{path}: {cause.strerror}; give the audit-refusals.log of a node") from None
    if draft.unreadable:
        print(f"{draft.unreadable} lines are not JSON objects and are left out", file=sys.stderr)
    print(draft.text(), end="")
    return 0


def _token(arguments: argparse.Namespace) -> int:
    token = secrets.token_urlsafe(TOKEN_BYTES)
    line = TOKEN_PREFIX + hash_of(token.encode()).hex()
    if arguments.json:
        print_json({"token": token, "hash": line})
    else:
        print(f'token, for the client:         {token}\nhash, for the access file:     tokens = ["{line}"]')
    return 0


def _check(arguments: argparse.Namespace) -> int:
    rules = read_access_file(arguments.file)
    everyone = [*rules.identities, rules.anonymous]
    warnings = list(_warnings(rules))
    if arguments.json:
        print_json({"identities": [_described(identity) for identity in everyone], "warnings": warnings, "sha256": rules.digest})
        return 0
    for identity in everyone:
        brokers = ", ".join(pattern.text for pattern in identity.brokers)
        roles = ", ".join(sorted(identity.roles)) or "no role"
        print(f"{identity.name}: {roles}{f' (broker names: {brokers})' if brokers else ''}{_recognised(identity)}")
    for warning in warnings:
        print(f"warning: {warning}")
    print(f"{arguments.file} is valid")
    return 0


def _recognised(identity: NamedIdentity) -> str:
    counts = {
        "certificate rules": identity.certificates,
        "access keys": identity.access_keys,
        "tokens": identity.tokens,
        "networks": identity.networks,
    }
    found = ", ".join(f"{len(values)} {what}" for what, values in counts.items() if values)
    return f"; by {found}" if found else ""


def _described(identity: NamedIdentity) -> dict[str, object]:
    return {
        "name": identity.name,
        "roles": sorted(identity.roles),
        "brokers": [pattern.text for pattern in identity.brokers],
        "addresses": [pattern.text for pattern in identity.addresses],
        "certificates": [rule.text for rule in identity.certificates],
        "networks": [str(network) for network in identity.networks],
        "accessKeys": sorted(identity.access_keys),
        "tokens": len(identity.tokens),
    }


def _warnings(rules: AccessRules) -> list[str]:
    found = [
        f"{identity.name} is never recognised: it has no certificates, access_keys, tokens or networks"
        for identity in rules.identities
        if not (identity.certificates or identity.access_keys or identity.tokens or identity.networks)
    ]
    if not any(Role.BROKER in identity.roles for identity in (*rules.identities, rules.anonymous)):
        found.append("nobody has the role broker, so with accessPolicy=enforce no broker can register")
    if not any(
        Role.READ in i.roles or Role.OPERATOR in i.roles or Role.ADMIN in i.roles for i in (*rules.identities, rules.anonymous)
    ):
        found.append("nobody has the role read, so with accessPolicy=enforce no client gets a route")
    if risky := sorted(rules.anonymous.roles - {Role.READ}):
        found.append(f"everyone has the role {' and '.join(risky)}, because [anonymous] has it")
    return found
