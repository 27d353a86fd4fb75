"""The ways in which workers keep state and exchange it: whole or sharded, over shared memory or TCP.

Two opposite ways meet each half of the code; `make test-long` adds the other two combinations.
"""

from collections.abc import Iterable, Sequence

import pytest

OPPOSITE_WAYS = [
    pytest.param({"copies": None, "transport": "shared"}, id="whole-shared"),
    pytest.param({"copies": 2, "transport": "tcp"}, id="sharded-tcp"),
]
EVERY_WAY = [
    *OPPOSITE_WAYS,
    pytest.param({"copies": None, "transport": "tcp"}, id="whole-tcp", marks=pytest.mark.long),
    pytest.param({"copies": 2, "transport": "shared"}, id="sharded-shared", marks=pytest.mark.long),
]


def pair_with_ways(cases: Iterable[object], ways: Sequence = EVERY_WAY) -> list:
    """Return parameters of a test: each case, with one of the two opposite ways by turns.

    `make test-long` adds the other ways of each case.

    Args:
        cases: the values of the test's first parameter, or tuples of several.
        ways: the ways that `make test-long` tests.
    """
    parameters = []
    for turn, case in enumerate(cases):
        values = case if isinstance(case, tuple) else (case,)
        usual = OPPOSITE_WAYS[turn % 2]
        parameters += [
            pytest.param(
                *values,
                *way.values,
                id="-".join(map(str, (*values, way.id))),
                marks=() if way is usual else pytest.mark.long,
            )
            for way in ways
        ]
    return parameters
