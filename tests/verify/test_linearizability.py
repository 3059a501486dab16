"""The checker against histories judged by hand, by construction and by brute force."""

import random
import time
import tracemalloc

import pytest

from replicated_namesrv.verify import HistoryError, Operation, Outcome, SearchLimits, Verdict, check_history
from tests.verify.histories import generate, history, is_linearizable, mutate

GOOD = {
    "empty register": ["0 1 read -"],
    "read after write": ["0 1 write a", "2 3 read a"],
    "concurrent read sees the old value": ["0 1 write a", "2 9 write b", "3 4 read a", "5 6 read b"],
    "touching intervals overlap": ["0 5 write a", "5 9 write b", "10 11 read a"],
    "indeterminate write is seen late": ["0 ? write a", "1 2 read -", "50 60 read a"],
    "indeterminate write is never seen": ["0 ? write a", "1 2 write b", "3 4 read b", "50 60 read b"],
    "indeterminate write lands after a later one": ["0 ? write a", "1 2 write b", "3 4 read b", "5 6 read a"],
    "indeterminate delete": ["0 1 write a", "2 ? delete -", "3 4 read a", "5 6 read -"],
    "two indeterminate deletes": ["0 1 write a", "2 ? delete -", "2 ? delete -", "3 4 read -", "5 6 write b", "7 8 read -"],
    "equal values written twice": ["0 1 write a", "2 3 write b", "4 5 write a", "6 7 read a"],
    "indeterminate read tells nothing": ["0 1 write a", "2 ? read b"],
    "failed write did not happen": ["0 1 write a", "2 ! write b", "3 4 read a"],
    "route of two members": ["0 1 register x", "2 3 register y", "4 5 route x,y", "6 7 unregister x", "8 9 route y"],
    "concurrent registers in either order": ["0 9 register x", "0 9 register y", "1 2 route y", "3 4 route x,y"],
    "a register again replaces the version": ["0 1 register x:1", "2 3 register x:2", "4 5 route x:2"],
    "kv words": ["0 1 put a", "2 3 get a", "4 5 delete -", "6 7 get -"],
}

BAD = {
    "value out of nowhere": ["0 1 read a"],
    "stale read": ["0 1 write a", "2 3 write b", "4 5 read a"],
    "new then old": ["0 1 write a", "2 9 write b", "3 4 read b", "5 6 read a"],
    "deleted value comes back": ["0 1 write a", "2 3 delete -", "4 5 read -", "6 7 read a"],
    "lost acknowledged write": ["0 1 write a", "2 3 read -"],
    "failed write is seen": ["0 1 write a", "2 ! write b", "3 4 read b"],
    "indeterminate write is applied twice": ["0 ? write a", "1 2 read a", "3 4 write b", "5 6 read b", "7 8 read a"],
    "indeterminate write is seen before it was asked for": ["5 ? write a", "1 2 read a"],
    "one indeterminate delete cannot delete twice": [
        "0 1 write a",
        "2 ? delete -",
        "3 4 read -",
        "5 6 write b",
        "7 8 read -",
    ],
    "readers disagree on the order of two writes": ["0 9 write a", "0 9 write b", "1 2 read a", "3 4 read b", "5 6 read a"],
    "route forgets a member": ["0 1 register x", "2 3 register y", "4 5 route y"],
    "members are seen in two orders": ["0 9 register x", "0 9 register y", "1 2 route x", "3 4 route y"],
    "ghost member": ["0 1 register x", "2 3 unregister x", "4 5 route x"],
    "older version after the newer": ["0 1 register x:1", "2 3 register x:2", "4 5 route x:1"],
}


@pytest.mark.parametrize("lines", GOOD.values(), ids=GOOD)
def test_good_history(lines: list[str]) -> None:
    operations = history(*lines)
    assert is_linearizable(operations)
    assert check_history(operations).verdict is Verdict.VALID


@pytest.mark.parametrize("lines", BAD.values(), ids=BAD)
def test_bad_history(lines: list[str]) -> None:
    operations = history(*lines)
    assert not is_linearizable(operations)
    verdict = check_history(operations)
    assert verdict.verdict is Verdict.VIOLATED
    witness = verdict.keys[0].witness
    assert not is_linearizable(witness), "the witness alone must already be illegal"
    assert "not linearizable" in verdict.describe()


@pytest.mark.parametrize("unique", [True, False], ids=["unique", "repeated"])
@pytest.mark.parametrize("registration", [True, False], ids=["registration", "register"])
def test_agrees_with_brute_force(unique: bool, registration: bool) -> None:
    seen = {Verdict.VALID: 0, Verdict.VIOLATED: 0}
    for seed in range(250):
        rng = random.Random(seed)
        operations = generate(rng, rng.randrange(3, 7), 4, unique=unique, registration=registration)
        if seed % 3:
            operations = mutate(rng, mutate(rng, operations))
        verdict = check_history(operations)
        legal = is_linearizable(operations)
        assert (verdict.verdict is Verdict.VALID) == legal, f"seed {seed}: {operations}"
        if not legal:
            assert not is_linearizable(verdict.keys[0].witness), f"seed {seed}: witness is legal"
        seen[verdict.verdict] += 1
    assert min(seen.values()) >= 20, seen


@pytest.mark.parametrize("seed", range(12))
def test_generated_history_is_good(seed: int) -> None:
    rng = random.Random(seed)
    unique = seed % 3 != 0
    operations = generate(rng, 1500 if unique else 200, 8 if unique else 4, unique=unique, registration=seed % 2 == 0)
    verdict = check_history(operations)
    assert verdict.verdict is Verdict.VALID, verdict.describe()


