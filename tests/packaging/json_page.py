"""docs/json.md and docs/schemas: ``python -m tests.packaging.json_page`` writes them. The schemas here are their only source.

``tests/support/json_outputs.py`` checks the real output of commands with these schemas.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from tests.packaging.tree import ROOT

PAGE, FOLDER = ROOT / "docs" / "json.md", ROOT / "docs" / "schemas"

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
TRUTH: Schema = {"type": "boolean"}
ANYTHING: Schema = {}


def one_of(*values: str | None) -> Schema:
    """One of these values."""
    return {"enum": list(values)}


def maybe(schema: Schema) -> Schema:
    """A schema of the values of ``schema`` and null."""
    return {"anyOf": [schema, {"type": "null"}]}


def either(*schemas: Schema) -> Schema:
    """One of these forms."""
    return {"anyOf": list(schemas)}


def many(schema: Schema) -> Schema:
    """A list of these."""
    return {"type": "array", "items": schema}


def table(schema: Schema) -> Schema:
    """An object whose keys are names."""
    return {"type": "object", "additionalProperties": schema}


def record(optional: dict[str, Schema] | None = None, **fields: Schema) -> Schema:
    """An object with exactly these fields; ``optional`` ones may be missing."""
    properties = {name.rstrip("_"): schema for name, schema in fields.items()}
    required = list(properties)
    return {
        "type": "object",
        "properties": {**properties, **(optional or {})},
        "required": required,
        "additionalProperties": False,
    }


def open_record(**fields: Schema) -> Schema:
    """An object with at least these fields."""
    return {**record(**fields), "additionalProperties": True}


BROKER = record(brokerName=TEXT, cluster=TEXT, brokerAddrs=table(TEXT), enableActingMaster=TRUTH, zoneName=maybe(TEXT))
ROUTE_FIELDS = {
    "brokers": many(BROKER),
    "queues": many(record(brokerName=TEXT, perm=INTEGER, readQueueNums=INTEGER, writeQueueNums=INTEGER, topicSysFlag=INTEGER)),
    "orderTopicConf": maybe(TEXT),
    "filterServers": table(many(TEXT)),
    "staticMappings": table(
        record(
            bname=maybe(TEXT),
            currIdMap=table(INTEGER),
            dirty=TRUTH,
            epoch=INTEGER,
            scope=maybe(TEXT),
            topic=maybe(TEXT),
            totalQueues=INTEGER,
        )
    ),
}
FRESHNESS: dict[str, Schema] = {
    "freshness": maybe(
        record(readLevel=TEXT, revision=COUNT, raftTerm=COUNT, stalenessMs=INTEGER, leader=maybe(TEXT)),
    )
}
"""Only if --read-consistency or --max-staleness-ms was given; null: the server does not report it."""
WRITES = many(
    record(
        {"value": TEXT, "code": INTEGER, "detail": TEXT},
        nameServer=TEXT,
        outcome=one_of("done", "refused", "not done", "unknown"),
    )
)
MEMBER = open_record(
    nodeId=TEXT,
    peerAddress=TEXT,
    address=maybe(TEXT),
    serves=TRUTH,
    drained=TRUTH,
    adminAddress=maybe(TEXT),
    zone=maybe(TEXT),
    role=one_of("leader", "voter", "learner", "observer"),
    matchIndex=maybe(COUNT),
    lag=maybe(INTEGER),
)
SILENT_NODE = {"admin": TEXT, "answers": {"const": False}, "refused": TRUTH, "problem": TEXT}
NODE = {
    "admin": TEXT,
    "answers": {"const": True},
    "nodeId": TEXT,
    "mode": one_of("ap", "cp"),
    "version": TEXT,
    "clusterId": maybe(TEXT),
    "ready": TRUTH,
    "revision": COUNT,
    "role": maybe(TEXT),
    "leader": maybe(TEXT),
    "term": maybe(COUNT),
    "commitIndex": maybe(COUNT),
    "appliedIndex": maybe(COUNT),
    "members": maybe(many(TEXT)),
    "quorum": maybe(COUNT),
    "digest": maybe(TEXT),
    "problem": maybe(TEXT),
}


def deployment(more: dict[str, Schema], more_of_node: dict[str, Schema]) -> Schema:
    """The output of ``status``, with further fields."""
    return record(
        {"members": many(TEXT), "quorum": COUNT, "serving": COUNT, "mayFail": COUNT},
        mode=one_of("ap", "cp", None),
        leader=maybe(TEXT),
        term=maybe(COUNT),
        digestsEqual=maybe(TRUTH),
        revision=maybe(COUNT),
        nodes=many(either(record(**SILENT_NODE, **more_of_node), record({"lag": INTEGER}, **NODE, **more_of_node))),
        problems=many(TEXT),
        **more,
    )


RATES = record(**dict.fromkeys(("requests", "lookUps", "failed", "proposals", "connections", "brokers"), NUMBER))
VERDICT_NAME = one_of("valid", "violated", "unknown")
VERDICT_FIELDS: dict[str, Schema] = {
    "schema": COUNT,
    "run": TEXT,
    "suite": TEXT,
    "seed": INTEGER,
    "mode": TEXT,
    "read_consistency": maybe(TEXT),
    "cut": TEXT,
    "scenario": TEXT,
    "nodes": COUNT,
    "product": maybe(TEXT),
    "commit": maybe(TEXT),
    "source_sha256": maybe(TEXT),
    "complete": TRUTH,
    "trace": record(records=COUNT, torn=COUNT, corrupt=COUNT),
    "verdict": VERDICT_NAME,
    "judged_as": one_of("ap", "cp"),
    "checks": many(
        record(
            check=TEXT,
            promised=TRUTH,
            verdict=VERDICT_NAME,
            due=TRUTH,
            looked_at=COUNT,
            left_out=table(COUNT),
            wrong=COUNT,
            findings=many(ANYTHING),
        )
    ),
    "figures": table(maybe(NUMBER)),
}
BACKUP_HEAD = {
    "format": TEXT,
    "version": COUNT,
    "revision": COUNT,
    "mode": one_of("ap", "cp"),
    "clusterId": TEXT,
    "nodeId": TEXT,
    "timeMs": COUNT,
    "softwareVersion": TEXT,
}
PROCESS_EVENTS = ("failed", "leader", "node-ended", "node-serves", "node-failed", "stopped")
CLUSTER_NODE = record(nodeId=TEXT, listen=TEXT, admin=TEXT, pid=maybe(COUNT), dataDir=TEXT, log=TEXT)


class JsonOutput(NamedTuple):
    """The output of one command or action."""

    commands: tuple[str, ...]
    """Command lines, without options: ``kv get``."""
    meaning: str
    schema: Schema
    in_lines: bool = False
    """Each line is one document."""


STUDY_OUTLOOK = record(
    study=TEXT,
    title=TEXT,
    runs=COUNT,
    left=COUNT,
    hours=NUMBER,
    disk_mb=NUMBER,
    arms=table(NUMBER),
    waves=many(record(seed=COUNT, runs=COUNT, hours=NUMBER)),
)

SWITCH = {
    "to": one_of("cp", "ap"),
    "winner": TEXT,
    "conflicts": many(
        either(
            record(namespace=TEXT, key=TEXT, values=table(maybe(TEXT)), winner=TEXT),
            record(setting=TEXT, values=table(TRUTH), winner=TEXT),
        )
    ),
}
"""Fields of both outputs of ``namesrv switch``."""

OUTPUTS: dict[str, JsonOutput] = {
    "route": JsonOutput(
        ("route",),
        "the route of a topic, in RocketMQ's field names; if `found` is false, the fields of the route are missing",
        either(
            record(FRESHNESS, topic=TEXT, nameServer=TEXT, found={"const": False}),
            record(FRESHNESS, topic=TEXT, nameServer=TEXT, found={"const": True}, **ROUTE_FIELDS),
        ),
    ),
    "topics": JsonOutput(
        ("topics", "topics list"),
        "topic names",
        record(FRESHNESS, nameServer=TEXT, topics=many(TEXT), brokerAddr=maybe(TEXT)),
    ),
    "brokers": JsonOutput(
        ("brokers", "brokers list"), "registered brokers", record(FRESHNESS, nameServer=TEXT, brokers=many(BROKER))
    ),
    "clusters": JsonOutput(
        ("clusters",), "broker names by cluster", record(FRESHNESS, nameServer=TEXT, clusters=table(many(TEXT)))
    ),
    "writes": JsonOutput(
        ("topics delete", "brokers wipe-write", "brokers add-write", "kv put", "kv delete", "config set", "config import"),
        "the outcome of a change at each server in the address list",
        WRITES,
    ),
    "kv-get": JsonOutput(
        ("kv get",),
        "one value; null if `found` is false",
        record(FRESHNESS, nameServer=TEXT, namespace=TEXT, key=TEXT, found=TRUTH, value=maybe(TEXT)),
    ),
    "kv-list": JsonOutput(
        ("kv list",),
        "all keys and values of a namespace; `table` is null if `found` is false",
        record(FRESHNESS, nameServer=TEXT, namespace=TEXT, found=TRUTH, table=maybe(table(maybe(TEXT)))),
    ),
    "kv-import": JsonOutput(
        ("kv import",),
        "for each server: the number of entries that it accepted (`entries`), the number of all entries (`of`), and the first "
        "problem or null",
        many(record(nameServer=TEXT, entries=COUNT, of=COUNT, problem=maybe(TEXT))),
    ),
    "export": JsonOutput(
        ("kv export", "config export"),
        "the file, and the number of entries in it",
        record(nameServer=TEXT, file=TEXT, entries=COUNT),
    ),
    "config": JsonOutput(
        ("config get",),
        "settings by server, and why the other servers gave none",
        record(nameServers=table(table(TEXT)), failed=table(TEXT)),
    ),
    "diff": JsonOutput(
        ("diff",),
        "the brokers, topics, KV entries (`keys`) and shared settings that differ, with the answer of each server. The answer "
        "is null if the server does not have the broker, topic or KV entry",
        record(
            equal=TRUTH,
            compared=many(TEXT),
            unreachable=table(TEXT),
            brokers=table(table(maybe(BROKER))),
            topics=table(table(maybe(record(**ROUTE_FIELDS)))),
            keys=many(record(namespace=TEXT, key=TEXT, values=table(maybe(TEXT)))),
            settings=table(table(TEXT)),
            namespacesUnknown=table(TEXT),
        ),
    ),
    "adopt": JsonOutput(
        ("adopt",),
        "for each server, whether it is RocketMQ's (`rocketmq`), this project's (`ours`) or gives `no answer`; and which "
        "servers were replaced (`swapped`). `equal` is about the KV namespaces in `namespaces`. The servers in "
        "`namespacesUnknown` may have others",
        record(
            servers=table(one_of("ours", "rocketmq", "no answer")),
            equal=TRUTH,
            namespaces=many(TEXT),
            namespacesUnknown=table(TEXT),
            settings=table(table(TEXT)),
            swapped=many(record(address=TEXT, from_=TEXT, to=TEXT, seconds=NUMBER)),
            savedTo=maybe(TEXT),
        ),
    ),
    "status": JsonOutput(
        ("status",),
        "every node and every problem; with mode=cp also `members`, `quorum`, `serving` and `mayFail`",
        deployment({}, {}),
    ),
    "top": JsonOutput(
        ("top",),
        "the content of `status`; also rates per second of each node (`rates`), and the number of changes of each kind since "
        "the previous line (`changes`)",
        deployment({"changes": table(COUNT)}, {"rates": maybe(RATES)}),
        in_lines=True,
    ),
    "doctor": JsonOutput(
        ("doctor",),
        "findings with remedy, and the histogram of disk syncs",
        record(
            findings=many(record(check=TEXT, level=one_of("ok", "warning", "problem"), text=TEXT, remedy=TEXT)),
            syncs=record(count=COUNT, meanMs=maybe(NUMBER), withinMs=table(COUNT)),
        ),
    ),
    "watch": JsonOutput(
        ("watch",),
        "one event: `event`, `id`, `node`, and the fields of the event in [GET /v1/watch](admin-http.md#watching)",
        open_record(event=TEXT, id=maybe(TEXT), node=TEXT),
        in_lines=True,
    ),
    "members": JsonOutput(
        ("members list",),
        "the members of a cluster. `address`, `adminAddress` and `zone` are null if they are not known. `matchIndex` and `lag` "
        "are null if the asked node does not know them; only the leader knows all of them",
        record(
            nodeId=TEXT,
            leader=maybe(TEXT),
            term=COUNT,
            members=many(MEMBER),
        ),
    ),
    "members-change": JsonOutput(
        ("members add", "members move", "members promote", "members remove", "members replace"),
        "the number of voters, and the members, after the change",
        record(changed={"const": True}, voters=COUNT, members=many(MEMBER)),
    ),
    "leader": JsonOutput(("leader", "leader show"), "the leader", record(leader=TEXT, term=COUNT, admin=TEXT)),
    "leader-transfer": JsonOutput(
        ("leader transfer",), "the old leader, the new leader and its term", record(from_=TEXT, leader=TEXT, term=COUNT)
    ),
    "drain": JsonOutput(
        ("drain",),
        "`moved`: connections that were closed without unanswered requests. `cut`: connections that were closed with unanswered "
        "requests. With --undo, the document has only `admin` and `drained`",
        record({"moved": COUNT, "cut": COUNT, "othersServing": many(TEXT)}, admin=TEXT, drained=TRUTH),
    ),
    "backup": JsonOutput(
        ("backup",),
        "name and size of the file, and the fields of its first line: `format`, `version`, `revision`, `mode`, `clusterId`, "
        "`nodeId`, `timeMs`, `softwareVersion` and others",
        record(
            {
                "groupId": TEXT,
                "readLevel": TEXT,
                "stalenessMs": TEXT,
                "recoveredFromDisk": record(lastIndex=COUNT, lastTerm=COUNT),
            },
            file=TEXT,
            bytes=COUNT,
            **BACKUP_HEAD,
        ),
    ),
    "restore": JsonOutput(
        ("restore",),
        "the revision of the backup (`backupRevision`), and the revision of the cluster after the restore. After a merge "
        "(--merge): for each node, what was added or changed",
        either(
            record(file=TEXT, backupRevision=COUNT, revision=COUNT),
            record(
                file=TEXT,
                merged=many(
                    record(
                        admin=TEXT,
                        kvEntriesAdded=COUNT,
                        kvEntriesEqual=COUNT,
                        settingsChanged=table(TRUTH),
                        brokersThere=COUNT,
                        topicsThere=COUNT,
                        topicsOnlyInBackup=COUNT,
                    )
                ),
            ),
        ),
    ),
    "recover": JsonOutput(
        ("recover",),
        "content of a stopped node's disk; `newCluster` is null without --force-new-cluster; `file` is null if nothing was saved",
        record(
            nodeId=TEXT,
            clusterId=TEXT,
            members=many(TEXT),
            lastIndex=COUNT,
            lastTerm=COUNT,
            commitIndexAtLeast=COUNT,
            votes=TRUTH,
            lastWriteMs=COUNT,
            revision=COUNT,
            brokers=COUNT,
            topics=COUNT,
            kvEntries=COUNT,
            damage=many(TEXT),
            file=maybe(TEXT),
            newCluster=maybe(TEXT),
        ),
    ),
    "switch": JsonOutput(
        ("switch",),
        "the steps that were done. If `done` is false, they are the steps that would be done. With `--walk`: the nodes that "
        "were switched, those that are left, and whether all name servers give equal answers",
        either(
            record(**SWITCH, directory=TEXT, steps=many(TEXT), done=TRUTH),
            record(
                **SWITCH,
                switched=many(record(address=TEXT, name=TEXT, **{"from": TEXT}, to=TEXT, seconds=NUMBER)),
                left=many(TEXT),
                equal=TRUTH,
            ),
        ),
    ),
    "access-check": JsonOutput(
        ("access check",),
        "identities and roles of an access file",
        record(
            identities=many(
                record(
                    name=TEXT,
                    roles=many(TEXT),
                    brokers=many(TEXT),
                    addresses=many(TEXT),
                    certificates=many(TEXT),
                    networks=many(TEXT),
                    accessKeys=many(TEXT),
                    tokens=COUNT,
                )
            ),
            warnings=many(TEXT),
            sha256=TEXT,
        ),
    ),
    "access-token": JsonOutput(("access token",), "a token, and its hash for the access file", record(token=TEXT, hash=TEXT)),
    "log": JsonOutput(
        ("log inspect",),
        "the files of a node; `entries` with --entries only",
        record(
            {
                "entries": many(
                    open_record(index=COUNT, term=COUNT, file=TEXT, offset=COUNT, kind=TEXT),
                )
            },
            directory=TEXT,
            identity=maybe(open_record(node=TEXT, cluster=TEXT, members=many(TEXT), incarnation=COUNT, boot=COUNT)),
            segments=many(
                record(
                    name=TEXT,
                    bytes=COUNT,
                    firstNumber=maybe(COUNT),
                    lastNumber=maybe(COUNT),
                    records=table(COUNT),
                    firstIndex=maybe(COUNT),
                    lastIndex=maybe(COUNT),
                    readableBytes=COUNT,
                )
            ),
            snapshots=many(record(name=TEXT, bytes=COUNT, lastIndex=maybe(COUNT), lastTerm=maybe(COUNT), problem=maybe(TEXT))),
            terms=many(record(file=TEXT, offset=COUNT, term=COUNT, votedFor=maybe(TEXT))),
            lastIndex=COUNT,
            commitIndexAtLeast=COUNT,
            tornTail=maybe(TEXT),
            damage=many(TEXT),
        ),
    ),
    "cluster": JsonOutput(
        ("cluster",),
        "the nodes in the first line, then one event per line",
        either(
            record(mode=one_of("ap", "cp"), namesrvAddr=TEXT, nodes=many(CLUSTER_NODE)),
            open_record(event=one_of(*PROCESS_EVENTS)),
        ),
        in_lines=True,
    ),
    "demo": JsonOutput(
        ("demo",),
        "what clients saw in each mode: figures, and every look-up",
        record(
            summary=many(
                record(
                    mode=one_of("ap", "cp"),
                    cutNode=TEXT,
                    cutBy=one_of("pause", "toxiproxy"),
                    brokers=one_of("rocketmq", "simulated"),
                    outdatedAnswers=COUNT,
                    lastOutdatedAfterChange_s=maybe(NUMBER),
                    changeVisibleAfter_s=maybe(NUMBER),
                    longestGapOfCutNodesClient_s=NUMBER,
                    longestGapOfClientWithAllAddresses_s=NUMBER,
                    nodesAgreeAfterCut_s=maybe(NUMBER),
                )
            ),
            stories=many(
                open_record(
                    mode=one_of("ap", "cp"),
                    cut_node=TEXT,
                    paused=TRUTH,
                    looks=many(
                        record(client=TEXT, asked_s=NUMBER, answered_s=NUMBER, queues=maybe(COUNT), refused=TRUTH),
                    ),
                )
            ),
        ),
    ),
    "broker": JsonOutput(
        ("broker",),
        "one event per line; the last line has the totals",
        either(
            record(event={"const": "end"}, registered=COUNT, expected=COUNT, counts=table(COUNT)),
            record(
                event=TEXT,
                time_ms=COUNT,
                sequence=maybe(COUNT),
                cluster=TEXT,
                broker=TEXT,
                brokerId=COUNT,
                brokerAddr=TEXT,
                nameServer=maybe(TEXT),
                code=maybe(INTEGER),
                oneway=TRUTH,
                dataVersion=maybe(open_record()),
                topics=ANYTHING,
                detail=maybe(TEXT),
            ),
        ),
        in_lines=True,
    ),
    "simulate": JsonOutput(
        ("simulate",),
        "one run per line; the last line has the totals",
        either(
            record(
                summary={"const": True},
                seeds=COUNT,
                failed_seeds=many(INTEGER),
                violations=table(COUNT),
                virtual_s=NUMBER,
                wall_s=NUMBER,
                catch_up_s_max=maybe(NUMBER),
                counts=table(COUNT),
            ),
            record(
                seed=INTEGER,
                nodes=COUNT,
                violation=maybe(TEXT),
                text=TEXT,
                at_s=maybe(NUMBER),
                trace_digest=TEXT,
                catch_up_s=NUMBER,
                virtual_s=NUMBER,
                wall_s=NUMBER,
                repeat=TEXT,
                counts=table(COUNT),
            ),
        ),
        in_lines=True,
    ),
    "chaos-list": JsonOutput(
        ("chaos list",),
        "scenarios with the fields of their files",
        many(open_record(name=TEXT, title=TEXT, about=TEXT, complaint=TEXT, fault=many(open_record(kind=TEXT)), smoke=TRUTH)),
    ),
    "chaos-run": JsonOutput(
        ("chaos run", "chaos check"),
        "verdict.json of a run; `folder` with `chaos run` only",
        record({"folder": TEXT}, **VERDICT_FIELDS),
    ),
    "chaos-suite": JsonOutput(
        ("chaos suite",),
        "verdict.json of one run per line; the last line has the totals",
        either(
            record({"folder": TEXT}, **VERDICT_FIELDS),
            record(summary={"const": True}, suite=TEXT, runs=COUNT, valid=COUNT, violated=COUNT, unknown=COUNT),
        ),
        in_lines=True,
    ),
    "chaos-compare": JsonOutput(
        ("chaos compare",),
        "for each scenario, verdict.json of each mode, under the name of the mode",
        many({**open_record(scenario=TEXT, page=TEXT), "additionalProperties": record(**VERDICT_FIELDS)}),
    ),
    "chaos-sabotage": JsonOutput(
        ("chaos sabotage",),
        "with --list: one sabotage (a deliberate defect) per line. Without --list: one document, which says for each sabotage "
        "whether it was found, and has the totals",
        either(
            open_record(name=TEXT, mode=one_of("ap", "cp"), file=TEXT, old=TEXT, new=TEXT, breaks=TEXT),
            record(
                sabotages=many(open_record(name=TEXT, found=TEXT, runs=many(open_record(scenario=TEXT, verdict=TEXT)))),
                caught=COUNT,
                missed=COUNT,
                unknown=COUNT,
                share_asked=NUMBER,
            ),
        ),
        in_lines=True,
    ),
    "study-plan": JsonOutput(
        ("study plan",),
        "the number of runs that are left, and the hours and disk space that they need. `study run` and `study resume` with "
        "--dry-run print the same",
        STUDY_OUTLOOK,
    ),
    "study-run": JsonOutput(
        ("study run", "study resume"),
        "the runs of a study that are done, by verdict, and the number of runs that are left",
        either(STUDY_OUTLOOK, record(study=TEXT, folder=TEXT, made=COUNT, left=COUNT, verdicts=table(COUNT))),
    ),
    "study-publish": JsonOutput(
        ("study publish",),
        "the page with the results, and numbers of runs: newly added (`added`), on the page (`done`), in the plan (`runs`)",
        record(study=TEXT, page=TEXT, added=COUNT, done=COUNT, runs=COUNT),
    ),
    "analyze": JsonOutput(
        ("analyze",),
        "figures of each group of runs ([tables.md](tables.md)), and the paired comparison of modes",
        record(out=TEXT, summary=many(open_record()), paired=many(open_record())),
    ),
}

HEAD = """# JSON output

