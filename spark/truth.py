"""Compares answers with the true state of brokers: harvest, ghosts (M11, M13), and failure detection by name servers (M16).

A broker must be in the answer for a topic if it was serving the topic during the whole look-up. It must not be there if it was
dead during the whole look-up. In between, both answers are correct.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from replicated_namesrv.spark.schemas import MEMBERS

SERVING = ("serving", "exposed", "safe")
"""States in which a broker is alive and has registered."""
BETWEEN = ("starting", "stopping")
DEAD = ("dead", "silent")


def truth_spans(records: DataFrame) -> DataFrame:
    """Each broker's state from one truth record to the next."""
    of_broker = Window.partitionBy("run", "broker").orderBy("time_ns")
    facts = records.where((F.col("record") == "truth") & F.col("corrupt_line").isNull())
    until = F.coalesce(F.lead("time_ns").over(of_broker), F.lit(2**63 - 1))
    before = F.lag("topics").over(of_broker)
    return facts.select(
        "run", "broker", "life", "state", "version", "topics", "timeout_ms", F.col("time_ns").alias("from_ns"),
        until.alias("until_ns"),
        F.coalesce(before, F.array().cast("array<string>")).alias("topics_before"),
    )  # fmt: skip  # items grouped by line


def look_ups(operations: DataFrame, spans: DataFrame) -> DataFrame:
    """One row for each answered route look-up before ``final``. Columns: ``must``, brokers that must be in the answer; ``found``,
    how many of them are; ``answered``, brokers in the answer; ``ghosts``, those of them that must not be there."""
    routes = operations.where((F.col("kind") == "route") & (F.col("outcome") == "ok") & (F.col("phase") != "final"))
    routes = routes.withColumn("names", F.transform(F.from_json("members", MEMBERS), lambda m: m["name"]))
    routes = routes.select("run", "mode", "level", "phase", "side", "op", "key", "start_ns", "end_ns", "names")
    facts = F.broadcast(spans.withColumnRenamed("run", "_run"))
    together = (F.col("run") == F.col("_run")) & (F.col("from_ns") < F.col("end_ns")) & (F.col("until_ns") > F.col("start_ns"))
    now = F.array_contains("topics", F.col("key"))
    serves = F.col("state").isin(*SERVING) & now
    may = serves | (F.col("state").isin(*BETWEEN) & (now | F.array_contains("topics_before", F.col("key"))))
    # A broker that changes its topics still serves the old ones until the change is acknowledged.
    may = may | (
        F.col("state").isin(*SERVING) & F.array_contains("topics_before", F.col("key")) & (F.col("from_ns") >= F.col("start_ns"))
    )
    of_broker = (
        routes.join(facts, together)
        .groupBy("run", "op", "broker")
        .agg(
            F.min(serves).alias("_serves"),
            F.max(may).alias("_may"),
            F.min("from_ns").alias("_from"),
            F.min("start_ns").alias("_start"),
        )
        .withColumn("_must", F.col("_serves") & (F.col("_from") <= F.col("_start")))
    )
    of_op = of_broker.groupBy("run", "op").agg(
        F.collect_set(F.when(F.col("_must"), F.col("broker"))).alias("_must"),
        F.collect_set(F.when(F.col("_may"), F.col("broker"))).alias("_may"),
    )
    empty = F.array().cast("array<string>")
    found = routes.join(of_op, ["run", "op"], "left")
    found = found.withColumn("_must", F.coalesce("_must", empty)).withColumn("_may", F.coalesce("_may", empty))
    return found.select(
        "run", "mode", "level", "phase", "side", "op",
        F.size("_must").alias("must"),
        F.size(F.array_intersect("names", "_must")).alias("found"),
        F.size("names").alias("answered"),
        F.size(F.array_except("names", "_may")).alias("ghosts"),
    )  # fmt: skip  # items grouped by line


def detections(records: DataFrame, spans: DataFrame) -> DataFrame:
    """T_D (Chen, Toueg and Aguilera 2002). For each death, and each node that then dropped the broker: ``detected_ns``, from the
    death to the last drop. A late request may list the dead broker once more, so there may be several drops."""
    deaths = spans.where(F.col("state").isin(*DEAD)).select(
        "run", "broker", "life", F.col("from_ns").alias("died_ns"), "until_ns"
    )
    drops = _drops(records)
    same = ["run", "broker"]
    joined = deaths.join(drops, same).where((F.col("at_ns") >= F.col("died_ns")) & (F.col("at_ns") < F.col("until_ns")))
    last = joined.groupBy("run", "broker", "life", "node", "died_ns").agg(F.max("at_ns").alias("at_ns"))
    return last.select("run", "broker", "life", "node", (F.col("at_ns") - F.col("died_ns")).alias("detected_ns"))


def mistakes(records: DataFrame, spans: DataFrame, states: DataFrame) -> DataFrame:
    """Drops of a live broker: ``mistake_ns`` until the node lists it again (null: not seen), ``recurrence_ns`` until the
    node's next mistake about this broker (null: none).

    Both are measured within one life of the broker: after its end the drop is correct, and the definition of mistakes assumes
    that nothing fails (Chen, Toueg and Aguilera 2002)."""
    alive = spans.where(F.col("state").isin(*SERVING)).select("run", "broker", "life", "state", "from_ns", "until_ns")
    lives = alive.withColumn("_ends", F.max("until_ns").over(Window.partitionBy("run", "broker", "life")))
    drops = _drops(records)
    wrong = drops.join(F.broadcast(lives), ["run", "broker"]).where(_within("at_ns"))
    listed = (
        states.where(F.col("key") == "brokers")
        .select("run", "node", F.col("from_ns").alias("_listed"), F.explode(F.from_json("members", MEMBERS)).alias("m"))
        .select(F.col("run").alias("_run"), F.col("node").alias("_node"), F.col("m.name").alias("_broker"), "_listed")
    )
    again = (
        (F.col("run") == F.col("_run")) & (F.col("node") == F.col("_node")) & (F.col("broker") == F.col("_broker"))
        & (F.col("_listed") > F.col("at_ns")) & (F.col("_listed") < F.col("_ends"))
    )  # fmt: skip  # items grouped by line
    back = wrong.join(listed, again, "left").groupBy("run", "broker", "life", "node", "at_ns", "state")
    following = Window.partitionBy("run", "broker", "life", "node").orderBy("at_ns")
    recurrence = F.lead("at_ns").over(following) - F.col("at_ns")
    # A node cannot drop a broker that it does not list, so it had listed the broker again by its next drop, even if that was
    # not seen.
    return back.agg(F.min("_listed").alias("_back")).select(
        "run", "broker", "node", "at_ns", (F.col("state") == "exposed").alias("exposed"),
        F.least(F.col("_back") - F.col("at_ns"), recurrence).alias("mistake_ns"), recurrence.alias("recurrence_ns"),
    )  # fmt: skip  # items grouped by line


def _within(column: str) -> Column:
    return (F.col(column) >= F.col("from_ns")) & (F.col(column) < F.col("until_ns"))


def _drops(records: DataFrame) -> DataFrame:
    expiries = records.where((F.col("record") == "expiry") & F.col("corrupt_line").isNull())
    return expiries.select("run", "node", "broker", F.col("time_ns").alias("at_ns"))
