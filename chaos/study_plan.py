"""Plans of studies: which runs a study consists of, and their order. Pure, except for reading files.

A plan is a TOML file. Each combination of scenario, cluster size, seed, cut variant and levels of factors is a block, and a block
has one run of each arm (a compared system). Blocks with the same seed and cut variant are a wave. Waves are run one after the
other, so a study that stops early has complete waves. The order of the blocks in a wave, and of the arms in a block, is random.
So if the machine becomes slower or faster during the study, all arms are affected alike. A cut variant is the effect of a fault
that cuts links: ``silent`` or ``held``.
"""

import dataclasses
import difflib
import hashlib
import json
import random
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any

from replicated_namesrv.chaos.effects import Effect
from replicated_namesrv.chaos.run import RunPlan, check_fits
from replicated_namesrv.chaos.run_modes import foreign
from replicated_namesrv.chaos.scenario import (
    PROCESS_KINDS,
    ChaosScenario,
    Promises,
    Timing,
    WorkloadSpec,
    build,
    check_scenario,
    load,
)
from replicated_namesrv.errors import SettingError

PLAN_TEXTS = ("title", "question", "timers")
"""Keys of a plan that only its page shows. They can be corrected while the study runs."""
READ_LEVELS = ("linearizable", "lease", "stale")
CUTS = (Effect.SILENT.value, Effect.HELD.value)
SEEDS_MAX = 1_000
BESIDES_S = {"ap": 4.0, "cp": 5.0, "java": 14.0, "rust": 5.0}
"""Seconds that a run takes besides its phases ``steady`` and ``fault``, without ``HEALING_S``, on a quiet machine with two cores:
start, final reads, judgement. Java's servers are warmed up first."""
HEALING_S = 3.3
"""Typical length of the phase ``heal``."""
NODE_S = {"ap": 0.5, "cp": 0.7, "java": 4.0, "rust": 0.5}
"""Further seconds for each node beyond three."""
KEPT_BYTES, WHOLE_BYTES = 150_000, 2_500_000
"""Disk space of a run: with its compressed trace only, and with its whole folder."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One of the compared systems."""

    name: str
    mode: str
    """ap, cp, or a foreign name server such as java:5.5.0."""
    read_consistency: str = "linearizable"
    """For cp: the read level of the nodes."""
    settings: tuple[str, ...] = ()
    """Settings of the nodes, besides those of the scenario."""


@dataclass(frozen=True, slots=True)
class Variation:
    """Changes of each scenario."""

    name: str = ""
    settings: tuple[str, ...] = ()
    """Settings of the nodes, besides those of the scenario."""
    fault_s: float | None = None
    """Length of the phase ``fault``. Faults keep their share of it."""
    round_trip_ms: int | None = None
    """Round trip between two sites."""
    timing: dict[str, Any] = field(default_factory=dict)
    """Values of ``timing`` of the scenario."""
    workload: dict[str, Any] = field(default_factory=dict)
    """Values of ``workload`` of the scenario."""
    promises: dict[str, Any] = field(default_factory=dict)
    """Values of ``promises`` of the scenario."""


@dataclass(frozen=True, slots=True)
class Factor:
    """A parameter that is varied. Its levels are crossed with those of the other factors."""

    name: str
    level: tuple[Variation, ...]


