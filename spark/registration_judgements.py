"""Judges registrations: the topic look-ups are judged as reads, like those of the key-value store (M1 to M10).

Each broker of a topic is a register of its own: a registration writes its version, an unregistration writes "absent", and a
look-up reads all of them at once. Linearizability is judged on whole look-ups. Everything else is judged broker by broker, and
a look-up is as stale as its stalest broker.

After a broker's death the cluster removes it at an unknown time, so this is an indeterminate unregistration from the death on.
If the last registration of a life has an unknown outcome, it may arrive later: this is an indeterminate registration and
another such removal. Brokers whose changes are not all known are left out: those that no majority could reach for a time
(state ``exposed``), because even a correct cluster may drop them; those that share a name, because they write one version
together; and those with more than LATE_MAX such late registrations.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import orjson
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from replicated_namesrv.spark.client_operations import completed_invocations
from replicated_namesrv.spark.histories import Distance, KeyJudgement, Read, judge, visibility
from replicated_namesrv.spark.judgements import LIMITS, by_level, events_of, judged_table, rows_of
from replicated_namesrv.spark.schemas import JUDGED
from replicated_namesrv.spark.truth import DEAD
from replicated_namesrv.verify import Operation, Outcome, check_history
from replicated_namesrv.verify.attribution import NEVER, KeyEvent

LATE_MAX = 6
CLUSTER = "the cluster"
"""Client name of the cluster's own removals."""


def registration_operations(records: DataFrame, done: DataFrame, facts: DataFrame) -> DataFrame:
    """Look-ups of judged phases, and registrations and removals of all phases, by topic: ``broker`` is null in look-ups, whose
    ``members`` are JSON; ``facts`` are the spans of ``truth.truth_spans``."""
    looks = done.where(F.col("kind") == "route").select(
        "run", "key", "level", "op", "client", "kind", F.lit(None).cast("string").alias("broker"), "value", "members",
        "start_ns", "end_ns", "outcome", (F.col("phase") == "final").alias("final"),
    )  # fmt: skip  # items grouped by line
    asked = completed_invocations(records, "register", "unregister", "register-copy")
    late = _late_copies(asked, facts).cache()
    known = _known_brokers(facts, late)
    said = asked.where(F.col("kind") != "register-copy").withColumnRenamed("key", "broker")
    said = said.withColumn("key", F.explode("topics"))
    deaths = facts.where(F.col("state").isin(*DEAD)).withColumn("key", F.explode("topics"))
    removed = _open(deaths, "unregister", F.col("from_ns"))
    arrived = late.withColumn("key", F.explode("topics"))
    opened = removed.unionByName(_open(arrived, "register", F.col("start_ns")))
    opened = opened.unionByName(_open(arrived, "unregister", F.col("start_ns")))
    names = ["run", "key", "op", "client", "kind", "broker", "value", "start_ns", "end_ns", "outcome"]
    changes = said.select(*names).unionByName(opened.select(*names)).join(F.broadcast(known), ["run", "broker"], "left_semi")
    return looks.unionByName(
        changes.withColumn("level", F.lit(None).cast("string"))
        .withColumn("members", F.lit(None).cast("string"))
        .withColumn("final", F.lit(False))
    )


def _open(rows: DataFrame, kind: str, start: Column) -> DataFrame:
    """Operations with unknown outcome. Their numbers are negative, so that they differ from those of clients."""
    value = F.col("version") if kind == "register" else F.lit(None).cast("string")
    number = -1 - F.abs(F.xxhash64("run", "key", "broker", start, F.lit(kind)) % 2**52)
    return rows.select(
        "run", "key", number.alias("op"), F.lit(CLUSTER).alias("client"), F.lit(kind).alias("kind"), "broker",
        value.alias("value"), start.alias("start_ns"), F.lit(None).cast("bigint").alias("end_ns"),
        F.lit("indeterminate").alias("outcome"),
    )  # fmt: skip  # items grouped by line


def _late_copies(asked: DataFrame, facts: DataFrame) -> DataFrame:
    """Registrations of a life's last version with unknown outcome: run, broker, version, topics, start_ns."""
    lives = facts.select(
        F.col("run").alias("_run"), F.col("broker").alias("_broker"), "life", F.col("from_ns"), F.col("until_ns")
    )
    ends = facts.where(F.col("state").isin(*DEAD, "stopping"))
    ends = ends.groupBy("run", "broker", "life").agg(F.max_by("version", "from_ns").alias("version"))
    copies = asked.where((F.col("kind") == "register-copy") & (F.col("outcome") == "indeterminate"))
    copies = copies.select("run", F.col("key").alias("broker"), "value", "topics", "start_ns")
    during = (
        (F.col("run") == F.col("_run")) & (F.col("broker") == F.col("_broker"))
        & (F.col("start_ns") >= F.col("from_ns")) & (F.col("start_ns") < F.col("until_ns"))
    )  # fmt: skip  # items grouped by line
    placed = copies.join(F.broadcast(lives), during).drop("_run", "_broker", "from_ns", "until_ns")
    last = placed.join(F.broadcast(ends), ["run", "broker", "life"]).where(F.col("value").eqNullSafe(F.col("version")))
    return last.select("run", "broker", "version", "topics", "start_ns")


