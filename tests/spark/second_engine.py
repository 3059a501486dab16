"""The same figures by another engine: DuckDB, in SQL that follows the definitions and shares no code with the analysis."""

from collections.abc import Sequence
from pathlib import Path

import duckdb

Figure = tuple[str, str, str, str, str]
"""run, level, phase, side, metric."""

_LINES = """
CREATE TABLE lines AS SELECT parse_path(filename)[-2] AS run, * EXCLUDE (filename) FROM read_json({files}, filename = true,
  format = 'newline_delimited', columns = {{record: 'VARCHAR', time_ns: 'BIGINT', asked_ns: 'BIGINT', node: 'VARCHAR',
  key: 'VARCHAR', answered: 'BOOLEAN', members: 'VARCHAR', phase: 'VARCHAR', op: 'BIGINT', client: 'VARCHAR', kind: 'VARCHAR',
  value: 'VARCHAR', outcome: 'VARCHAR', edge: 'VARCHAR', sides: 'VARCHAR[][]'}});
CREATE TABLE runs AS SELECT run, read_consistency AS level, len(nodes) AS nodes, observe_interval_ms * 1000000 AS look_ns,
  deadline_ms * 1000000 AS deadline_ns FROM read_json({manifests}, columns = {{run: 'VARCHAR', read_consistency: 'VARCHAR',
  nodes: 'JSON[]', observe_interval_ms: 'BIGINT', deadline_ms: 'BIGINT'}});
CREATE TABLE phases AS SELECT * FROM (SELECT run, phase, time_ns AS start_ns,
  lead(time_ns) OVER (PARTITION BY run ORDER BY time_ns) AS end_ns FROM lines WHERE record = 'phase') WHERE end_ns IS NOT NULL;
CREATE TABLE sides AS
  WITH edges AS (SELECT run, time_ns AS start_ns, sides,
    coalesce(lead(time_ns) OVER (PARTITION BY run ORDER BY time_ns), 9223372036854775807) AS end_ns
    FROM lines WHERE record = 'fault'),
  parts AS (SELECT run, start_ns, end_ns, unnest(sides) AS part FROM edges)
  SELECT run, unnest(part) AS node, start_ns, end_ns, CASE WHEN len(part) = nodes THEN 'whole'
    WHEN 2 * len(part) > nodes THEN 'majority' ELSE 'minority' END AS side FROM parts JOIN runs USING (run);
"""

_STATES = """
CREATE TABLE looks AS SELECT run, key, node, CASE WHEN answered THEN time_ns ELSE asked_ns END AS at_ns, asked_ns,
  CASE WHEN answered THEN members END AS members FROM lines WHERE record = 'observe';
CREATE TABLE answers AS
  WITH marked AS (SELECT *, lag(members) OVER node AS former, lag(at_ns) OVER node AS former_ns
    FROM looks WINDOW node AS (PARTITION BY run, key, node ORDER BY at_ns)),
  numbered AS (SELECT *, sum(CASE WHEN former_ns IS NULL OR members IS DISTINCT FROM former OR at_ns - former_ns > 3000000000
    THEN 1 ELSE 0 END) OVER (PARTITION BY run, key, node ORDER BY at_ns) AS number FROM marked),
  spans AS (SELECT run, key, node, number, min(at_ns) AS from_ns, max(at_ns) AS last_ns, max(asked_ns) AS last_asked_ns,
    any_value(members) AS members FROM numbered GROUP BY ALL),
  followed AS (SELECT *, lead(from_ns) OVER w AS next_ns, lead(members) OVER w IS NOT NULL AS next_answers,
    coalesce(from_ns - lag(last_ns) OVER w > 3000000000 OR lag(members) OVER w IS NULL, true) AS begins,
    lag(last_asked_ns) OVER w AS former_asked_ns FROM spans WINDOW w AS (PARTITION BY run, key, node ORDER BY from_ns)),
  known AS (SELECT *, sum(begins::INT) OVER (PARTITION BY run, key, node ORDER BY from_ns) AS series FROM followed
    WHERE members IS NOT NULL)
  SELECT *, CASE WHEN next_ns - last_ns <= 3000000000 THEN next_ns ELSE last_ns END AS until_ns,
    min(from_ns) OVER s AS first_ns, max(last_asked_ns) OVER s AS end_ns,
    CASE WHEN begins THEN from_ns ELSE greatest(former_asked_ns, min(from_ns) OVER s) END AS may_from_ns,
    CASE WHEN next_answers AND next_ns - last_ns <= 3000000000 THEN least(next_ns, max(last_asked_ns) OVER s)
      ELSE last_asked_ns END AS may_until_ns
  FROM known WINDOW s AS (PARTITION BY run, key, node, series);
CREATE TABLE states AS SELECT run, key, node, from_ns, until_ns FROM answers;
"""