class Block(tuple[str, int, int, str | None, tuple[int, ...]]):
    """Scenario, cluster size, seed, cut variant (None: the faults cut no link), and the number of the level of each factor."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class StudyRun:
    """One run of a study."""

    key: str
    """The name of the run, unique in the study."""
    arm: str
    block: Block
    levels: tuple[str, ...]
    """The level of each factor, by name."""


@dataclass(frozen=True)
class StudyPlan:
    """A whole plan."""

    name: str
    folder: str
    """The folder of the plan's file, and of the scenario files that it names."""
    title: str
    question: str
    scenarios: tuple[str, ...]
    """Names from ``namesrv chaos list``, or files beside the plan (``mine.toml``)."""
    nodes: tuple[int, ...]
    seeds: int
    """The seeds are 1 to this number."""
    arm: tuple[Arm, ...]
    timers: str
    """Which timers are shorter than in production, and what follows from it."""
    cuts: tuple[str, ...] = CUTS
    """Cut variants. Scenarios whose faults cut no link have one variant."""
    options: Variation = field(default_factory=Variation)
    """Changes of all scenarios."""
    factor: tuple[Factor, ...] = ()

    @cached_property
    def loaded(self) -> dict[str, ChaosScenario]:
        """The scenarios by name, with ``options``."""
        names = [str(Path(self.folder) / name) if name.endswith(".toml") else name for name in self.scenarios]
        return {scenario.name: _varied(scenario, self.options) for scenario in map(load, names)}

    @cached_property
    def waves(self) -> list[list[list[StudyRun]]]:
        """The runs in the order in which they are made: waves of blocks of runs."""
        cuts = {name: self.cuts if _cuts_links(scenario) else (None,) for name, scenario in self.loaded.items()}
        waves = []
        for seed in range(1, self.seeds + 1):
            for place, cut in enumerate(self.cuts or (None,)):
                drawn = random.Random(f"{self.name} {seed} {cut}")
                levels = list(product(*(range(len(factor.level)) for factor in self.factor)))
                blocks = [
                    Block((name, nodes, seed, own, level))
                    for name in self.loaded
                    for own in (cuts[name][place : place + 1])
                    for nodes in self.nodes
                    for level in levels
                ]
                drawn.shuffle(blocks)
                waves.append([self._runs(block, drawn) for block in blocks])
        return waves

    def _runs(self, block: Block, drawn: random.Random) -> list[StudyRun]:
        name, nodes, seed, cut, level = block
        levels = tuple(factor.level[number].name for factor, number in zip(self.factor, level, strict=True))
        arms = [arm.name for arm in self.arm]
        drawn.shuffle(arms)
        parts = (str(seed), name, str(nodes), *([cut] if cut else []), *(text.replace(" ", "") for text in levels))
        return [StudyRun("-".join((*parts, arm)), arm, block, levels) for arm in arms]

    @property
    def runs(self) -> list[StudyRun]:
        """All runs in their order."""
        return [run for wave in self.waves for block in wave for run in block]

    def run_plan(self, run: StudyRun) -> RunPlan:
        """The parameters of a run."""
        name, nodes, seed, cut, level = run.block
        arm = next(arm for arm in self.arm if arm.name == run.arm)
        scenario, fault_s = self.loaded[name], self.options.fault_s
        for factor, number in zip(self.factor, level, strict=True):
            variation = factor.level[number]
            scenario = _varied(scenario, variation)
            fault_s = variation.fault_s if variation.fault_s is not None else fault_s
        return RunPlan(
            scenario=replace(scenario, settings=(*scenario.settings, *arm.settings)),
            mode=arm.mode,
            nodes=nodes,
            seed=seed,
            suite=self.name,
            read_consistency=arm.read_consistency,
            variant=cut,
            duration_s=fault_s,
            looks_by_remoting=any(foreign(other.mode) is not None for other in self.arm),
        )

    def expected_s(self, run: StudyRun) -> float:
        """Seconds that a run takes on a quiet machine with two cores."""
        plan = self.run_plan(run)
        timing, product = plan.timed().timing, plan.mode.partition(":")[0]
        return timing.steady_s + timing.fault_s + HEALING_S + BESIDES_S[product] + NODE_S[product] * max(0, plan.nodes - 3)


def available_studies() -> dict[str, Path]:
    """Plans of the product, by name."""
    folder = Path(str(resources.files("replicated_namesrv.chaos"))) / "studies"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def study_file(name: str) -> Path:
    """The file of a plan of the product, or the file at a path. Raises SettingError."""
    known = available_studies()
    if name not in known and not name.endswith(".toml"):
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise SettingError(f"no study '{name}': {hint}known: {', '.join(known)}; a file of yours ends in .toml")
    return known.get(name, Path(name))