@pytest.mark.parametrize("seed", range(8))
def test_stale_read_in_a_long_history_is_found_and_explained(seed: int) -> None:
    rng = random.Random(seed)
    operations = generate(rng, 2000, 8)
    written = [index for index, operation in enumerate(operations) if operation.op == "write" and operation.outcome is Outcome.OK]
    reads = [index for index, operation in enumerate(operations) if operation.op == "read" and operation.outcome is Outcome.OK]
    read = rng.choice([index for index in reads if index > 300])
    old = rng.choice([index for index in written if (operations[index].end_ns or 0) < operations[read].start_ns - 800])
    operations[read] = operations[read]._replace(value=operations[old].value)
    (key,) = check_history(operations).keys
    assert key.verdict is Verdict.VIOLATED
    assert operations[read] in key.witness
    assert len(key.witness) <= 4, key.describe()
    assert key.prefix <= read + 20, "the prefix ends when the read has returned"


def test_what_came_before_the_last_write_explains_nothing() -> None:
    """The only exception is the write of an older value that was read."""
    deletes = [Operation("c", "delete", "k", None, at, at + 1, Outcome.OK) for at in range(0, 80, 10)]
    puts = [Operation("c", "put", "k", value, at, at + 1, Outcome.OK) for value, at in (("a", 100), ("b", 110))]
    for answer, witness in ((None, ["b", None]), ("a", ["a", "b", "a"])):
        (key,) = check_history([*deletes, *puts, Operation("c", "get", "k", answer, 120, 121, Outcome.OK)]).keys
        assert key.verdict is Verdict.VIOLATED
        assert [operation.value for operation in key.witness] == witness


def test_what_nobody_wrote_is_named() -> None:
    """The text of the verdict names a value that nobody wrote, because otherwise nothing would explain why the read is wrong."""
    route = Operation("c", "route", "t", [["a", 1], ["b", 7]], 10, 11, Outcome.OK)
    writes = [Operation("b", "register", "t", ["b", version], version, version, Outcome.OK) for version in (1, 2)]
    text = check_history([Operation("a", "register", "t", ["a", 1], 0, 1, Outcome.OK), *writes, route]).describe()
    assert text.endswith("No operation wrote b = 7.")
    assert "Nobody" not in check_history(history(*BAD["stale read"])).describe()


def test_operations_on_many_keys_are_judged_apart() -> None:
    good, bad = history(*GOOD["read after write"]), history(*BAD["stale read"])
    operations = [operation._replace(key=f"good{number}") for number in range(3) for operation in good]
    operations += [operation._replace(key="bad") for operation in bad]
    verdict = check_history(operations)
    assert verdict.verdict is Verdict.VIOLATED
    assert {key.key: key.verdict for key in verdict.keys if key.verdict is not Verdict.VALID} == {"bad": Verdict.VIOLATED}


def test_unknown_rather_than_hang() -> None:
    """More than twenty writes of few values are open at once, and are read meanwhile. There are more orders than the limit
    allows."""
    rng = random.Random(1)
    operations = [
        Operation(f"c{number}", "put", "k", rng.randrange(6), number, 10_000 + number, Outcome.OK) for number in range(24)
    ]
    operations += [Operation("r", "get", "k", rng.randrange(6), 100 * at, 100 * at + 50, Outcome.OK) for at in range(1, 60)]
    verdict = check_history(operations, SearchLimits(steps=20_000, configurations=5_000))
    assert verdict.verdict is Verdict.UNKNOWN
    assert "unknown" in verdict.describe()


def many_pairs(count: int, outcome: Outcome) -> list[Operation]:
    """A number of puts that are all open at once. Each of their values is read during all this time."""
    puts = [Operation(f"w{i}", "put", "k", i, i, 10**6, outcome) for i in range(count)]
    return puts + [Operation(f"r{i}", "get", "k", i, count + i, 10**6 + i, Outcome.OK) for i in range(count)]


def long_pairs_beside_many_reads() -> list[Operation]:
    """Any of ten puts may have taken effect or not while another value is read over and over."""
    other = [Operation("x", "put", "k", "x", 300, 400, Outcome.OK)]
    reads = [Operation("y", "get", "k", "x", 500 + 10 * at, 505 + 10 * at, Outcome.OK) for at in range(200)]
    return many_pairs(10, Outcome.OK) + other + reads


@pytest.mark.parametrize(
    "operations",
    [many_pairs(1_000, Outcome.OK), many_pairs(3_000, Outcome.INDETERMINATE), long_pairs_beside_many_reads()],
    ids=["a thousand open at once", "thousands of unknown outcome", "many configurations at every return"],
)
def test_the_bound_is_one_of_time_and_memory_whatever_takes_them(operations: list[Operation]) -> None:
    tracemalloc.start()
    verdict = check_history(operations, SearchLimits(steps=20_000, configurations=5_000))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert verdict.verdict is Verdict.UNKNOWN
    assert peak_bytes < 40 << 20


@pytest.mark.slow
def test_twenty_thousand_operations_of_eight_clients_on_one_key() -> None:
    operations = generate(random.Random(7), 20_000, 8)
    started = time.process_time()
    assert check_history(operations).verdict is Verdict.VALID
    assert time.process_time() - started < 10


def test_mixed_vocabulary_is_refused() -> None:
    with pytest.raises(HistoryError, match="'k' has operations"):
        check_history(history("0 1 write a", "2 3 route a"))


@pytest.mark.parametrize("value", [7, "x", [["x", 1], ["x", 2]], [[1, 2]], [3]])
def test_route_values_must_be_members(value: object) -> None:
    with pytest.raises(HistoryError):
        check_history([Operation("c", "route", "k", value, 0, 1, Outcome.OK)])  # type: ignore[arg-type]  # wrong on purpose
