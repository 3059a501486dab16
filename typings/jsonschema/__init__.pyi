from collections.abc import Iterator
from typing import Any

class ValidationError(Exception):
    message: str
    json_path: str

class Draft202012Validator:
    def __init__(self, schema: dict[str, Any]) -> None: ...
    @classmethod
    def check_schema(cls, schema: dict[str, Any]) -> None: ...
    def iter_errors(self, instance: object) -> Iterator[ValidationError]: ...
