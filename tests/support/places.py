"""Compares names at two places that have to change together. A failure says which name is missing, and where."""

from collections.abc import Iterable


def assert_listed(names: Iterable[object], source: str, listed: Iterable[object], target: str) -> None:
    """Fail for names that the target lacks. ``source`` and ``target`` are the places, for example a table and its file."""
    missing = _missing(names, source, listed, target)
    assert not missing, "\n".join(missing)


def assert_same_names(first: Iterable[object], source: str, second: Iterable[object], target: str) -> None:
    """Fail for names that only one of the places has."""
    one, other = set(first), set(second)
    wrong = [*_missing(one, source, other, target), *_missing(other, target, one, source)]
    assert not wrong, "\n".join(wrong)


def _missing(names: Iterable[object], source: str, listed: Iterable[object], target: str) -> list[str]:
    return [f"{name} is in {source}, but not in {target}" for name in sorted(map(str, set(names) - set(listed)))]
