"""A version whose ``RouteSettings`` have fields that version 0.1.0 does not know."""

from dataclasses import dataclass

import pytest

from replicated_namesrv.routes import tables
from replicated_namesrv.routes.state import RouteSettings


@dataclass(frozen=True, slots=True)
class NextSettings(RouteSettings):
    """``RouteSettings`` of a later version."""

    first_later: bool = False
    second_later: bool = False
    third_later: bool = True


@pytest.fixture
def later_settings(monkeypatch: pytest.MonkeyPatch) -> type[NextSettings]:
    """``NextSettings``, whose fields are in LATER_SETTINGS during the test."""
    monkeypatch.setattr(tables, "LATER_SETTINGS", ("third_later", "second_later", "first_later"))
    return NextSettings
