"""A short linearizability run, and a proof that the same clients and the same checker detect reads that are not linearizable."""

from pathlib import Path

import pytest

from replicated_namesrv.verify import Outcome, Verdict, check_history, read_history, write_history
from tests.replication.linearizability import Plan, Run, clients_at_work, main, perform
from tests.support.replicated_processes import LIMIT_S, eventually, replicated_processes
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


async def test_linearizable_whatever_happens(tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    async with replicated_processes(tmp_path) as cluster:
        run = await perform(cluster, Plan(operations=2_000, faults=6, seed=seed))
        assert {operation.outcome for operation in run.operations} >= {Outcome.OK, Outcome.INDETERMINATE}
        history = tmp_path / "history.jsonl"
        write_history(history, run.operations)
        verdict = check_history(read_history(history))
        assert verdict.verdict is Verdict.VALID, verdict.describe()
        assert main(["--check", str(history)]) == 0

        stale = Run()
        async with clients_at_work(cluster, Plan(seed=seed, read_consistency="stale", prefix="stale"), stale) as check:

            async def caught() -> bool:
                """Cut off a follower. True if the checker detects the stale answers that the follower gives until it fences
                itself."""
                cluster.cut(cluster.others(await cluster.leader())[0])
                least = stale.succeeded + 300
                await until(lambda: stale.succeeded >= least, "operations succeed meanwhile", LIMIT_S)
                await cluster.restore()
                check()
                return check_history(stale.operations).verdict is Verdict.VIOLATED

            await eventually(caught, "stale reads are found out")
        write_history(history, stale.operations)
        assert main(["--check", str(history)]) == 1
        assert "have no legal order" in capsys.readouterr().out