def load_study(path: Path, name: str | None = None) -> StudyPlan:
    """Read a plan. ``name``: its name, by default that of the file. Raises SettingError."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as cause:
        raise SettingError(f"study {path}: cannot be read ({cause.strerror})") from cause
    except (ValueError, RecursionError) as cause:
        raise SettingError(f"study {path}: not TOML: {cause}") from cause
    try:
        plan: StudyPlan = build(StudyPlan, {**content, "name": name or path.stem, "folder": str(path.parent)})
        _check(plan)
        for run in plan.waves[0]:
            check_fits(plan.run_plan(run[0]))
    except (ValueError, SettingError) as cause:
        raise SettingError(f"study {path}: {cause}") from cause
    return plan


def plan_sha256(path: Path) -> str:
    """The checksum by which a study recognizes its plan. ``PLAN_TEXTS`` and comments do not count. Raises SettingError."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as cause:
        raise SettingError(f"study {path}: cannot be read: {cause}") from cause
    settings = {name: value for name, value in content.items() if name not in PLAN_TEXTS}
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()


def _check(plan: StudyPlan) -> None:
    if not 1 <= plan.seeds <= SEEDS_MAX:
        raise ValueError(f"seeds = {plan.seeds}: 1 to {SEEDS_MAX} is expected")
    if not plan.nodes or not set(plan.nodes) <= {1, 3, 5}:
        raise ValueError(f"nodes = {list(plan.nodes)}: some of 1, 3 and 5 are expected")
    if not plan.cuts or not set(plan.cuts) <= set(CUTS):
        raise ValueError(f"cuts = {list(plan.cuts)}: some of {', '.join(CUTS)} are expected")
    for name in plan.scenarios:
        if "/" in name:
            raise ValueError(f"scenarios: {name!r}: a name from 'namesrv chaos list' or a file beside the plan is expected")
    for what, names in (
        ("scenarios", plan.scenarios),
        ("arm", [arm.name for arm in plan.arm]),
        *((f"factor {factor.name}", [level.name for level in factor.level]) for factor in plan.factor),
    ):
        if not names or len(set(names)) < len(names) or "" in names:
            raise ValueError(f"{what}: different names, at least one, are expected")
    for arm in plan.arm:
        foreign(arm.mode)
        if arm.read_consistency not in READ_LEVELS:
            known = ", ".join(READ_LEVELS)
            raise ValueError(f"arm {arm.name}: read_consistency = {arm.read_consistency!r}: one of {known} is expected")
    for run in _one_of_each_level(plan):
        check_scenario(plan.run_plan(run).timed())


def _one_of_each_level(plan: StudyPlan) -> Iterator[StudyRun]:
    for wave in plan.waves[: len(plan.cuts)]:
        yield from (block[0] for block in wave)


def _varied(scenario: ChaosScenario, variation: Variation) -> ChaosScenario:
    round_trip_ms = scenario.round_trip_ms if variation.round_trip_ms is None else variation.round_trip_ms
    return replace(
        scenario,
        round_trip_ms=round_trip_ms,
        settings=(*scenario.settings, *variation.settings),
        timing=_changed(scenario.timing, variation.timing, "timing"),
        workload=_changed(scenario.workload, variation.workload, "workload"),
        promises=_changed(scenario.promises, variation.promises, "promises"),
    )


def _changed(value: Any, changes: dict[str, Any], name: str) -> Any:
    """A Timing, WorkloadSpec or Promises with changes. Raises ValueError."""
    kind: type[Timing] | type[WorkloadSpec] | type[Promises] = type(value)
    return build(kind, {**dataclasses.asdict(value), **changes}, f"{name}.")


def _cuts_links(scenario: ChaosScenario) -> bool:
    """Whether the cut variant makes a difference."""
    return any(fault.kind not in PROCESS_KINDS and fault.effect == "cut" for fault in scenario.fault)


def remaining(plan: StudyPlan, done: Sequence[str]) -> list[StudyRun]:
    """The runs that are not in ``done``, in their order."""
    keys = set(done)
    return [run for run in plan.runs if run.key not in keys]
