"""Scenario files: those of the product, and the messages for mistakes."""

import inspect
import random
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from replicated_namesrv.chaos import fault_plans, nemesis, ports
from replicated_namesrv.chaos.ports import Ports
from replicated_namesrv.chaos.sabotage_list import SABOTAGES
from replicated_namesrv.chaos.scenario import _USED, PROCESS_KINDS, FaultKind, available, load
from replicated_namesrv.chaos.suite import full_plans, smoke_plans
from replicated_namesrv.child_process import ProcessError
from replicated_namesrv.errors import SettingError
from tests.chaos import mutations
from tests.support.places import assert_same_names

DOCS = Path(__file__).parents[2] / "docs"
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
COMPLAINTS = {
    *("apache/rocketmq 4807", "apache/rocketmq 841", "apache/rocketmq 11043", "apache/rocketmq 5322", "apache/rocketmq 1464"),
    *("alibaba/nacos 12160", "etcd-io/etcd 15247", "etcd-io/etcd 20418", "etcd-io/etcd 14143"),
}


def test_all_scenarios_load_and_are_explained() -> None:
    scenarios = [load(name) for name in available()]
    assert len(scenarios) >= 20
    unexplained = [scenario.name for scenario in scenarios if not (scenario.title and scenario.about.strip())]
    assert not unexplained, f"without title or about: {', '.join(unexplained)}"


def test_every_complaint_has_a_scenario_named_after_it() -> None:
    found = {scenario.complaint: name for name in available() if (scenario := load(name)).complaint}
    assert not COMPLAINTS - set(found), f"no scenario has the complaint {sorted(COMPLAINTS - set(found))}"
    assert not set(found) - COMPLAINTS, f"enter these in COMPLAINTS of this file: {sorted(set(found) - COMPLAINTS)}"
    for complaint, name in found.items():
        project, number = complaint.split("/")[1].split()
        assert name.startswith(f"{project}-{number}-"), (
            f"chaos/scenarios/{name}.toml: its complaint is {complaint!r}, so name it {project}-{number}-WHAT-HAPPENS.toml"
        )


def test_every_kind_of_fault_is_used() -> None:
    names = [*available(), *map(str, Path(mutations.__file__).parent.glob("*.toml"))]
    unused = set(FaultKind) - {fault.kind for name in names for fault in load(name).fault}
    assert not unused, f"no scenario has a fault of the kind {', '.join(sorted(unused))}: add one to chaos/scenarios"


def test_every_kind_of_fault_is_explained_planned_and_applied() -> None:
    source = inspect.getsource(FaultKind)
    planned, applied = inspect.getsource(fault_plans._links), inspect.getsource(nemesis)
    missing = []
    for kind in FaultKind:
        name = f"FaultKind.{kind.name}"
        missing += [] if kind in _USED else [f"{name} is not in _USED of chaos/scenario.py, the fields that it may have"]
        if not re.search(rf'^    {kind.name} = .*\n    """', source, re.MULTILINE):
            missing.append(f'{name} in chaos/scenario.py has no """explanation""" below it')
        if kind in PROCESS_KINDS - {FaultKind.RESTART} and not re.search(rf"{name}\b", applied):
            missing.append(
                f"chaos/nemesis.py does not mention {name}: without its own effect it is the same as {FaultKind.RESTART}"
            )
        if kind not in PROCESS_KINDS | {FaultKind.RANDOM} and not re.search(rf"{name}\b", planned):
            missing.append(f"{name} is neither in _links() of chaos/fault_plans.py nor in PROCESS_KINDS of chaos/scenario.py")
    assert not missing, "\n".join(missing)


def test_the_suites_are_as_large_as_they_say() -> None:
    smoke = smoke_plans()
    assert len(smoke) == 15, (
        "nine scenarios have smoke = true, three only for CP (docs/chaos.md): a copied one has to leave it out"
    )
    assert {plan.mode for plan in smoke} == {"ap", "cp"}
    assert {plan.cut for plan in smoke} == {"silent", "held"}
    assert len(full_plans([3])) == len(available()) * 2 * 3
    assert len(full_plans([5])) == len(available()) * 2


