"""Every process of a run has the same hash seed, for any shell and any job file."""

import os
import platform
import subprocess
import sys
from functools import partial

import pytest

from elastane.cluster.engines.local import agent_process
from elastane.cluster.engines.local.accounts import build_job_environment
from elastane.cluster.engines.local.agent_process import start_agent
from elastane.cluster.nouns.engine import StartAttempt
from elastane.cluster.nouns.jobs import JobSpec
from elastane.run.agent import processes
from elastane.run.agent.environment import (
    build_process_environment,
    build_worker_environment,
    list_portable_variables,
)
from elastane.run.agent.processes import Commands, start_coordinator, start_fork_server
from elastane.run.nouns.rundir import RunDir

WORDS = "set('one two three four five six seven eight nine ten'.split())"
SEEDS = (None, "random", "0", "12345")


class Started(Exception):
    """Raised in place of a start; has the environment of the process."""

    def __init__(self, environment) -> None:
        self.environment = environment


@pytest.fixture
def run_dir(tmp_path):
    run_dir = RunDir(tmp_path)
    run_dir.logs.mkdir()
    return run_dir


def capture_environment(monkeypatch, module, start):
    """Return the environment that a function passes to Popen; start nothing."""

    def refuse(*_arguments, env=None, **_options):
        raise Started(env)

    monkeypatch.setattr(module.subprocess, "Popen", refuse)
    with pytest.raises(Started) as started:
        start()
    return started.value.environment


@pytest.mark.parametrize("shell", SEEDS)
@pytest.mark.parametrize("process", ["coordinator", "fork-server", "agent of a job"])
def test_every_process_of_a_run_is_started_with_the_pinned_seed(monkeypatch, run_dir, shell, process) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    if shell is not None:
        monkeypatch.setenv("PYTHONHASHSEED", shell)
    wishes = {} if shell is None else {"PYTHONHASHSEED": shell}
    order = StartAttempt(
        job="j", attempt=1, workers=1, spec=JobSpec(name="j", team="t", script="/train.py", env=wishes)
    )
    module, start = {
        "coordinator": (processes, partial(start_coordinator, Commands(), run_dir, socket_fd=0, lifeline=0)),
        "fork-server": (
            processes,
            partial(
                start_fork_server, Commands(), run_dir, lifeline=0, attempt=0, threads=1, numerics="native"
            ),
        ),
        "agent of a job": (
            agent_process,
            partial(start_agent, run_dir, order, (), build_job_environment(wishes, os.environ), run_dir.root),
        ),
    }[process]
    assert capture_environment(monkeypatch, module, start)["PYTHONHASHSEED"] == "0"


@pytest.mark.parametrize("shell", ["random", "1", "2"])
def test_a_set_has_one_order_under_the_pinned_seed(shell) -> None:
    environment = build_process_environment(os.environ | {"PYTHONHASHSEED": shell})
    printed = subprocess.run(
        [sys.executable, "-P", "-c", f"print(*{WORDS})"], env=environment, capture_output=True, check=True
    )
    pinned = subprocess.run(
        [sys.executable, "-P", "-c", f"print(*{WORDS})"],
        env=os.environ | {"PYTHONHASHSEED": "0"},
        capture_output=True,
        check=True,
    )
    assert printed.stdout == pinned.stdout


def test_a_worker_keeps_the_variables_that_the_user_has_set() -> None:
    own = {"COLOUR": "red", "MALLOC_TRIM_THRESHOLD_": "7", "OMP_NUM_THREADS": "64"}
    environment = build_worker_environment(own, threads=2)
    assert (environment["COLOUR"], environment["MALLOC_TRIM_THRESHOLD_"]) == ("red", "7")
    assert (environment["OMP_NUM_THREADS"], environment["MKL_NUM_THREADS"]) == ("2", "2")


def test_portable_numerics_cap_the_kernels_that_torch_selects() -> None:
    program = "import torch; print(torch.backends.cpu.get_cpu_capability())"
    environment = build_worker_environment(os.environ | {"MKL_CBWR": "AVX2"}, 1, "portable")
    printed = subprocess.run(
        [sys.executable, "-P", "-c", program],
        env=environment,
        capture_output=True,
        check=True,
        text=True,
    )
    capability = list_portable_variables(platform.machine())["ATEN_CPU_CAPABILITY"]
    assert printed.stdout.strip() == capability.upper()
    assert environment["MKL_CBWR"] == "COMPATIBLE"


def test_native_numerics_leave_the_choice_of_kernels_to_the_user() -> None:
    own = {"ATEN_CPU_CAPABILITY": "default"}
    assert build_worker_environment(own, 1)["ATEN_CPU_CAPABILITY"] == "default"
    assert "MKL_CBWR" not in build_worker_environment(own, 1)