_SEGMENTS = """
CREATE TABLE possible AS SELECT run, key, node, may_from_ns AS from_ns, may_until_ns AS until_ns, members FROM answers
  WHERE may_from_ns < may_until_ns;
CREATE TABLE instants AS SELECT * FROM (SELECT run, key, at_ns, lead(at_ns) OVER (PARTITION BY run, key ORDER BY at_ns) AS next_ns
  FROM (SELECT run, key, from_ns AS at_ns FROM possible UNION SELECT run, key, until_ns FROM possible)) WHERE next_ns IS NOT NULL;
CREATE TABLE known AS SELECT i.run, i.key, i.at_ns, i.next_ns, s.node, s.members,
    count(*) OVER (PARTITION BY i.run, i.key, i.at_ns, s.node) AS choices FROM instants i JOIN possible s
  ON i.run = s.run AND i.key = s.key AND s.from_ns <= i.at_ns AND s.until_ns > i.at_ns;
CREATE TABLE segments AS
  WITH elementary AS (SELECT run, key, at_ns, next_ns, count(DISTINCT node) AS nodes_known,
    (count(DISTINCT members) FILTER (choices = 1) > 1)::INT::DOUBLE AS certain,
    (count(DISTINCT node) > 1 AND count(DISTINCT members) > 1)::INT::DOUBLE AS possible FROM known GROUP BY ALL),
  marked AS (SELECT *, coalesce(at_ns <> lag(next_ns) OVER w OR certain <> lag(certain) OVER w OR possible <>
    lag(possible) OVER w OR nodes_known <> lag(nodes_known) OVER w, true) AS begins FROM elementary
    WINDOW w AS (PARTITION BY run, key ORDER BY at_ns)),
  numbered AS (SELECT *, sum(begins::INT) OVER (PARTITION BY run, key ORDER BY at_ns) AS number FROM marked)
  SELECT run, key, min(at_ns) AS start_ns, max(next_ns) AS end_ns, any_value(certain) AS certain,
    any_value(possible) AS possible, any_value(nodes_known) AS nodes_known FROM numbered GROUP BY run, key, number;
CREATE TABLE episodes AS
  WITH measured AS (SELECT *, possible AS measure, false AS real FROM segments WHERE possible > 0
      UNION ALL SELECT *, certain, true FROM segments WHERE certain > 0),
  marked AS (SELECT *, coalesce(start_ns <> lag(end_ns) OVER w, true) AS begins FROM measured
    WINDOW w AS (PARTITION BY run, key, real ORDER BY start_ns)),
  numbered AS (SELECT *, sum(begins::INT) OVER (PARTITION BY run, key, real ORDER BY start_ns) AS number FROM marked),
  spans AS (SELECT run, key, min(start_ns) AS start_ns, max(end_ns) AS end_ns, sum(measure * (end_ns - start_ns) / 1e9) AS area_s,
    max(measure) AS divergence_max, real, max(certain) AS certain_max FROM numbered GROUP BY run, key, real, number)
  SELECT * EXCLUDE (real, certain_max), real AS certain FROM spans WHERE real OR certain_max = 0;
"""
"""Two states of a generated trace share no member, so a distance is 0 or 1. For the least distance, a node whose state is not
certain counts as equal to any other node."""

