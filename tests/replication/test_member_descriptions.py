"""Descriptions of members in the log."""

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
    descriptions.failed(CHECK_MS)
    assert [descriptions.is_due(now) for now in (CHECK_MS + RETRY_MS - 1, CHECK_MS + RETRY_MS)] == [False, True]
