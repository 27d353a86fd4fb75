"""The example of a shop learns, and its calendar says how many machines are idle on each day of a year."""

import importlib.util
import subprocess
import sys
from datetime import date, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "shop"


def test_the_calendar_lends_most_machines_outside_the_season():
    spec = importlib.util.spec_from_file_location("season", EXAMPLE / "season.py")
    season = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(season)
    year = [season.count_idle_machines(date(2027, 1, 1) + timedelta(days=day)) for day in range(365)]
    assert year[0] == year[-1] == 1
    assert set(year) == {1, 2, 3}
    assert sum(one != other for one, other in pairwise(year)) == len(season.CALENDAR) - 1


def test_the_calendar_prints_a_line_for_the_run():
    command = [sys.executable, str(EXAMPLE / "season.py")]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    assert printed.strip() in {"localhost:1", "localhost:2", "localhost:3"}


@pytest.mark.long
def test_the_forecast_is_better_than_the_mean_of_each_product():
    command = [sys.executable, str(EXAMPLE / "train.py"), "--epochs=1"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    words = printed.replace(")", "").split()
    assert float(words[2]) < float(words[-1]), printed
