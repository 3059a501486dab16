from typing import Any

class FAIL_REASON:
    SUCCESS: int
    DISCARDED: int

class SERIALIZER_STATE:
    NOT_SERIALIZING: int
    SERIALIZING: int
    SUCCESS: int
    FAILED: int

class SyncObjConf:
    appendEntriesPeriod: float
    raftMinTimeout: float
    raftMaxTimeout: float
    leaderFallbackTimeout: float
    def __init__(self, **kwargs: Any) -> None: ...
