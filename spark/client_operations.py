"""Operations: one row for each invocation with its outcome, its phase, and the side of the node that was asked."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from replicated_namesrv.spark.schemas import MEMBERS, OPERATIONS
from replicated_namesrv.spark.timeline import with_phase, with_side

ANY = "any"
"""Entity of clients that choose their node themselves."""


def completed_invocations(records: DataFrame, *kinds: str) -> DataFrame:
    """Invocations of these kinds, or all, with their outcomes: the columns of OPERATIONS without level, phase and side, in all
    phases.

    ``topics`` are the registered topics. An invocation without completion is indeterminate: the harness died before the end."""
    good = records.where(F.col("corrupt_line").isNull())
    asked = good.where(F.col("record") == "invoke")
    if kinds:
        asked = asked.where(F.col("kind").isin(*kinds))
    invoked = asked.select(
        "run", "mode", "op", "client", "kind", "key", "node", "level", "probe", "topics", F.col("value").alias("written"),
        F.col("time_ns").alias("start_ns"),
    )  # fmt: skip  # items grouped by line
    completed = good.where(F.col("record") == "complete").select(
        F.col("run").alias("_run"), F.col("op").alias("_op"), "outcome", F.col("node").alias("answered_by"),
        F.col("value").alias("returned"), "members", F.col("time_ns").alias("end_ns"),
    )  # fmt: skip  # items grouped by line
    same = (F.col("run") == F.col("_run")) & (F.col("op") == F.col("_op"))
    return (
        invoked.join(completed, same, "left")
        .drop("_run", "_op")
        .withColumn("outcome", F.coalesce("outcome", F.lit("indeterminate")))
        .withColumn("value", F.when(F.col("kind") == "get", F.col("returned")).otherwise(F.col("written")))
        .drop("written", "returned")
    )


def operations(records: DataFrame, runs: DataFrame, phases_table: DataFrame, sides_table: DataFrame) -> DataFrame:
    """OPERATIONS of the judged phases."""
    levels = F.broadcast(runs.select("run", F.col("read_consistency").alias("_level")))
    rows = completed_invocations(records).join(levels, "run").withColumn("level", F.coalesce("level", "_level"))
    rows = with_phase(rows, phases_table, F.col("start_ns"))
    rows = with_side(rows, sides_table, F.coalesce("answered_by", "node"), F.col("start_ns"))
    return rows.select(*[field.name for field in OPERATIONS.fields])


def probes(rows: DataFrame) -> DataFrame:
    """One row per probe: ``answers`` of the ``asked`` nodes, and whether all answers were ``equal`` (M3). Needs two answers."""
    answered = F.col("outcome") == "ok"
    names = F.array_sort(F.transform(F.from_json("members", MEMBERS), lambda m: F.concat_ws("@", m["name"], m["version"])))
    # An empty answer and "no such key" are answers, too, and equal to each other.
    answer = F.when(F.col("kind") == "route", F.concat_ws(",", names)).otherwise(
        F.concat(F.lit("="), F.coalesce("value", F.lit("")))
    )
    absent = F.when((F.col("kind") == "get") & F.col("value").isNull(), F.lit("")).otherwise(answer)
    grouped = rows.where(F.col("probe").isNotNull()).withColumn("answer", F.when(answered, F.coalesce(absent, F.lit(""))))
    return (
        grouped.groupBy("run", "level", "phase", "kind", "key", "probe")
        .agg(
            F.count("*").alias("asked"),
            F.count("answer").alias("answers"),
            (F.countDistinct("answer") == 1).alias("equal"),
            F.min("start_ns").alias("start_ns"),
        )
        .where(F.col("answers") >= 2)
    )


def gaps(rows: DataFrame, phases_table: DataFrame, sides_table: DataFrame) -> DataFrame:
    """M17: time from one success to the next of the same kind at the same node, from the begin of ``steady`` to that of
    ``final``.

    ``entity`` is the node of a pinned client, or ``any`` for clients that choose their node. A gap that overlaps the phase
    ``fault`` belongs to it. Its side is that of its node when the gap began or, if later, when the fault began.
    """
    span = phases_table.groupBy("run").agg(
        F.min(F.when(F.col("phase") == "steady", F.col("start_ns"))).alias("from_ns"),
        F.max(F.when(F.col("phase").isin("steady", "fault", "heal"), F.col("end_ns"))).alias("until_ns"),
        F.min(F.when(F.col("phase") == "fault", F.col("start_ns"))).alias("fault_ns"),
        F.max(F.when(F.col("phase") == "fault", F.col("end_ns"))).alias("heal_ns"),
    )
    issued = rows.where(F.col("phase") != "final").withColumn("entity", F.coalesce("node", F.lit(ANY)))
    group = ["run", "level", "kind", "entity"]
    ok = F.col("outcome") == "ok"
    bounds = issued.groupBy(*group).agg(F.count(F.when(ok, 1)).alias("_n")).join(F.broadcast(span), "run")
    marks = issued.where(ok).select(*group, F.col("end_ns").alias("at_ns"))
    marks = marks.unionByName(bounds.select(*group, F.col("from_ns").alias("at_ns")))
    marks = marks.unionByName(bounds.select(*group, F.col("until_ns").alias("at_ns")))
    following = Window.partitionBy(*group).orderBy("at_ns")
    found = marks.join(F.broadcast(span), "run").where(F.col("at_ns").between(F.col("from_ns"), F.col("until_ns")))
    found = found.withColumn("next_ns", F.lead("at_ns").over(following)).where(F.col("next_ns").isNotNull())
    during = (F.col("at_ns") < F.col("heal_ns")) & (F.col("next_ns") > F.col("fault_ns"))
    phase = F.when(during, "fault").when(F.col("at_ns") >= F.col("heal_ns"), "heal").otherwise("steady")
    found = found.withColumn("phase", phase)
    moment = F.when(F.col("phase") == "fault", F.greatest("at_ns", "fault_ns")).otherwise(F.col("at_ns"))
    node = F.when(F.col("entity") != ANY, F.col("entity"))
    found = with_side(found, sides_table, node, moment)
    return found.select(*group, "phase", "side", (F.col("next_ns") - F.col("at_ns")).alias("gap_ns"))
