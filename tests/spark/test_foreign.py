"""Histories in Jepsen's format, imported as runs."""

import json
import re
from pathlib import Path

import pytest

from replicated_namesrv.chaos.checks.linear import kv_history
from replicated_namesrv.chaos.checks.story import Story
from replicated_namesrv.chaos.records import Invoke, Phase, read_trace
from replicated_namesrv.cli.main import main
from replicated_namesrv.spark import edn, foreign
from replicated_namesrv.spark.foreign import ForeignError, import_history
from replicated_namesrv.verify import Verdict, check_history

REGISTER = """\
{:type :invoke, :f :write, :value 3, :process 0, :time 3291485317, :index 0}
{:type :invoke, :f :read, :value nil, :process 1, :time 3296209422, :index 1}
{:type :ok, :f :write, :value 3, :process 0, :time 3298712041, :index 2}
{:type :info, :f :start, :value "Cut off {\\"n1\\" #{\\"n2\\"}}", :process :nemesis, :time 3298800000, :index 3}
{:type :ok, :f :read, :value nil, :process 1, :time 3299000000, :index 4}
{:type :invoke, :f :cas, :value [3 4], :process 1, :time 3300000000, :index 5}
{:type :info, :f :cas, :value [3 4], :process 1, :time 3400000000, :index 6, :error :timeout}
{:type :info, :f :stop, :value "fully connected", :process :nemesis, :time 3450000000, :index 7}
{:type :invoke, :f :read, :value nil, :process 2, :time 3500000000, :index 8}
{:type :ok, :f :read, :value 4, :process 2, :time 3510000000, :index 9}
{:type :invoke, :f :cas, :value [9 1], :process 0, :time 3520000000, :index 10}
{:type :fail, :f :cas, :value [9 1], :process 0, :time 3530000000, :index 11}
"""
STALE = (
    REGISTER
    + """\
#jepsen.history.Op{:index 12, :time 3600000000, :type :invoke, :process 2, :f :read, :value nil}
#jepsen.history.Op{:index 13, :time 3610000000, :type :ok, :process 2, :f :read, :value 3}
#jepsen.history.Op{:index 14, :time 3620000000, :type :invoke, :process 0, :f :read, :value nil}
#jepsen.history.Op{:index 15, :time 3630000000, :type :ok, :process 0, :f :read, :value nil}
"""
)


def made(tmp_path: Path, text: str, name: str = "history.edn") -> foreign.Imported:
    (tmp_path / name).write_text(text)
    return import_history(tmp_path / name, "jepsen", "cp", tmp_path / "runs", lambda line: None)


def story(run: foreign.Imported) -> Story:
    trace = read_trace(run.folder / "trace.jsonl")
    assert trace.complete
    return Story(trace, json.loads((run.folder / "manifest.json").read_text()))


def test_register_with_cas(tmp_path: Path) -> None:
    run = made(tmp_path, REGISTER)
    told = story(run)
    assert (run.operations, run.unknown, run.torn) == (5, 1, 0)
    assert check_history(kv_history(told)).verdict is Verdict.VALID
    phases = [(r.phase, r.time_ns) for r in told.trace.records if isinstance(r, Phase)]
    assert phases[:3] == [("steady", 3291485317), ("fault", 3298800000), ("heal", 3450000000)]


def test_a_read_that_goes_back_is_found(tmp_path: Path) -> None:
    assert check_history(kv_history(story(made(tmp_path, STALE)))).verdict is Verdict.VIOLATED


def test_a_vector_of_operations_and_json_lines_say_the_same(tmp_path: Path) -> None:
    lines = REGISTER.splitlines()
    vector = "[" + ",\n ".join(lines) + "]\n"
    as_json = "".join(json.dumps(edn.read(line)) + "\n" for line in lines)
    expected = story(made(tmp_path, REGISTER)).ops
    for number, (name, text) in enumerate((("vector.edn", vector), ("history.json", as_json))):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert story(made(folder, text, name)).ops == expected


