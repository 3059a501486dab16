from typing import Any

from requests.adapters import HTTPAdapter

class Response:
    ok: bool
    status_code: int
    text: str
    content: bytes
    def json(self) -> Any: ...

class Session:
    trust_env: bool
    def mount(self, prefix: str, adapter: HTTPAdapter) -> None: ...
    def request(self, method: str, url: str, *, timeout: float, **arguments: Any) -> Response: ...
