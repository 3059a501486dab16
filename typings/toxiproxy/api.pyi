from typing import Any, ClassVar

class _Response:
    status_code: int
    text: str
    def json(self) -> Any: ...

class APIConsumer:
    host: ClassVar[str]
    port: ClassVar[int]
    @classmethod
    def get(cls, url: str, params: Any = ..., *, timeout: float, proxies: dict[str, None]) -> _Response: ...
    @classmethod
    def delete(cls, url: str, *, timeout: float, proxies: dict[str, None]) -> _Response: ...
    @classmethod
    def post(cls, url: str, data: Any = ..., json: Any = ..., *, timeout: float, proxies: dict[str, None]) -> _Response: ...