def test_numbers_on_the_pages_are_those_of_the_code() -> None:
    """chaos-results.md has the number of scenarios of the version that made it."""
    pages = {page.name: " ".join(page.read_text(encoding="utf-8").split()) for page in DOCS.glob("chaos*.md")}
    count, modes = len(available()), defaultdict(set)
    for plan in smoke_plans():
        modes[plan.scenario.name].add(plan.mode)
    *alone, last = [f"`{name}`" for name in sorted(modes, reverse=True) if modes[name] == {"cp"}]
    seeds = {nodes: len(full_plans([nodes])) // (2 * count) for nodes in (3, 5)}
    wanted = (
        ("chaos-comparisons.md", f"of the {count} scenarios"),
        ("chaos-sabotage.md", f"adds {len(SABOTAGES)} one-line defects"),
        ("chaos.md", f"{NUMBERS[len(modes)]} scenarios: {', '.join(alone)} and {last} only in CP, the others in both modes"),
        ("chaos.md", f"{NUMBERS[seeds[3]]} seeds with three nodes each, {NUMBERS[seeds[5]]} seed with five nodes"),
    )
    wrong = [f"docs/{page} does not say '{text}': correct its number" for page, text in wanted if text not in pages[page]]
    wrong += [
        f"docs/{page} says '{number} scenarios', but chaos/scenarios has {count}"
        for page, text in pages.items()
        for number in (re.findall(r"(\d+) scenarios", text) if page != "chaos-results.md" else ())
        if int(number) != count
    ]
    assert not wrong, "\n".join(wrong)


def test_every_kind_of_fault_is_in_the_table_of_the_page() -> None:
    page = (DOCS / "chaos.md").read_text(encoding="utf-8")
    table = page[page.index("| kind in a scenario file |") :].partition("\n\n")[0]
    rows = [name for line in table.splitlines()[2:] for name in re.findall(r"`([\w-]+)`", line.split("|")[1])]
    assert_same_names(FaultKind, "FaultKind of chaos/scenario.py", rows, "the table of faults in docs/chaos.md")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('title = "x"\nfualt = 1', "fualt is unknown; did you mean fault"),
        ("", "title is missing"),
        ("title = 7", "title = 7: a string is expected"),
        ('title = "x"\n[timing]\nsteady = 2', "timing.steady is unknown; did you mean steady_s"),
        ('title = "x"\n[timing]\nfault_s = 0', r"timing.fault_s = 0.0: 0.5 to 3600 is expected"),
        ('title = "x"\n[workload]\ngroups = "four"', "workload.groups = 'four': a whole number is expected"),
        ('title = "x"\n[[fault]]\nkind = "isolated"', "fault 1: kind = 'isolated': one of isolate"),
        ('title = "x"\n[[fault]]\nkind = "isolate"\nscope = "world"', "fault 1: scope = 'world': one of peers, sites"),
        ('title = "x"\n[[fault]]\nkind = "isolate"\nat_s = 6\nfor_s = 5', "must lie within the 7 s of timing.fault_s"),
        ('title = "x"\n[[fault]]\nkind = "kill"\nflap_s = 1', "fault 1: flap_s = 1.0: has no meaning for kill"),
        ('title = "x"\n[[fault]]\nkind = "isolate"\nflap_s = nan', "fault 1: flap_s = nan: a finite number is expected"),
        ('title = "x"\n[[fault]]\nkind = "kill"\nat_s = 7', "at_s = 7: both must lie within the 7 s of timing.fault_s"),
        ('title = "x"\n[[fault]]\nkind = "isolate"\ndirection = "in"', "direction = 'in': has no meaning for isolate"),
        ('title = "x"\n[[fault]]\nkind = "one-way"\ndirection = "up"', "direction = 'up': one of out, in, both is expected"),
        ('title = "x"\n[[fault]]\nkind = "one-way"\ndirection = "both"', "in or out is expected of a one-way fault"),
        ('title = "x"\n[[fault]]\nkind = "one-way"\neffect = "reset"', "ends whole connections of brokers and clients"),
        ('title = "x"\nfault = [1]', r"fault 1 = 1: a table is expected, \[\[fault\]\]"),
        ('title = "x"\n[[fault]]\nkind = "isolate"\nflap_s = 8', "flap_s = 8: 0.1 to the 7 s of timing.fault_s is expected"),
        ('title = "x"\nname = "../mine"', "name = '../mine': up to 80 letters, digits"),
        ('title = "x"\nsettings = ["peers=n1=h:1"]', "the run sets peers itself"),
        ('title = "x"\n[workload]\nregister_period_ms = 3000', "register_period_ms = 3000: less than"),
        ('title = "x"\n[workload]\nkv_writes = "some"', "kv_writes = 'some': all or one is expected"),
        ('title = "x"\n[[fault]]\nkind = "add-node"', "spares = 0: one for each fault that adds or replaces a node"),
        ('title = "x"\n[[fault]]\nkind = "remove-node"\ntarget = "all"', "target = 'all': one node is expected for remove-node"),
        (
            'title = "x"\nspares = 1\n[[fault]]\nkind = "replace-node"\ntarget = "all"',
            "target = 'all': one node is expected for replace-node",
        ),
        ('title = "x"\n[[fault]]\nkind = "drain"\nobserver = true', "observer = True: has no meaning for drain"),
        ('title = "x"\nsettings = ["fenceAfterMs"]', "'fenceAfterMs' is not key=value"),
        ("title = ", "not TOML"),
    ],
)
def test_a_mistake_is_told_with_its_remedy(tmp_path: Path, content: str, expected: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(content)
    with pytest.raises(SettingError, match=expected):
        load(str(path))


def test_a_name_that_is_none_is_told_the_nearest() -> None:
    with pytest.raises(SettingError, match="did you mean isolate-leader"):
        load("isolate-leadr")


def test_ports_of_one_process_differ_with_the_ports_beside_them() -> None:
    first, second = Ports(20, random.Random(1), (-2, 0, 1)), Ports(20, random.Random(1))
    beside = [number + offset for number in first.numbers for offset in (-2, 0, 1)]
    assert len(set(beside)) == 60
    assert not set(beside) & set(second.numbers)
    numbers = first.numbers
    first.release()
    again = Ports(20, random.Random(1), (-2, 0, 1))
    assert set(again.numbers) & set(numbers), "released ports were not reserved again"
    again.release()
    second.release()


def test_missing_ports_are_named_with_their_range_and_the_ports_beside_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "is_free", lambda port: False)
    with pytest.raises(ProcessError, match="2 free ports from 25000 to 27999 are needed; 0 were found; end other runs"):
        Ports(2, random.Random(1))
    with pytest.raises(ProcessError, match="from 25000 to 27999 with free ports at the distances -2, 1 are needed; 0 were found"):
        Ports(2, random.Random(1), (-2, 0, 1))


def test_two_runs_at_once_get_different_ports() -> None:
    """The other run is another process, because a process can always take locks again that it holds."""
    program = (
        "import random, sys; from replicated_namesrv.chaos.ports import Ports\n"
        "ports = Ports(20, random.Random(1)); print(*ports.numbers, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        theirs = set(map(int, other.stdout.readline().split()))
        mine = Ports(20, random.Random(1))
        assert len(theirs) == 20
        assert not theirs & set(mine.numbers)
        mine.release()
        other.communicate("")