def test_operations_over_several_lines_and_all_in_one(tmp_path: Path) -> None:
    """Clojure pretty-prints a history over several lines, and other programs write one JSON vector."""
    lines = REGISTER.splitlines()
    pretty = "[" + "\n\n ".join(line.replace(", :", ",\n  :") for line in lines) + "]\n"
    values = [edn.read(line) for line in lines]
    expected = story(made(tmp_path, REGISTER)).ops
    texts = (
        ("pretty.edn", pretty), ("one.edn", "[" + " ".join(lines) + "]"), ("one.json", json.dumps(values)),
        ("pretty.json", json.dumps(values, indent=2)), ("marked.jsonl", "\ufeff" + "\r\n".join(map(json.dumps, values))),
    )  # fmt: skip  # items grouped by line
    for number, (name, text) in enumerate(texts):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert story(made(folder, text, name)).ops == expected, name


def test_without_times_the_order_stands(tmp_path: Path) -> None:
    timeless = "".join(re.sub(r", :time \d+", "", line) + "\n" for line in REGISTER.splitlines())
    told = story(made(tmp_path, timeless))
    assert check_history(kv_history(told)).verdict is Verdict.VALID
    assert [(op.start_ns, op.end_ns) for op in told.ops][:2] == [(0, 2_000_000), (1_000_000, 4_000_000)]


def test_transactions_on_registers(tmp_path: Path) -> None:
    """The example of jepsen.history's own page."""
    text = (
        "[{:type :invoke, :f :txn, :value [[:w 2 1]], :time 3291485317, :process 0, :index 0}\n"
        " {:type :invoke, :f :txn, :value [[:r 0 nil] [:w 1 1]], :time 3296209422, :process 2, :index 1}\n"
        " {:type :fail, :f :txn, :value [[:r 0 nil] [:w 1 1]], :time 3565403674, :process 2, :index 2, :error [:duplicate-key]}\n"
        " {:type :ok, :f :txn, :value [[:w 2 1]], :time 3767733708, :process 0, :index 3}]\n"
    )
    assert [(op.kind, op.key, op.outcome) for op in story(made(tmp_path, text)).ops] == [
        ("put", "2", "ok"),
        ("get", "0", "fail"),
        ("put", "1", "fail"),
    ]


def test_independent_keys(tmp_path: Path) -> None:
    text = (
        "{:type :invoke, :f :write, :value [5 1], :process 0, :time 1}\n"
        "{:type :ok, :f :write, :value [5 1], :process 0, :time 2}\n"
        "{:type :invoke, :f :read, :value [6 nil], :process 0, :time 3}\n"
        "{:type :ok, :f :read, :value [6 nil], :process 0, :time 4}\n"
    )
    assert [(op.kind, op.key, op.value) for op in story(made(tmp_path, text)).ops] == [("put", "5", "1"), ("get", "6", None)]


def test_sets_and_lists_become_registrations(tmp_path: Path) -> None:
    text = (
        "{:type :invoke, :f :add, :value 7, :process 0, :time 1}\n{:type :ok, :f :add, :value 7, :process 0, :time 2}\n"
        "{:type :invoke, :f :read, :value nil, :process 1, :time 3}\n{:type :ok, :f :read, :value #{7 8}, :process 1, :time 4}\n"
        "{:type :invoke, :f :txn, :value [[:append 1 2] [:r 1 nil]], :process 1, :time 5}\n"
        "{:type :ok, :f :txn, :value [[:append 1 2] [:r 1 [2]]], :process 1, :time 6}\n"
    )
    ops = story(made(tmp_path, text)).ops
    assert [(op.kind, op.key, sorted(member.name for member in op.members)) for op in ops] == [
        ("register", "value:7", []), ("route", "value", ["value:7", "value:8"]), ("register", "1:2", []), ("route", "1", ["1:2"]),
    ]  # fmt: skip  # items grouped by line


