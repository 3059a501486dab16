"""Settings of Spark: options of ``spark-submit`` hold, and a cluster does not get those of the embedded session."""

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from replicated_namesrv.spark import session
from replicated_namesrv.spark.java import java_home

ROOT = Path(__file__).parents[2]
PROBE = """
from replicated_namesrv.spark.session import session
with session("probe", None) as spark:
    names = "spark.sql.shuffle.partitions", "spark.sql.parquet.compression.codec", "spark.sql.session.timeZone"
    print("CONF", *(spark.conf.get(name) for name in names))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_spark_submit_sets_holds(tmp_path: Path) -> None:
    probe = tmp_path / "probe.py"
    probe.write_text(PROBE)
    options = {"spark.sql.shuffle.partitions": "3", "spark.sql.parquet.compression.codec": "snappy"}
    home = Path(str(pyspark.__file__)).parent
    command = [str(home / "bin" / "spark-submit"), "--master", "local[1]"]
    command += [part for name, value in options.items() for part in ("--conf", f"{name}={value}")]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))},
        "JAVA_HOME": str(java_home(tmp_path)), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path),
    }  # fmt: skip  # items grouped by line
    done = subprocess.run(
        [*command, str(probe)], capture_output=True, text=True, timeout=500, check=False, env=environment, cwd=tmp_path
    )
    assert "CONF 3 snappy UTC" in done.stdout, done.stderr[-2000:]


def test_only_an_embedded_session_runs_without_generated_code(tmp_path: Path) -> None:
    embedded, cluster = (session._own_driver(tmp_path, "1g", master) for master in ("local[*]", "spark://host:7077"))
    assert embedded.keys() - cluster.keys() == {"spark.sql.codegen.wholeStage", "spark.sql.codegen.factoryMode"}
    assert not any("codegen" in name for name in cluster)