_OPERATIONS = """
CREATE TABLE placed AS
  WITH done AS (SELECT i.run, i.op, i.client, i.kind, i.key, i.node, r.level, coalesce(c.outcome, 'indeterminate') AS outcome,
    CASE WHEN i.kind = 'get' THEN c.value ELSE i.value END AS value, coalesce(c.node, i.node) AS answered_by,
    i.time_ns AS start_ns, c.time_ns AS end_ns
    FROM (SELECT * FROM lines WHERE record = 'invoke') i JOIN runs r USING (run)
    LEFT JOIN (SELECT * FROM lines WHERE record = 'complete') c ON i.run = c.run AND i.op = c.op)
  SELECT done.*, p.phase, coalesce(s.side, 'whole') AS side FROM done JOIN phases p ON done.run = p.run
    AND done.start_ns >= p.start_ns AND done.start_ns < p.end_ns
    LEFT JOIN sides s ON done.run = s.run AND s.node = answered_by AND done.start_ns >= s.start_ns AND done.start_ns < s.end_ns;
CREATE TABLE operations AS SELECT * FROM placed WHERE phase <> 'settle';
CREATE TABLE writes AS SELECT * FROM placed WHERE kind = 'put' AND outcome = 'ok';
CREATE TABLE sourced AS SELECT r.*, w.op AS source, w.start_ns AS source_start_ns, coalesce(w.end_ns, -1) AS since_ns,
  w.client AS writer FROM operations r LEFT JOIN writes w ON r.run = w.run AND r.key = w.key AND r.value = w.value
  WHERE r.kind = 'get' AND r.outcome = 'ok';
CREATE TABLE missed AS SELECT r.run, r.op, w.op AS write, w.end_ns, r.start_ns, w.client = r.client AS own FROM sourced r
  JOIN writes w ON r.run = w.run AND r.key = w.key AND w.end_ns < r.start_ns AND w.start_ns > r.since_ns;
CREATE TABLE reads AS
  WITH missing AS (SELECT run, op, count(*) AS behind, min(end_ns) AS first_ns, bool_or(own) AS own FROM missed GROUP BY ALL),
  latest AS (SELECT r.run, r.op, w.end_ns AS last_ns FROM sourced r ASOF JOIN writes w
    ON r.run = w.run AND r.key = w.key AND w.end_ns < r.start_ns),
  learned AS (SELECT w.run, w.op, max(r.source_start_ns) AS known_ns FROM writes w JOIN sourced r
    ON w.run = r.run AND w.key = r.key AND w.client = r.client AND r.end_ns < w.start_ns GROUP BY ALL),
  session AS (SELECT r.run, r.op, max(b.source_start_ns) AS seen_ns, max(l.known_ns) AS cause_ns,
    max(CASE WHEN b.writer = r.writer THEN b.source_start_ns END) AS same_writer_ns
    FROM sourced r JOIN sourced b ON r.run = b.run AND r.key = b.key AND r.client = b.client AND b.end_ns < r.start_ns
      AND b.source IS NOT NULL LEFT JOIN learned l ON l.run = b.run AND l.op = b.source GROUP BY r.run, r.op)
  SELECT r.*, coalesce(behind, 0) AS behind, r.source IS NOT NULL AND behind IS NULL AS fresh,
    r.start_ns - coalesce(first_ns, last_ns) AS age_ns, coalesce(own, false) AS read_your_writes,
    coalesce(seen_ns > since_ns, false) AS monotonic_reads, coalesce(cause_ns > since_ns, false) AS writes_follow_reads,
    coalesce(same_writer_ns > since_ns, false) AS monotonic_writes
  FROM sourced r LEFT JOIN missing USING (run, op) LEFT JOIN latest USING (run, op) LEFT JOIN session USING (run, op);
CREATE TABLE zones AS SELECT w.run, w.key, w.level, w.op, w.start_ns AS write_start, least(w.end_ns, min(r.end_ns)) AS first_end,
  greatest(w.start_ns, max(r.start_ns)) AS last_start, max(r.start_ns) AS read_start
  FROM writes w LEFT JOIN sourced r ON r.run = w.run AND r.source = w.op
  GROUP BY w.run, w.key, w.level, w.op, w.start_ns, w.end_ns;
CREATE TABLE conflicts AS SELECT a.run, a.key, least(b.last_start - a.first_end, a.last_start - b.first_end) AS gamma_ns,
    least(CASE WHEN b.write_start <= a.first_end THEN b.read_start - a.first_end END,
          CASE WHEN a.write_start <= b.first_end THEN a.read_start - b.first_end END) AS delta_ns
  FROM zones a JOIN zones b ON a.run = b.run AND a.key = b.key AND a.op < b.op
    AND a.first_end < b.last_start AND b.first_end < a.last_start;
CREATE TABLE gaps AS
  WITH span AS (SELECT run, min(start_ns) FILTER (phase = 'steady') AS from_ns, max(end_ns) FILTER (phase = 'heal') AS until_ns,
    min(start_ns) FILTER (phase = 'fault') AS fault_ns, max(end_ns) FILTER (phase = 'fault') AS heal_ns FROM phases GROUP BY run),
  issued AS (SELECT * FROM operations WHERE phase <> 'final'),
  marks AS (SELECT run, level, kind, node, end_ns AS at_ns FROM issued WHERE outcome = 'ok'
    UNION ALL SELECT DISTINCT run, level, kind, node, from_ns FROM issued JOIN span USING (run)
    UNION ALL SELECT DISTINCT run, level, kind, node, until_ns FROM issued JOIN span USING (run)),
  followed AS (SELECT *, lead(at_ns) OVER (PARTITION BY run, level, kind, node ORDER BY at_ns) AS next_ns
    FROM marks JOIN span USING (run) WHERE at_ns BETWEEN from_ns AND until_ns),
  phased AS (SELECT *, CASE WHEN at_ns < heal_ns AND next_ns > fault_ns THEN 'fault' WHEN at_ns < fault_ns THEN 'steady'
    ELSE 'heal' END AS phase FROM followed WHERE next_ns IS NOT NULL),
  placed AS (SELECT *, CASE WHEN phase = 'fault' THEN greatest(at_ns, fault_ns) ELSE at_ns END AS moment FROM phased)
  SELECT p.run, level, kind, p.node, phase, coalesce(s.side, 'whole') AS side, next_ns - at_ns AS gap_ns
    FROM placed p LEFT JOIN sides s ON p.run = s.run AND p.node = s.node AND moment >= s.start_ns AND moment < s.end_ns;
"""

