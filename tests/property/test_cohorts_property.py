"""Whatever the weights and however they change: shares are exact, and nobody moves who has not to."""

from __future__ import annotations

import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from registry.cohorts import SPACE, Cohort, allot
from registry.traffic import MAX_WEIGHT, Arm

weights = st.floats(0, MAX_WEIGHT) | st.integers(0, 100).map(float) | st.sampled_from([0.0, 5e-324, 1e-300, MAX_WEIGHT])
splits = st.dictionaries(st.integers(1, 6), weights, min_size=1).map(
    lambda split: tuple(Arm(version, weight) for version, weight in split.items())
)
usable = splits.filter(lambda arms: math.fsum(arm.weight for arm in arms) > 0)


def sizes(cohorts: tuple[Cohort, ...]) -> dict[int, int]:
    """Places of each version."""
    found: dict[int, int] = {}
    start = 0
    for cohort in cohorts:
        found[cohort.version] = found.get(cohort.version, 0) + cohort.until - start
        start = cohort.until
    return found


def common(one: tuple[Cohort, ...], other: tuple[Cohort, ...]) -> int:
    """Places that belong to the same version in both."""
    same = start = 0
    for until in sorted({cohort.until for cohort in (*one, *other)}):
        owners = {next(cohort.version for cohort in side if start < cohort.until) for side in (one, other)}
        same += (until - start) if len(owners) == 1 else 0
        start = until
    return same


@given(history=st.lists(usable, min_size=1, max_size=6))
def test_every_change_is_exact_and_the_smallest(history: list[tuple[Arm, ...]]) -> None:
    cohorts: tuple[Cohort, ...] = ()
    for arms in history:
        before, cohorts = cohorts, allot(cohorts, arms)
        assert [cohort.until for cohort in cohorts] == sorted({cohort.until for cohort in cohorts})
        assert cohorts[-1].until == SPACE
        assert all(one.version != next.version for one, next in pairwise(cohorts))
        found, total = sizes(cohorts), math.fsum(arm.weight for arm in arms)
        for arm in arms:
            assert abs(found.get(arm.version, 0) - arm.weight / total * SPACE) <= 1 + SPACE * 1e-12
        if before:
            old = sizes(before)
            assert common(before, cohorts) == sum(min(places, found.get(version, 0)) for version, places in old.items())


@given(arms=usable)
def test_the_same_weights_again_change_nothing(arms: tuple[Arm, ...]) -> None:
    once = allot((), arms)
    assert allot(once, arms) == once
