"""Which rows of the decision tables of formation and standing a story takes, and which it claims in its ``# rows:`` line.

The handshake of the transport has a table, too. Transcripts use the simulated network in its place; ``tests/raft`` has a test of
each of its rows.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from replicated_namesrv.raft import formation, standing
from replicated_namesrv.raft.raft_messages import Introduction
from replicated_namesrv.raft.standing import IncarnationRecord, PeerMemories, Standing

TABLES = {"formation": formation, "standing": standing}
_ROW = re.compile(r"^\| ([A-Z]\d+) +\|", re.MULTILINE)
_CLAIM = re.compile(r"^# rows: (.+)$", re.MULTILINE)


def rows_of_tables() -> set[str]:
    """``formation F1`` and so on: every row of the tables in the docstrings."""
    return {f"{name} {row}" for name, module in TABLES.items() for row in _ROW.findall(module.__doc__ or "")}


def rows_claimed(text: str) -> set[str]:
    """The rows that a transcript names: ``# rows: formation F1 F2, standing S1``."""
    claimed = set()
    for line in _CLAIM.findall(text):
        for part in line.split(","):
            table, *rows = part.split()
            claimed |= {f"{table} {row}" for row in rows}
    return claimed


@contextmanager
def rows_taken() -> Iterator[set[str]]:
    """The rows that are taken within, by watching the functions that decide."""
    taken: set[str] = set()
    judge, beside = IncarnationRecord.judge, PeerMemories.judge_beside

    def watched_step(decide: Any) -> Any:
        def decided(*arguments: Any) -> Any:
            step = decide(*arguments)
            taken.add(f"formation {step.row}")
            return step

        return decided

    def watched_judge(self: IncarnationRecord, said: Introduction, *arguments: Any, **options: Any) -> Standing | None:
        current = self.current
        result = judge(self, said, *arguments, **options)
        if result is not None:
            is_current = current in (0, said.process)
            by_standing = {
                Standing.PENDING: "S1",
                Standing.ACCEPTED: "S2" if is_current else "S6",
                Standing.CONTESTED: "S3" if is_current else "S4",
                Standing.REGRESSED: "S5",
            }
            taken.add(f"standing {by_standing[result]}")
        return result

    def watched_beside(self: PeerMemories, peer: str, incarnation: int, known: int, *arguments: Any, **options: Any) -> Standing:
        result = beside(self, peer, incarnation, known, *arguments, **options)
        accepted = "I1" if known in (0, incarnation) else "I2"
        taken.add(f"standing {({Standing.ACCEPTED: accepted, Standing.CONTESTED: 'I3', Standing.PENDING: 'I4'})[result]}")
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("replicated_namesrv.raft.membership.next_step", watched_step(formation.next_step))
        patch.setattr("replicated_namesrv.raft.membership.judge_member", watched_step(formation.judge_member))
        patch.setattr(IncarnationRecord, "judge", watched_judge)
        patch.setattr(PeerMemories, "judge_beside", watched_beside)
        yield taken
