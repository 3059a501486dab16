"""SharedDict: the order and content of a plain dictionary, and views that changes do not affect."""

from random import Random

import pytest

from replicated_namesrv.routes.shared_dict import COPY_FACTOR, SharedDict, SharedView

SEEDS = range(60)
MANY = 2 * COPY_FACTOR


def numbered(count: int) -> SharedDict[int]:
    entries = SharedDict[int]()
    entries.update({f"k{number}": number for number in range(count)})
    return entries


def change(rng: Random, entries: SharedDict[int], model: dict[str, int]) -> None:
    """One change, made in both."""
    count = rng.choice((1, 1, 1, 2, len(model) // 2, len(model)))
    known = rng.sample(list(model), min(count, len(model)))
    match rng.randrange(12):
        case 0 | 1 | 2 | 3:
            assert entries.remove(known) == [model.pop(key) for key in known]
        case 4 | 5 | 6:
            more = {f"k{rng.randrange(3 * MANY)}": rng.randrange(100) for _ in range(count)}
            entries.update(more)
            model.update(more)
        case 7 | 8 | 9:
            more = {key: rng.randrange(100) for key in known}
            entries.update(more)
            model.update(more)
        case 10:
            for each in (entries.own(), model):
                each.update(dict.fromkeys(each, 7))
        case 11 if rng.random() < 0.1:
            entries.clear()
            model.clear()


@pytest.mark.parametrize("seed", SEEDS)
def test_it_is_a_plain_dictionary_and_views_stay_as_they_were(seed: int) -> None:
    rng = Random(seed)
    entries = numbered(MANY)
    model = dict(entries)
    views: list[tuple[SharedView[int], list[tuple[str, int]]]] = []
    for _ in range(300):
        if rng.random() < 0.1:
            views.append((entries.share(), list(model.items())))
        if views and rng.random() < 0.08:
            view, expected = views.pop(rng.randrange(len(views)))
            assert list(view.content().items()) == expected, seed
            if rng.random() < 0.7:
                view.release()
            del view
        change(rng, entries, model)
        key = f"k{rng.randrange(3 * MANY)}"
        assert (len(entries), key in entries, entries.get(key)) == (len(model), key in model, model.get(key)), seed
        assert dict(entries.near(1)) == model
        if rng.random() < 0.2:
            assert list(entries.items()) == list(model.items()), seed
    for view, expected in views:
        assert list(view.content().items()) == expected, seed
        view.release()
    assert list(entries.items()) == list(model.items())


def test_changes_beside_the_entries_are_moved_when_the_last_view_ends() -> None:
    entries = numbered(MANY)
    whole = entries.whole()
    first, second = entries.share(), entries.share()
    entries.remove(["k1"])
    entries.update({"k1": 5})
    first.release()
    first.release()
    assert list(whole)[:2] == ["k0", "k1"]
    second.release()
    assert list(whole)[-1] == "k1"
    assert entries.whole() is whole


def test_a_view_that_is_dropped_ends() -> None:
    entries = numbered(MANY)
    whole = entries.whole()
    view = entries.share()
    entries.remove(["k1"])
    del view
    entries.remove(["k2"])
    assert "k1" not in whole
    assert entries.whole() is whole


def test_a_missing_key_is_missing() -> None:
    entries = numbered(MANY)
    view = entries.share()
    entries.remove(["k1"])
    for key in ("k1", "none"):
        with pytest.raises(KeyError):
            entries[key]
        assert key not in entries
    assert view.content()["k1"] == 1
