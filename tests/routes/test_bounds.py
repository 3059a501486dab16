"""What is refused before it is proposed, and that ``apply`` does not ask."""

import pytest

from replicated_namesrv.model import QueueData, TopicQueueMappingInfo
from replicated_namesrv.routes import bounds
from replicated_namesrv.routes.bounds import with_own_mappings
from replicated_namesrv.routes.commands import DeleteKVConfig, PutKVConfig
from replicated_namesrv.routes.state import RouteInfoManager
from tests.support.routes import mapping, register


def test_no_more_namespaces_than_allowed_emptied_ones_included(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "KV_NAMESPACES_MAX", 2)
    state = RouteInfoManager()
    for command in (PutKVConfig("a", "k", "v"), PutKVConfig("b", "k", "v"), DeleteKVConfig("b", "k")):
        assert state.refusal(command) is None
        state.apply(command, 1)
    refused = state.refusal(PutKVConfig("c", "k", "v"))
    assert refused is not None
    assert (refused.code, refused.remark) == (1, "the KV config has 2 namespaces, 2 are allowed; use one of them")
    assert state.refusal(PutKVConfig("b", "k", "v")) is None
    assert state.refusal(DeleteKVConfig("c", "k")) is None
    assert state.apply(PutKVConfig("c", "k", "v"), 2).result.changed, "what is in the log is applied"


def test_no_more_brokers_of_one_name_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MEMBERS_MAX", 2)
    state = RouteInfoManager()
    for broker_id in range(2):
        state.apply(register("b", broker_id, f"b{broker_id}:1"), 1)
    refused = state.refusal(register("b", 2, "b2:1"))
    assert refused is not None
    assert "brokerName b has 2 brokers, 2 are allowed" in (refused.remark or "")
    assert state.refusal(register("b", 1, "b1:1", version=2)) is None
    assert state.refusal(register("c", 2, "b2:1")) is None


def test_no_more_different_queue_settings_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "QUEUE_SETTINGS_MAX", 3)
    state = RouteInfoManager()
    state.apply(register("b", 0, "b:1", topics={f"t{number}": QueueData(6, 8, 0, number) for number in range(2)}), 1)
    assert state.refusal(register("b", 0, "b:1", version=2, topics=[f"u{number}" for number in range(9)])) is None
    refused = state.refusal(register("b", 0, "b:1", topics={f"u{number}": QueueData(6, 8, 0, number) for number in range(1, 4)}))
    assert refused is not None
    assert "the topics of brokerName b would have 4 different combinations of perm" in (refused.remark or "")
    assert (
        state.refusal(register("c", 0, "c:1", topics={f"u{number}": QueueData(6, 8, 0, number) for number in range(1, 4)}))
        is None
    )


def test_mappings_of_other_names_are_left_out() -> None:
    infos: dict[str, TopicQueueMappingInfo] = {"T": mapping("T", "b"), "U": mapping("U", "other"), "V": mapping("V", "")}
    command = register("b", 0, "b:1", mappings=infos)
    assert with_own_mappings(command).topic_queue_mapping_infos == {"T": mapping("T", "b")}
    plain = register("b", 0, "b:1", mappings={"T": mapping("T", "b")})
    assert with_own_mappings(plain) is plain
