"""Which version a request goes to."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping

import msgspec
import pytest

from gateway.routing.route import Route
from registry.cohorts import allot
from registry.traffic import Arm, Rule, Traffic, settled

ALL = range(100)


class Request:
    """A request's headers and parameters."""

    def __init__(self, headers: Mapping[str, str] | None = None, **parameters: object) -> None:
        self._headers = {name.lower().encode(): value.encode() for name, value in (headers or {}).items()}
        self._parameters = parameters

    def header(self, name: bytes) -> bytes | None:
        return self._headers.get(name)

    def parameter(self, name: str) -> object:
        return self._parameters.get(name)


def route(*weights: float, sticky: str = "", rules: tuple[Rule, ...] = (), salt: str = "s") -> Route:
    """Versions 1, 2, ... with these weights."""
    arms = tuple(Arm(number, weight) for number, weight in enumerate(weights, 1))
    return Route(Traffic(arms, sticky, rules, salt=salt, cohorts=allot((), arms)))


def changed(split: Route, *weights: float) -> Route:
    """The same with other weights, as the registry does it."""
    arms = tuple(Arm(number, weight) for number, weight in enumerate(weights, 1))
    return Route(settled(msgspec.structs.replace(split.traffic, arms=arms), split.traffic))


def by_user(split: Route, users: int = 20_000) -> list[int | None]:
    """The version of each user."""
    return [split.choose(Request({"x-user": f"user-{user}"}), ALL, 0.5) for user in range(users)]


def within(count: int, total: int, share: float) -> bool:
    """Whether a count is inside the 99.9 % range of a binomial."""
    return abs(count - total * share) <= 3.3 * math.sqrt(total * share * (1 - share)) + 1


@pytest.mark.parametrize("weights", [(90, 10), (1, 1, 2), (0.1, 0.3), (1e-9, 1e-9), (5, 0, 5), (1e12, 1)])
def test_chance_shares_requests_by_weight(weights: tuple[float, ...]) -> None:
    split, chance = route(*weights), random.Random(7)
    counts = Counter(split.choose(Request(), ALL, chance.random()) for _ in range(20_000))
    for number, weight in enumerate(weights, 1):
        assert within(counts[number], 20_000, weight / math.fsum(weights))


@pytest.mark.parametrize("draw", [0.0, 0.5, math.nextafter(1, 0)])
def test_a_version_without_weight_gets_nothing_whatever_the_draw(draw: float) -> None:
    assert route(0, 1, 0).choose(Request(), ALL, draw) == 2
    assert route(0, 1, 0).choose(Request(), [1, 3], draw) is None


@pytest.mark.parametrize("weights", [(90, 10), (1, 1, 2), (5, 0, 5)])
def test_keys_are_shared_by_weight(weights: tuple[float, ...]) -> None:
    counts = Counter(by_user(route(*weights, sticky="header:x-user")))
    for number, weight in enumerate(weights, 1):
        assert within(counts[number], 20_000, weight / sum(weights))


def test_a_key_stays_where_it_is_whatever_the_draw() -> None:
    split = route(1, 1, 1, sticky="header:x-user")
    for user in range(100):
        request = Request({"X-User": str(user)})
        assert len({split.choose(request, ALL, draw) for draw in (0, 0.3, 0.99)}) == 1


@pytest.mark.parametrize(
    ("before", "after", "moved"),
    [((90, 10), (80, 20), 0.1), ((90, 10), (50, 50), 0.4), ((90, 10), (100, 0), 0.1), ((60, 30, 10), (50, 30, 20), 0.1),
     ((1, 1), (1, 1, 1), 1 / 3), ((90, 10), (9, 1), 0), ((5, 5, 5), (0, 5, 10), 1 / 3), ((1, 2, 3), (3, 2, 1), 1 / 3)],
)  # fmt: skip
def test_a_change_of_weights_moves_the_keys_that_it_has_to_and_no_other(
    before: tuple[float, ...], after: tuple[float, ...], moved: float
) -> None:
    old = route(*before, sticky="header:X-User")
    new = changed(old, *after)
    pairs = list(zip(by_user(old), by_user(new), strict=True))
    movers = [there for here, there in pairs if here != there]
    assert within(len(movers), len(pairs), moved) if moved else not movers
    wins = {
        n
        for n, weight in enumerate(after, 1)
        if weight / sum(after) > dict(enumerate(before, 1)).get(n, 0) / sum(before)
    }
    assert set(movers) <= wins, "somebody came to a version whose share has not grown"
    back = changed(new, *before)
    assert by_user(Route(old.traffic)) == by_user(old)
    assert Counter(by_user(back)).keys() == Counter(by_user(old)).keys()


