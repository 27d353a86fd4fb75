"""`make gpu`: each part has a limit and a line, and a machine without a GPU runs nothing."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

FILE = Path(__file__).parents[3] / "benchmarks" / "gpu" / "all_parts.py"
MOST_S = 9 * 60


@pytest.fixture(scope="module")
def all_parts():
    spec = importlib.util.spec_from_file_location("all_parts", FILE)
    module = importlib.util.module_from_spec(spec)
    # Its dataclass looks for its own module.
    sys.modules["all_parts"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["all_parts"]


def run_program(all_parts, text, limit_s):
    part = all_parts.Part("tried", limit_s, lambda _small, file: [sys.executable, "-c", text, str(file)])
    return all_parts.run_part(part, small=True)


def test_all_parts_take_less_than_nine_minutes(all_parts):
    assert sum(part.limit_s for part in all_parts.PARTS) < MOST_S
    assert len({part.name for part in all_parts.PARTS}) == len(all_parts.PARTS)


def test_the_line_of_a_part_has_its_figures(all_parts):
    line = run_program(all_parts, "import sys; open(sys.argv[1], 'w').write('{\"rate\": 3}')", 60)
    assert (line["ok"], line["rate"], line["device"]) == (True, 3, "CPU")


def test_a_part_that_fails_or_reaches_its_limit_has_a_line_too(all_parts):
    line = run_program(all_parts, "print('it broke'); raise SystemExit(3)", 60)
    assert (line["ok"], line["why"], line["log"]) == (False, "exit code 3", ["it broke"])
    line = run_program(all_parts, "import time; time.sleep(60)", 1)
    assert (line["ok"], line["why"]) == (False, "its limit of 1 s")


def test_the_counts_of_a_report_of_tests_are_figures(all_parts, tmp_path):
    report = tmp_path / "report"
    report.write_text(
        '<?xml version="1.0"?><testsuites><testsuite name="pytest" errors="0" failures="1" skipped="2" '
        'tests="9" time="1.5" hostname="a"><testcase/></testsuite></testsuites>'
    )
    assert all_parts.read_figures(report) == {"tests": 9, "failures": 1, "errors": 0, "skipped": 2}


def test_a_machine_without_a_gpu_runs_nothing(all_parts, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["all_parts.py"])
    all_parts.main()
    assert capsys.readouterr().out.startswith("no CUDA device")
