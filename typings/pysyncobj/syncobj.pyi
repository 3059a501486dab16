from collections.abc import Callable, Iterable
from typing import Any

from pysyncobj.config import SyncObjConf
from pysyncobj.node import Node
from pysyncobj.transport import Transport

VERSION: str
createJournal: Callable[[Any], Any]
monotonicTime: Callable[[], float]

class SyncObj:
    _poller: Any
    conf: SyncObjConf
    raftLastApplied: int
    raftCommitIndex: int
    raftCurrentTerm: int
    def __init__(
        self,
        selfNode: Node | str | None,
        otherNodes: Iterable[Node | str],
        conf: SyncObjConf | None = ...,
        consumers: list[Any] | None = ...,
        nodeClass: type[Node] = ...,
        transport: Transport | None = ...,
        transportClass: type[Transport] = ...,
    ) -> None: ...
    def doTick(self, timeToWait: float = ...) -> None: ...
    def destroy(self) -> None: ...
    def forceLogCompaction(self) -> None: ...
    def transferLeadership(self, node: Node | str | None, callback: Callable[[Any, int], None] | None = ...) -> None: ...
    def getStatus(self) -> dict[str, Any]: ...
    def _applyCommand(
        self, command: bytes, callback: Callable[[Any, int], None] | None, commandType: int | None = ...
    ) -> None: ...
    def _checkCommandsToApply(self) -> None: ...
    def _isLeader(self) -> bool: ...
    def _getLeader(self) -> Node | None: ...
    def isReady(self) -> bool: ...
    _SyncObj__raftMatchIndex: dict[Node, int]
    _SyncObj__raftState: int
    _SyncObj__raftCurrentTerm: int
    _SyncObj__raftCommitIndex: int
    _SyncObj__raftLastApplied: int
    _SyncObj__lastResponseTime: dict[Node, float]
    def _SyncObj__loadDumpFile(self, clearJournal: bool) -> None: ...
    def _SyncObj__doChangeCluster(self, request: tuple[str, str, Node]) -> bool: ...