_BY_ALL = "run, coalesce(level, 'all') AS level, coalesce(phase, 'all') AS phase, coalesce(side, 'all') AS side"
_SETS = "GROUP BY run, CUBE (level, phase, side)"
_LEVELS = "GROUP BY run, CUBE (level)"
_WHOLE = "'all' AS phase, 'all' AS side"

_FIGURES = {
    "reads": f"""SELECT {_BY_ALL}, count(*) AS count, avg((source IS NULL OR behind > 0)::INT) AS anomalous_reads,
      avg(fresh::INT) AS fresh_reads, max(CASE WHEN fresh THEN 0 ELSE age_ns END) / 1e6 AS staleness_max,
      avg(CASE WHEN source IS NOT NULL THEN behind END) AS versions_behind_mean,
      max(CASE WHEN source IS NOT NULL THEN behind END) AS versions_behind_max, count(*) FILTER (read_your_writes) AS
      read_your_writes, count(*) FILTER (monotonic_reads) AS monotonic_reads, count(*) FILTER (monotonic_writes) AS
      monotonic_writes, count(*) FILTER (writes_follow_reads) AS writes_follow_reads FROM reads WHERE phase <> 'final' {_SETS}""",
    "final": f"""SELECT run, coalesce(level, 'all') AS level, {_WHOLE}, count(*) AS count,
      count(DISTINCT key) FILTER (behind > 0) AS lost_writes, 0 AS resurrected FROM reads WHERE phase = 'final' {_LEVELS}""",
    "keys": f"""WITH judged AS (SELECT o.run, o.key, o.level, count(*) AS operations FROM placed o
        WHERE kind = 'put' OR phase <> 'settle' GROUP BY ALL),
      scores AS (SELECT run, quantile_cont(gamma_ns, 0.5) / 1e6 AS gamma_median, quantile_cont(gamma_ns, 0.99) / 1e6 AS gamma_p99
        FROM conflicts GROUP BY run),
      unwritten AS (SELECT run, key, true AS hopeless FROM reads WHERE source IS NULL GROUP BY ALL),
      apart AS (SELECT run, key, count(*) AS conflicts, max(gamma_ns) AS gamma_ns, max(delta_ns) AS delta_ns,
        bool_or(delta_ns IS NULL) AS stuck FROM conflicts GROUP BY ALL),
      clusters AS (SELECT run, key, count(*) AS n FROM zones GROUP BY ALL),
      each AS (SELECT j.*, conflicts IS NULL AND hopeless IS NULL AS good, coalesce(conflicts, 0) AS conflicts,
        n * (n + 1) // 2 AS pairs, coalesce(gamma_ns, 0) AS gamma_ns,
        CASE WHEN hopeless IS NULL AND coalesce(stuck, false) = false THEN coalesce(delta_ns, 0) END AS delta_ns
        FROM judged j JOIN clusters USING (run, key) LEFT JOIN apart USING (run, key) LEFT JOIN unwritten USING (run, key))
      SELECT run, coalesce(level, 'all') AS level, {_WHOLE}, sum(operations) AS count, avg(good::INT) AS linearizable_keys,
      0.0 AS unknown_keys, max(delta_ns) / 1e6 AS delta_max, sum(conflicts) / sum(pairs) AS conflict_share,
      max(gamma_ns) / 1e6 AS gamma_max, any_value(gamma_median) AS gamma_median, any_value(gamma_p99) AS gamma_p99
      FROM each LEFT JOIN scores USING (run) {_LEVELS}""",
    "windows": f"""WITH late AS (SELECT run, write, max(start_ns - end_ns) AS window_ns FROM missed GROUP BY ALL),
      seen AS (SELECT w.*, coalesce(window_ns, 0) AS window_ns FROM writes w LEFT JOIN late ON w.run = late.run AND w.op = write
        WHERE w.phase <> 'settle' AND EXISTS (FROM sourced r WHERE r.run = w.run AND r.key = w.key AND r.start_ns >= w.end_ns))
      SELECT {_BY_ALL}, count(*) AS count, quantile_cont(window_ns, 0.5) / 1e6 AS window_median,
      quantile_cont(window_ns, 0.99) / 1e6 AS window_p99, max(window_ns) / 1e6 AS window_max FROM seen {_SETS}""",
    "operations": f"""WITH asked AS (SELECT o.*, outcome = 'ok' AS ok, end_ns - start_ns AS took, deadline_ns FROM operations o
        JOIN runs USING (run) WHERE phase <> 'final')
      SELECT {_BY_ALL}, count(*) AS count, avg(ok::INT) AS yield, avg((ok AND took <= deadline_ns)::INT) AS yield_in_time,
      avg(ok::INT) AS pinned_yield, avg((ok AND took <= deadline_ns)::INT) AS pinned_yield_in_time,
      quantile_cont(took, 0.5) FILTER (ok AND kind = 'put') / 1e6 AS put_latency_median,
      quantile_cont(took, 0.99) FILTER (ok AND kind = 'put') / 1e6 AS put_latency_p99,
      quantile_cont(took, 0.5) FILTER (ok AND kind = 'get') / 1e6 AS get_latency_median,
      quantile_cont(took, 0.99) FILTER (ok AND kind = 'get') / 1e6 AS get_latency_p99 FROM asked {_SETS}""",
    "gaps": """WITH each AS (SELECT run, level, kind, node, coalesce(phase, 'all') AS phase, coalesce(side, 'all') AS side,
        max(gap_ns) AS longest, sum(CASE WHEN gap_ns > deadline_ns THEN gap_ns ELSE 0 END) AS total, count(*) AS n
        FROM gaps JOIN runs USING (run, level) GROUP BY run, level, kind, node, CUBE (phase, side))
      SELECT run, coalesce(level, 'all') AS level, phase, side, sum(n) AS count, max(longest) / 1e9 AS pinned_unavailable_longest,
      max(total) / 1e9 AS pinned_unavailable_total FROM each GROUP BY run, phase, side, CUBE (level)""",
    "divergence": f"""WITH observed AS (SELECT run, sum(end_ns - start_ns) / 1e9 AS seconds, count(*) AS n,
        sum(certain * (end_ns - start_ns)) / 1e9 AS area, sum(possible * (end_ns - start_ns)) / 1e9 AS area_possible,
        max(certain) AS most FROM segments GROUP BY run),
      found AS (SELECT run, count(*) FILTER (certain) AS many, count(*) FILTER (NOT certain) AS short FROM episodes GROUP BY run)
      SELECT run, 'all' AS level, {_WHOLE}, n AS count, area AS divergence_area, area_possible AS divergence_area_possible,
      area / seconds AS divergence_share, area_possible / seconds AS divergence_share_possible, most AS divergence_max,
      coalesce(many, 0) AS episodes, coalesce(short, 0) AS episodes_uncertain FROM observed LEFT JOIN found USING (run)""",
    "convergence": f"""WITH marks AS (SELECT run, min(start_ns) FILTER (phase = 'fault') AS fault_ns FROM phases GROUP BY run),
      repairs AS (SELECT run, max(time_ns) AS repair_ns FROM lines WHERE record = 'fault' AND edge = 'end' GROUP BY run),
      late AS (SELECT run, arg_max(s, s.end_ns) AS last FROM segments s JOIN marks USING (run)
        WHERE certain > 0 AND end_ns > fault_ns GROUP BY run),
      after AS (SELECT run, count(*) AS n, min(start_ns) FILTER (possible = 0) AS agreed_ns FROM segments s JOIN late USING (run)
        WHERE s.start_ns >= last.end_ns AND s.nodes_known >= last.nodes_known GROUP BY run)
      SELECT run, 'all' AS level, {_WHOLE}, 1 AS count,
        CASE WHEN n > 0 OR last.end_ns <= repair_ns THEN greatest(0, last.end_ns - repair_ns) / 1e9 END AS convergence,
        greatest(0, agreed_ns - repair_ns) / 1e9 AS agreement,
        (NOT coalesce(n > 0 OR last.end_ns <= repair_ns, false))::INT AS not_converged
      FROM late JOIN repairs USING (run) LEFT JOIN after USING (run)""",
    "mistakes": f"""SELECT run, 'all' AS level, {_WHOLE}, count(*) FILTER (record = 'expiry') AS count, 0 AS mistakes,
      0 AS mistakes_exposed FROM lines GROUP BY run""",
}


