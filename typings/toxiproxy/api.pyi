from typing import Any, ClassVar

class _Response:
    status_code: int
    text: str
    def json(self) -> Any: ...

requests: Any

class APIConsumer:
    host: ClassVar[str]
    port: ClassVar[int]
    @classmethod
    def get(cls, url: str, params: Any = ...) -> _Response: ...
    @classmethod
    def delete(cls, url: str) -> _Response: ...
    @classmethod
    def post(cls, url: str, data: Any = ..., json: Any = ...) -> _Response: ...
