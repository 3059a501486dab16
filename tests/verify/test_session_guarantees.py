"""Session guarantees by number and by time; tests/spark/test_histories.py has them by time against a plain definition."""

from replicated_namesrv.verify.session_guarantees import OLDEST, SessionAccess, Version, session_verdicts


def read(op: int, client: str, at: float, version: Version | None, certain: bool = True) -> SessionAccess:
    return SessionAccess(op, client, at, at + 1, True, version, certain)


def numbered(number: int) -> Version:
    return Version(number, number)


def test_numbered_versions_never_go_back_for_one_client() -> None:
    found = session_verdicts([read(1, "a", 0, numbered(3)), read(2, "b", 2, numbered(2)), read(3, "a", 4, numbered(2))])
    assert {op for op, verdict in found.items() if any(verdict.broken)} == {3}
    assert found[3].broken.monotonic_reads
    assert found[3].newest == numbered(3)
    assert found[1].newest == OLDEST


def test_operations_at_the_same_time_entitle_to_nothing() -> None:
    found = session_verdicts([read(1, "a", 0, numbered(3)), read(2, "a", 0.5, numbered(2))])
    assert not any(found[2].broken)


def test_an_uncertain_read_is_judged_and_entitles_to_nothing() -> None:
    known, guessed, older = Version(5, 6, 1, "w"), Version(8, 9, 2, "w"), Version(1, 2, 3, "w")
    reads = [
        read(11, "a", 20, known),
        read(12, "a", 22, guessed, False),
        read(13, "a", 24, known),
        read(14, "a", 26, older, False),
    ]
    writes = [SessionAccess(v.op or 0, v.writer, v.first, v.last, False, v) for v in (known, guessed, older)]
    found = session_verdicts([*reads, *writes])
    assert not any(found[13].broken), "the guess may have been wrong"
    assert found[14].broken.monotonic_reads


def test_a_value_that_nobody_wrote_is_older_than_all() -> None:
    own = Version(1, 2, 1, "a")
    found = session_verdicts([SessionAccess(1, "a", 1, 2, False, own), read(2, "a", 3, None), read(3, "b", 3, None)])
    assert found[2].broken.read_your_writes
    assert not any(found[3].broken), "its client knew nothing"