class SecondEngine:
    """The figures of some generated runs."""

    def __init__(self, folders: Sequence[Path], threads: int = 2) -> None:
        self.database = duckdb.connect()
        self.database.execute(f"SET threads = {threads}")
        files = [str(folder / "trace.jsonl") for folder in folders]
        manifests = [str(folder / "manifest.json") for folder in folders]
        self.database.execute(_LINES.format(files=files, manifests=manifests))
        for script in (_STATES, _SEGMENTS, _OPERATIONS):
            self.database.execute(script)

    def close(self) -> None:
        self.database.close()

    def figures(self) -> dict[Figure, tuple[float, int]]:
        """Value and count of every figure that has a value."""
        found: dict[Figure, tuple[float, int]] = {}
        for query in _FIGURES.values():
            cursor = self.database.execute(query)
            names = [column[0] for column in cursor.description or ()]
            for run, level, phase, side, count, *values in cursor.fetchall():
                for metric, value in zip(names[5:], values, strict=True):
                    if value is not None:
                        found[run, level, phase, side, metric] = (float(value), int(count))
        return found

    def rows(self, table: str, *columns: str) -> list[tuple[object, ...]]:
        """All rows of a table, sorted."""
        return self.database.execute(f"SELECT {', '.join(columns)} FROM {table} ORDER BY ALL").fetchall()