def _known_brokers(facts: DataFrame, late: DataFrame) -> DataFrame:
    """Brokers whose changes are all known: run, broker."""
    brokers = facts.groupBy("run", "broker").agg(F.max(F.col("state") == "exposed").alias("exposed"))
    brokers = brokers.withColumn("name", F.substring_index("broker", "/", 1))
    alone = brokers.groupBy("run", "name").agg(F.count("*").alias("_of_name"))
    many = late.groupBy("run", "broker").agg(F.count("*").alias("_late"))
    joined = brokers.join(alone, ["run", "name"]).join(many, ["run", "broker"], "left")
    good = ~F.col("exposed") & (F.col("_of_name") == 1) & (F.coalesce("_late", F.lit(0)) <= LATE_MAX)
    return joined.where(good).select("run", "broker")


def judged_registrations(history: DataFrame) -> DataFrame:
    """Each topic judged: rows of JUDGED, where a read is a look-up and a key is a topic."""

    def of_topic(table: pa.Table) -> pa.Table:
        brokers = table.column("broker").to_pylist()
        members = table.column("members").to_pylist()
        events = events_of(table)
        of = {event.op: place for place, (event, _) in enumerate(events)}

        def rows() -> Iterable[dict[str, Any]]:
            for level, chosen in by_level(events, "route"):
                history = [(event, brokers[of[event.op]], members[of[event.op]]) for event in chosen]
                yield from _judged_topic(history, level)

        return judged_table(table, rows)

    return history.groupBy("run", "key").applyInArrow(of_topic, JUDGED)


def _judged_topic(history: Sequence[tuple[KeyEvent, str | None, str | None]], level: str) -> Iterable[dict[str, Any]]:
    written = {broker for event, broker, _ in history if broker is not None and event.kind == "register"}
    looks = [(event, _versions(members, written)) for event, _, members in history if event.kind == "route"]
    looks = [(event, versions) for event, versions in looks if event.outcome == "ok"]
    changes = [(event, broker) for event, broker, _ in history if broker in written]
    found = _verdict(looks, changes)
    parts: list[KeyJudgement] = []
    ages: defaultdict[float, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for broker in sorted(written):
        events = [event._replace(kind="get", value=versions.get(broker)) for event, versions in looks]
        events += [
            event._replace(kind="put" if event.kind == "register" else "delete") for event, own in changes if own == broker
        ]
        parts.append(judge(events, atomic=found == "valid"))
        for age_ms, (compared, seen) in visibility(events).items():
            ages[age_ms] = ages[age_ms][0] + compared, ages[age_ms][1] + seen
    if parts:
        yield from rows_of(together(parts), level, found, history, ages)


def _versions(members: str | None, written: set[str]) -> dict[str, str]:
    """The versions of the judged brokers in a look-up."""
    return {m["name"]: m["version"] for m in orjson.loads(members or "[]") if m["name"] in written}


def _verdict(looks: Sequence[tuple[KeyEvent, dict[str, str]]], changes: Sequence[tuple[KeyEvent, str]]) -> str:
    """M1 of a topic: whole look-ups against registrations."""
    said: list[Operation] = []
    for event, versions in looks:
        said.append(_operation(event, [[name, version] for name, version in sorted(versions.items())]))
    for event, broker in changes:
        said.append(_operation(event, [broker, event.value] if event.kind == "register" else broker))
    return check_history(said, LIMITS).verdict.value if said else "valid"


def _operation(event: KeyEvent, value: Any) -> Operation:
    end_ns = None if event.end_ns == NEVER else int(event.end_ns)
    return Operation(event.client, event.kind, "topic", value, int(event.start_ns), end_ns, Outcome(event.outcome))


def together(parts: Sequence[KeyJudgement]) -> KeyJudgement:
    """Merges the judgements of a topic's brokers, whose reads are the same look-ups, into those of the topic."""
    reads: defaultdict[int, list[Read]] = defaultdict(list)
    for part in parts:
        for read in part.reads:
            reads[read.op].append(read)
    distances = [part.distance for part in parts]
    deltas = [distance.delta_ns for distance in distances]
    whole = Distance(
        None if None in deltas else max(delta for delta in deltas if delta is not None),
        sum(distance.pairs for distance in distances),
        sum(distance.conflicts for distance in distances),
        max(distance.gamma_max_ns for distance in distances),
        sorted(gamma for distance in distances for gamma in distance.gammas_ns),
    )
    return KeyJudgement([_worst(found) for found in reads.values()], [w for part in parts for w in part.windows], whole)


def _worst(found: Sequence[Read]) -> Read:
    """One look-up: as stale as its stalest broker. Its age is the greatest of the versions it missed, or else the smallest of
    those it saw.
    """
    behind = [read.versions_behind for read in found]
    stale = [read.age_ns for read in found if read.age_ns is not None and not read.fresh]
    seen = [read.age_ns for read in found if read.age_ns is not None]
    fresh = all(read.fresh for read in found)
    return Read(
        op=found[0].op,
        anomalous=any(read.anomalous for read in found),
        versions_behind=None if None in behind else sum(count for count in behind if count is not None),
        fresh=fresh,
        age_ns=max(stale, default=None) if not fresh else min(seen, default=None),
        read_your_writes=any(read.read_your_writes for read in found),
        monotonic_reads=any(read.monotonic_reads for read in found),
        monotonic_writes=any(read.monotonic_writes for read in found),
        writes_follow_reads=any(read.writes_follow_reads for read in found),
        lost=any(read.lost for read in found),
        resurrected=any(read.resurrected for read in found),
    )
