"""In CI no test is skipped for want of a namespace."""

from pathlib import Path

import pytest

from tests.run.processes.skipping import IN_CI, skip_except_in_ci

ROOT = Path(__file__).parents[2]


def test_what_a_machine_lacks_fails_a_test_in_ci_and_skips_it_elsewhere(monkeypatch):
    monkeypatch.setenv(IN_CI, "1")
    with pytest.raises(pytest.fail.Exception, match="no namespaces here"):
        skip_except_in_ci("no namespaces here")
    monkeypatch.delenv(IN_CI)
    with pytest.raises(pytest.skip.Exception, match="no namespaces here"):
        skip_except_in_ci("no namespaces here")


def test_ci_sets_the_variable_before_it_runs_a_test():
    setting, tests = f"export {IN_CI}=1\n", "\nmake test "
    text = (ROOT / ".ci" / "run").read_text()
    assert text.index(setting) < text.index(tests)
