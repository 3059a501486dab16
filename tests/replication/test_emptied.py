"""Data that replication adds to the routes is removed with the brokers. Everything that is remembered longer is bounded."""

from dataclasses import replace
from random import Random

import pytest

from replicated_namesrv.replication import route_machine as machine_module
from replicated_namesrv.replication.route_machine import (
    NO_REGISTRATION,
    RouteStateMachine,
    Suspect,
    content_of,
    encode_expire,
    encode_lead,
    encode_plain,
    encode_register,
    encode_suspect,
    encode_unregister,
)
from replicated_namesrv.routes.commands import BrokerRemoval, RegisterBroker, UnregisterBrokers
from replicated_namesrv.routes.sizes import ENTRY_BYTES
from replicated_namesrv.routes.state import RouteSettings
from replicated_namesrv.routes.sums import PRIME
from tests.routes.sequences import random_command
from tests.support.log_entries import encoded
from tests.support.routes import register

UNREGISTERED_MAX = 2


def step(machine: RouteStateMachine, rng: Random, time_ms: int) -> None:
    """Apply a random command in the form that it has in the log. Now and then, also record the silence of a broker, or let
    brokers expire."""
    command = random_command(rng)
    revision = machine.state.revision
    if isinstance(command, RegisterBroker):
        replaces = rng.randrange(revision + 1)
        data = encode_register(command, time_ms, rng.randrange(revision + 1), replaces, content_of(command))
    elif isinstance(command, UnregisterBrokers):
        data = encode_unregister(command, time_ms, rng.choice((1, 1, 2)))
    else:
        data = encode_plain(command, time_ms)
    machine.apply(data)
    registrations = machine.state.registrations()
    if registrations and rng.random() < 0.1:
        silent = rng.choice(registrations)
        suspect = Suspect((silent.cluster_name, silent.broker_addr), silent.epoch, rng.randrange(3))
        machine.apply(encode_suspect([suspect], time_ms, 1, machine.serial))
    if registrations and rng.random() < 0.1:
        due = rng.choice(registrations)
        removal = BrokerRemoval(due.cluster_name, due.broker_addr, due.broker_name, due.broker_id, due.epoch)
        serial = rng.choice((machine.serial, machine.serial - 3))
        machine.apply(encode_expire(UnregisterBrokers((removal,)), time_ms, 1, serial, is_lost=rng.random() < 0.5))


@pytest.mark.parametrize("seed", range(20))
def test_marks_go_with_the_brokers_and_the_rest_is_bounded(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_module, "UNREGISTERED_MAX", UNREGISTERED_MAX)
    rng, machine = Random(seed), RouteStateMachine()
    machine.history.bytes_max = 20_000
    machine.apply(encode_lead(RouteSettings(), 1, 1))
    if seed % 2:  # by the rules of this version from the beginning
        machine.apply(encode_suspect((), 1, 1, 0))
    for time_ms in range(250):
        step(machine, rng, time_ms)
        registered = {(each.cluster_name, each.broker_addr) for each in machine.state.registrations()}
        assert set(machine.marks) == registered, f"seed {seed}"
        assert set(machine.suspected) <= registered, f"seed {seed}"
        assert not registered & set(machine._unregistered), f"seed {seed}"
        assert len(machine._unregistered) <= UNREGISTERED_MAX
        assert machine.unregistered_bytes == sum(2 * ENTRY_BYTES + len("".join(key).encode()) for key in machine._unregistered)
        for table in (machine.marks, machine._unregistered, machine.suspected):
            assert table.sum == sum(table._hash_of(*entry) for entry in table.items()) % PRIME
    twin = RouteStateMachine()
    restoring = twin.restore()
    for chunk in machine.snapshot():
        restoring.feed(chunk)
    restoring.finish()
    assert twin.digest() == machine.digest(), f"seed {seed}"
    assert twin.unregistered_bytes == machine.unregistered_bytes
    for each in machine.state.registrations():
        removal = BrokerRemoval(each.cluster_name, each.broker_addr, each.broker_name, each.broker_id, each.epoch)
        machine.apply(encode_unregister(UnregisterBrokers((removal,)), 1_000, 1))
    for name in {*machine.state._tables.groups, *machine.state._tables.clusters_of}:
        removal = BrokerRemoval("none", "none:1", name, 0, NO_REGISTRATION)
        machine.apply(encode_unregister(UnregisterBrokers((removal,)), 1_000, 1))
    if machine.state.compares_content:
        assert machine.state.cluster_info() == ((), ()), f"seed {seed}"
    assert (dict(machine.marks), machine.marks.sum) == ({}, 0)
    assert (dict(machine.suspected), machine.suspected.sum) == ({}, 0)
    history = machine.history
    kept = history._changes[history._first :]
    assert history._bytes == sum(change.size_bytes for change in kept) <= 20_000 + max(change.size_bytes for change in kept)
    assert history._first <= len(kept), f"seed {seed}: changes that were dropped stay in memory"


@pytest.mark.parametrize("is_new", [False, True])
def test_a_removal_that_knew_of_no_registration_ends_none(is_new: bool) -> None:
    """This holds for every cluster that the removal names. Version 0.1 removed a broker of another cluster."""
    machine = RouteStateMachine()
    machine.apply(encode_lead(RouteSettings(), 1, 1))
    if is_new:
        machine.apply(encode_suspect((), 1, 1, 0))
    machine.apply(encoded(machine, register("b", 0, "b:1", cluster="B"), 1))
    removal = BrokerRemoval("A", "b:1", "b", 0, NO_REGISTRATION)
    machine.apply(encode_unregister(UnregisterBrokers((removal,)), 2, 1))
    assert (machine.state.registration("B", "b:1") is not None) == is_new
    machine.apply(encoded(machine, register("c", 0, "c:1", topics=["refused"]), 3))
    assert machine.state.group_generation("c")
    machine.apply(encode_unregister(UnregisterBrokers((replace(removal, broker_name="c"),)), 4, 1))
    assert not machine.state.group_generation("c"), "a group without members"
