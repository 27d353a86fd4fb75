"""The tests that a landing draws, those that a change needs, and the time that tests take."""

import re
import subprocess
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.draws import (
    QUARTERS,
    SEEDS_APART,
    SLICES,
    deal_quarter,
    deal_slice,
    draw_first_seed,
    draw_slice,
    find_folder,
    find_test,
    halve_examples,
)
from tests.houses import HOUSES, ROOT, RULES, choose_tests, find_house
from tests.times import KEPT, Time, read_houses, render_houses, render_slowest, sum_houses

commits = st.integers(0, 2**160 - 1).map("{:040x}".format)
names = st.lists(st.text(min_size=1), unique=True)


@given(names)
def test_the_slices_together_have_each_test_once(names):
    slices = [deal_slice(names, place) for place in range(SLICES)]
    assert Counter(name for part in slices for name in part) == Counter(names)
    assert max(map(len, slices)) - min(map(len, slices)) <= 1


@given(st.dictionaries(st.text("ab/_", min_size=1), st.integers(1, 12)), st.integers(0, SLICES - 1))
def test_of_each_group_a_quarter_is_drawn_and_at_least_one(groups, place):
    names = [
        f"{group}/test_a.py::test[{number}]" for group, count in groups.items() for number in range(count)
    ]
    for find_group in (find_folder, find_test):
        drawn = Counter(map(find_group, deal_quarter(names, place, find_group)))
        sizes = Counter(map(find_group, names))
        assert sorted(sizes.values()) == sorted(groups.values())
        assert drawn.keys() == sizes.keys()
        assert all(
            drawn[group] in (count // QUARTERS, -(-count // QUARTERS))
            for group, count in sizes.items()
            if count >= QUARTERS
        )
        quarters = [deal_quarter(names, at, find_group) for at in range(SLICES)]
        assert frozenset().union(*quarters) == frozenset(names)


def test_of_the_examples_of_a_test_half_are_drawn():
    drawn = []

    @settings(max_examples=7, database=None)
    @given(st.integers())
    def draw(number):
        drawn.append(number)

    halve_examples([draw, len])
    draw()
    assert len(drawn) == 4


@given(commits, commits)
def test_a_commit_draws_the_same_again_and_another_one_draws_other_seeds(one, other):
    assert 0 <= draw_slice(one) < SLICES
    first, second = draw_first_seed(one), draw_first_seed(other)
    assert first == draw_first_seed(one[:8])
    assert first == second or abs(first - second) >= SEEDS_APART
    assert draw_first_seed(None) == 0


def list_files(pattern: str) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob(pattern))]


def test_every_package_is_a_house_and_each_has_tests():
    assert {find_house(path) for path in list_files("src/elastane/*/__init__.py")} == {*HOUSES}
    assert {find_house(path) for path in list_files("tests/**/test_*.py")} == {*HOUSES, "rules"}
    assert {path.split("/")[1] for path in list_files("tests/*/")} - {"__pycache__"} == {*HOUSES, "house"}
    assert [path for path in RULES if not (ROOT / path).exists()] == []


TESTS = [
    *(f"tests/cluster/controller/test_a.py::test[{number}]" for number in range(32)),
    *(f"tests/run/worker/test_b.py::test[{number}]" for number in range(32)),
    "tests/house/test_c.py::test",
    "tests/house/test_d.py::test",
]


def count_houses(chosen) -> Counter[str]:
    return Counter(find_house(name) for name in chosen)


def test_a_change_runs_the_tests_of_its_house_the_rules_and_a_sixteenth_of_the_others():
    chosen = choose_tests(TESTS, ["src/elastane/cluster/scheduler/plan.py"], place=3)
    assert count_houses(chosen) == {"cluster": 32, "run": 2, "rules": 2}
    both = choose_tests(
        TESTS, ["src/elastane/cluster/scheduler/plan.py", "tests/run/worker/test_b.py"], place=3
    )
    assert both == frozenset(TESTS)


def test_a_page_touches_no_house_and_what_all_use_touches_every_one():
    assert count_houses(choose_tests(TESTS, ["docs/cli.md", "README.md"], place=0)) == {
        "cluster": 2,
        "run": 2,
        "rules": 2,
    }
    for path in (
        "src/elastane/common/errors.py",
        "src/elastane/__init__.py",
        "tests/conftest.py",
        "pyproject.toml",
    ):
        assert choose_tests(TESTS, [path], place=0) == frozenset(TESTS)


def test_a_landing_draws_by_the_commit_and_each_night_runs_all_tests():
    assert 'make test DRAW="$commit"' in (ROOT / ".ci/run").read_text()
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    assert re.search(r"if: github.event_name == 'schedule'\n\s+run: make test test-long\n", workflow)


def test_the_times_are_added_by_house_and_shown_beside_the_kept_ones():
    tests = {
        "tests/run/worker/test_a.py::test_one": Time(1, cpu_s=2.0, wall_s=3.0),
        "tests/run/worker/test_a.py::test_other": Time(1, cpu_s=0.5, wall_s=9.0),
        "tests/cluster/controller/test_b.py::test": Time(1, cpu_s=1.0, wall_s=1.0),
    }
    assert sum_houses(tests) == {"run": Time(2, 2.5, 12.0), "cluster": Time(1, 1.0, 1.0)}
    head, run, cluster = render_houses(tests, {"run": Time(9, 7.0, 8.0)}).splitlines()
    assert head.split() == ["house", "tests", "CPU", "s", "kept", "wall", "s"]
    assert run.split() == ["run", "2", "2", "7", "12"]
    assert cluster.split() == ["cluster", "1", "1", "-", "1"]
    assert [line.split()[-1].rpartition("_")[2] for line in render_slowest(tests).splitlines()[2:]] == [
        "one",
        "b.py::test",
        "other",
    ]


def test_the_kept_times_name_every_house_but_no_other():
    assert read_houses(KEPT).keys() == {*HOUSES, "rules"}


def test_the_cpu_time_of_a_test_includes_its_children(pytestconfig):
    from tests.times import read_cpu

    before = read_cpu(pytestconfig)
    subprocess.run(["python3", "-c", "sum(range(3_000_000))"], check=True)
    assert read_cpu(pytestconfig) > before
