"""Tests that need namespaces say so where there are none; in CI they fail."""

import os
from typing import NoReturn

import pytest

IN_CI = "ELASTANE_CI"
"""The variable of the environment that ``.ci/run`` sets."""


def skip_except_in_ci(reason: str) -> NoReturn:
    """Skip a test that this machine cannot run; in CI, fail it.

    Args:
        reason: what the machine lacks.
    """
    if os.environ.get(IN_CI):
        pytest.fail(f"{reason}; with {IN_CI} set, no test is skipped for that", pytrace=False)
    pytest.skip(reason)
