"""Descriptions of members in the log."""

import pytest

from replicated_namesrv.raft.member_changes import MemberChange
from replicated_namesrv.raft.members import Kind, RaftMember
from replicated_namesrv.replication.member_descriptions import (
    CHECK_MS,
    RETRY_MS,
    Description,
    MemberDescriptions,
    described,
    details_of,
)
from replicated_namesrv.replication.node_addresses import SILENCE_MS, NodeAddresses
from replicated_namesrv.service import NodeAddress

N1 = NodeAddress("n1", "10.0.0.1:9876", serves=True, drained=False, zone="west", admin="10.0.0.1:9886")
N2 = N1._replace(node_id="n2", address="10.0.0.2:9876")
next_change = MemberDescriptions.next_change


def member(node: NodeAddress) -> RaftMember:
    return RaftMember(Kind.VOTER, 1, "10.0.0.1", 9896, details_of(node))


def test_a_text_that_is_no_description_is_an_empty_one() -> None:
    assert described(details_of(N1)) == Description("10.0.0.1:9876", "10.0.0.1:9886", "west")
    for text in ("", "{}", "[]", '["a","b"]', '["a","b",3]', "[" * 2_000):
        assert described(text) == Description()


def test_values_that_differ_from_the_log_are_written_one_member_at_a_time() -> None:
    members = {"n1": RaftMember(), "n2": RaftMember()}
    assert next_change(members, [N1, N2]) == MemberChange("describe", "n1", details=details_of(N1))
    members["n1"] = member(N1)
    assert next_change(members, [N1, N2]) == MemberChange("describe", "n2", details=details_of(N2))
    members["n2"] = member(N2)
    assert next_change(members, [N1, N2]) is None
    assert next_change(members, [N1._replace(serves=False, drained=True), N2]) is None, "these change without the log"
    moved = N2._replace(zone="east")
    assert next_change(members, [N1, moved]) == MemberChange("describe", "n2", details=details_of(moved))


def test_a_node_that_reported_nothing_or_is_no_member_is_left_alone() -> None:
    members = {"n1": member(N1)}
    assert next_change(members, [NodeAddress("n1", "", serves=False, drained=False), N2]) is None


def test_a_change_that_failed_is_repeated_later() -> None:
    descriptions = MemberDescriptions()
    assert [descriptions.is_due(now) for now in (0.0, CHECK_MS - 1, CHECK_MS)] == [True, False, True]
    descriptions.begun()
    assert not descriptions.is_due(10 * CHECK_MS), "one change at a time"
    descriptions.ended(CHECK_MS, is_written=False)
    assert [descriptions.is_due(now) for now in (CHECK_MS + RETRY_MS - 1, CHECK_MS + RETRY_MS)] == [False, True]


def test_only_recent_reports_of_members_count() -> None:
    """An older report may be older than the description in the log, which another leader wrote."""
    now_ms, members, sent = [0.0], ["n1", "n2"], list[bytes]()
    here = NodeAddresses("n1", members, lambda peer, data: None, lambda: now_ms[0])
    there = NodeAddresses("n2", members, lambda peer, data: sent.append(data), lambda: now_ms[0])
    here.own, there.own = (lambda: N1), (lambda: N2)
    there.tick()
    assert here.received("n2", sent[0])
    assert here.recent() == [N2, N1]
    now_ms[0] += SILENCE_MS
    assert (here.recent(), here.all()[1].address) == ([N1], N2.address)
    assert here.received("n2", sent[0])
    members.remove("n2")
    here.tick()
    members.append("n2")  # a member of this name that was added later has reported nothing
    assert (here.recent(), here.all()[1].address) == ([N1], "")


@pytest.mark.parametrize(
    "wrong",
    [
        N2._replace(address="10.0.0.2"),
        N2._replace(admin="h:1;x:2"),
        N2._replace(admin="h:99999"),
        N2._replace(address="\u00e9:1"),
        N2._replace(zone="a b"),
    ],
)
def test_a_report_with_a_malformed_value_is_dropped(wrong: NodeAddress) -> None:
    sent = list[bytes]()
    here, there = (NodeAddresses(name, ["n1", "n2"], lambda peer, data: sent.append(data), lambda: 0.0) for name in ("n1", "n2"))
    here.own, there.own = (lambda: N1), (lambda: wrong)
    there.tick()
    assert here.received("n2", sent[0])
    assert here.recent() == [N1]
