from typing import Any

class Response:
    ok: bool
    status_code: int
    text: str
    content: bytes
    def json(self) -> Any: ...

class Session:
    trust_env: bool
    def request(self, method: str, url: str, *, timeout: float, **arguments: Any) -> Response: ...
