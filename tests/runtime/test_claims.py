"""Workers of all runs of a machine each get a GPU of their own, while there are enough."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import elastane

CLAIMS = """
import sys
from pathlib import Path
from elastane.runtime.state.claims import claim
print(claim(sys.argv[2].split(","), int(sys.argv[3]), Path(sys.argv[1])), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def worker(tmp_path) -> Iterator[Callable]:
    """Starts a worker and says which GPU it has."""
    begun = []

    def start(number: int, names: str = "0,1") -> tuple[subprocess.Popen, str]:
        process = subprocess.Popen(
            [sys.executable, "-c", CLAIMS, str(tmp_path / "claims"), names, str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": str(Path(elastane.__file__).parents[1])},
        )
        begun.append(process)
        return process, process.stdout.readline().strip()

    yield start
    for process in begun:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def test_workers_of_two_runs_have_different_gpus(worker):
    assert [worker(0)[1], worker(0)[1]] == ["0", "1"]


def test_workers_share_in_turn_where_all_are_taken(worker):
    assert [worker(number)[1] for number in (1, 2, 3, 4)] == ["1", "0", "1", "0"]


def test_the_gpu_of_a_dead_worker_is_free(worker):
    dead, its = worker(0, "GPU-a/0,GPU-b/0")
    dead.kill()
    dead.wait()
    assert worker(2, "GPU-a/0,GPU-b/0")[1] == its