<!-- Made by: python -m tests.packaging.json_page -->

This page is for people who write scripts around `namesrv`. With `--json`, each command in the table prints JSON to stdout. The
column *Documents* says whether this is one document, or one document per line. Each document has a
[JSON schema](https://json-schema.org) (draft 2020-12) in the folder [schemas](schemas). Existing fields keep their names and
meanings. New fields can be added. The schemas permit additional fields, and a script should ignore fields that it does not know.
The exit code says how the command ended (`namesrv COMMAND --help`). If the command failed before it had an answer, stdout is
empty and stderr has the reason.

    namesrv status --json | tee status.json | jq .leader
    check-jsonschema --schemafile docs/schemas/status.json status.json

| Commands | Schema | Documents | Content |
|---|---|---|---|
"""


def extensible(schema: Any) -> Any:
    """The schema for users: it also accepts objects with the fields that later versions add. (The tests are stricter.)"""
    if isinstance(schema, list):
        return [extensible(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    is_closed = schema.get("additionalProperties") is False
    return {key: extensible(value) for key, value in schema.items() if not (is_closed and key == "additionalProperties")}


def document(name: str) -> str:
    """The file of one schema."""
    output = OUTPUTS[name]
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"namesrv {', '.join(output.commands)} --json" + (", each line" if output.in_lines else ""),
    }
    return json.dumps({**head, **extensible(output.schema)}, indent=1) + "\n"


def page() -> str:
    """The whole text of the page."""
    rows = (
        f"| {', '.join(f'`{command}`' for command in output.commands)} | [{name}.json](schemas/{name}.json) | "
        f"{'one per line' if output.in_lines else 'one'} | {output.meaning} |\n"
        for name, output in OUTPUTS.items()
    )
    return HEAD + "".join(rows)


def files() -> dict[Path, str]:
    """All files and their content."""
    return {PAGE: page(), **{FOLDER / f"{name}.json": document(name) for name in OUTPUTS}}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
    print(f"wrote {PAGE} and {len(OUTPUTS)} schemas")