def test_a_torn_last_line_is_counted(tmp_path: Path) -> None:
    assert made(tmp_path, REGISTER + "{:type :invoke, :f :re").torn == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no operation"),
        ("{:type :invoke :f}\n", "edn:1: a map has a key without a value"),
        (
            "{:type :invoke, :f :read, :process 0, :time 5}\n{:type :ok, :f :read, :process 0}\n",
            "edn:2: time is missing here and not elsewhere",
        ),
        ("{:type :invoke, :f :read, :process 0, :time 0.5}\n", "edn:1: time is 0.5"),
        ("{:type :invoke\n{:type :invoke, :f :read, :process 0, :time 1}\n", "edn:1: is not closed before line 2"),
        ("{:type :invoke, :f :read,\n :process 0\n", "edn:1: is not closed"),
        (
            "{:type :invoke, :f :add, :value 1, :process 0}\n{:type :ok, :f :add, :value 1, :process 0}\n"
            "{:type :invoke, :f :read, :process 0}\n{:type :ok, :f :read, :value 17, :process 0}\n",
            "edn:3: a read of 17 where others add: a counter",
        ),
        ("{:type :invoke, :f :txn, :value 5, :process 0}\n", "edn:1: value of txn is 5"),
        (
            "{:type :invoke, :f :txn, :value [[:w 1 2]], :process 0}\n"
            "{:type :invoke, :f :txn, :value [[:append 1 2]], :process 1}\n",
            "both append and write",
        ),
        (
            "{:type :invoke, :f :read, :process 0}\n{:type :invoke, :f :read, :process 0}\n",
            "edn:2: process 0 invokes before its last operation ended; give the whole history",
        ),
        ("{:type :invoke, :f ]}\n", "] at character 20 has no opening bracket"),
        ("{:type :invoke, :f #_ #_ 1 2}\n", "#_ at character 24 cannot follow a tag or another #_"),
        ("{:type :begin, :f :read, :process 0, :time 1}\n", "type is 'begin'"),
        ("{:type :ok, :f :read, :process 0, :time 1}\n", "completes what it never invoked"),
        ("{:type :invoke, :f :transfer, :process 0, :time 1}\n", "f is transfer, which no check applies to"),
        ("(" * 200 + "\n", "nested deeper"),
        ("[1 2\n{:type :invoke, :f :read, :process 0, :time 1}\n", "edn:1: "),
        (
            "{:type :invoke, :f :read, :process 0, :time 5}\n{:type :ok, :f :read, :process 0, :time 4}\n",
            "edn:2: ends before it began",
        ),
        ('{:type :invoke, :f :read, :value "\\q", :process 0, :time 5}\n', "is not an escape of a string"),
        ("{:type :invoke, :f :write, :value " + "1" * 5000 + ", :process 0, :time 5}\n", "5000 digits"),
    ],
)
def test_bad_histories_are_refused_by_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ForeignError, match=said):
        made(tmp_path, text)
    assert not list((tmp_path / "runs").glob("*")), "nothing half-written"


def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "LINE_CHARACTERS_MAX", 1000)
    with pytest.raises(ForeignError, match="edn:13: longer than 1,000 characters"):
        made(tmp_path, REGISTER + "{" * 2000)
    monkeypatch.setattr(foreign, "OPERATIONS_MAX", 3)
    with pytest.raises(ForeignError, match="edn:4: more than 3 events"):
        made(tmp_path, REGISTER)


def test_literals_of_other_programs_objects() -> None:
    text = '{:a ##Inf :b \\u0041 :c #error {:cause "x"} :d #object[java.lang.Object 0x1 "y"] :e 1/2 :f #:n{:k nil}}'
    assert edn.read(text) == {
        "a": "##Inf", "b": "A", "c": {"cause": "x"}, "d": ["java.lang.Object", "0x1", "y"], "e": "1/2", "f": {"k": None},
    }  # fmt: skip  # items grouped by line


def test_no_tag_makes_anything_happen() -> None:
    assert edn.read('{:a #inst "2024-01-01", :b #{1 2} #_ 3, "c" \\newline ; end\n :d 1.5M :e 2N}') == {
        "a": "2024-01-01", "b": [1, 2], "c": "\n", "d": 1.5, "e": 2,
    }  # fmt: skip  # items grouped by line


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "h.edn").write_text(REGISTER)
    arguments = ["trace", "import", str(tmp_path / "h.edn"), "--name", "r", "--out", str(tmp_path / "runs")]
    assert main(arguments) == 0
    assert "5 operations, 1 of unknown outcome" in capsys.readouterr().out
    assert sum(isinstance(record, Invoke) for record in read_trace(tmp_path / "runs" / "r" / "trace.jsonl").records) == 5
    assert main(arguments) == 2
    assert "exists already" in capsys.readouterr().err