def test_many_small_steps_move_as_many_as_one_large_one() -> None:
    first = split = route(100, 0, sticky="header:x-user")
    for percent in range(1, 51):
        split = changed(split, 100 - percent, percent)
    stayed = [there for here, there in zip(by_user(first), by_user(split), strict=True) if here == there]
    assert within(len(stayed), 20_000, 0.5)
    assert len(split.traffic.cohorts) == 2


def test_splits_with_other_salts_are_independent() -> None:
    first, second = (by_user(route(50, 50, sticky="header:x-user", salt=salt)) for salt in "ab")
    assert within(sum(a == b for a, b in zip(first, second, strict=True)), len(first), 0.5)


def test_who_sends_no_key_is_shared_by_chance() -> None:
    split = route(50, 50, sticky="header:x-user")
    assert {split.choose(Request(), ALL, draw) for draw in (0.1, 0.9)} == {1, 2}


@pytest.mark.parametrize(
    ("sticky", "make"),
    [("header:X-User", lambda n: Request({"x-user": str(n)})), ("parameter:user", lambda n: Request(user=n)),
     ("parameter:user", lambda n: Request(user=str(n))), ("key", lambda n: Request({"Authorization": f"Bearer {n}"})),
     ("key", lambda n: Request({"X-API-Key": str(n)})), ("parameter:user", lambda n: Request(user=bool(n % 2)))],
)  # fmt: skip
def test_everything_that_may_be_a_key_is_one(sticky: str, make: object) -> None:
    assert callable(make)
    split = route(1, 1, 1, 1, sticky=sticky)
    for number in range(50):
        assert len({split.choose(make(number), ALL, draw) for draw in (0.1, 0.4, 0.9)}) == 1


def test_the_share_of_a_version_that_is_not_ready_falls_to_the_others_in_proportion() -> None:
    split, chance = route(60, 30, 10), random.Random(7)
    counts = Counter(split.choose(Request(), {2, 3}, chance.random()) for _ in range(20_000))
    assert counts[1] == 0
    assert counts[2] > counts[3] > 0


def test_keys_of_a_version_that_is_away_come_back_to_it_and_no_other_moves() -> None:
    split = route(60, 30, 10, sticky="header:x-user")
    requests = [Request({"x-user": str(user)}) for user in range(2000)]
    whole = [split.choose(request, ALL, 0) for request in requests]
    without = [split.choose(request, {2, 3}, 0) for request in requests]
    assert all(a == b for a, b in zip(whole, without, strict=True) if a != 1)
    assert set(without) == {2, 3}


def test_nothing_ready_is_nobody() -> None:
    for split in (route(1, 2), route(1, 2, sticky="header:x"), route(1, 2, rules=(Rule("a", "b", 1),))):
        assert split.choose(Request({"x": "1", "a": "b"}), (), 0.5) is None


def test_the_first_rule_that_fits_goes_before_the_weights() -> None:
    rules = (Rule("X-Beta", "yes", 2), Rule("x-tenant", "ä", 3), Rule("X-Beta", "yes", 3))
    split = route(1, 0, 0, rules=rules)
    assert split.choose(Request({"x-beta": "yes", "x-tenant": "ä"}), ALL, 0) == 2
    assert split.choose(Request({"x-tenant": "ä"}), ALL, 0) == 3
    assert split.choose(Request({"x-beta": "Yes"}), ALL, 0) == 1
    assert split.choose(Request(), ALL, 0) == 1
    assert split.choose(Request({"x-beta": "yes"}), {1, 3}, 0) == 3


def test_the_main_version_has_most_weight() -> None:
    assert route(10, 90).main == 2
    assert route(50, 50).main == 1
