"""``elastane logs RUN --node NODE`` shows only processes of one machine."""

import json

import msgspec
import pytest

from elastane.run.nouns.records import EventLine
from elastane.run.nouns.rundir import RunDir


def start_worker(worker: int, node: str = "") -> EventLine:
    detail = {"pid": 1} | ({"node": node} if node else {})
    return EventLine(
        time=1.0, kind="worker.started", who=f"worker {worker}", workers=(worker,), detail=detail
    )


@pytest.fixture
def three_machines(finished_run) -> RunDir:
    """Return a run of the first machine, of b, and of c, which has joined and started nothing yet."""
    run_dir = finished_run()
    events = [
        start_worker(0),
        start_worker(100, "b"),
        EventLine(time=1.0, kind="node.joined", who="node caesar"),
    ]
    with run_dir.events.open("ab") as file:
        file.writelines(msgspec.json.encode(event) + b"\n" for event in events)
    for name in ("worker-100", "coordinator-b", "fork-server-b"):
        run_dir.log(name).write_text(f"log of {name}\n")
    return run_dir


def list_shown(result) -> set[str]:
    assert result.exit_code == 0, result.stderr
    return {json.loads(line)["process"] for line in result.stdout.splitlines()}


def test_only_processes_of_the_machine_are_shown(elastane, three_machines) -> None:
    assert list_shown(elastane("logs", "done", "--node", "b", "--json")) == {
        "worker-100",
        "coordinator-b",
        "fork-server-b",
    }
    assert list_shown(elastane("logs", "done", "--node", "first", "--json", "-f")) == {
        "worker-0",
        "coordinator",
    }
    assert list_shown(elastane("logs", "done", "--node", "caesar", "--json")) == set()


def test_a_process_is_chosen_among_those_of_the_machine(elastane, three_machines) -> None:
    assert elastane("logs", "done", "100", "--node", "b").stdout == "log of worker-100\n"
    assert elastane("logs", "done", "coordinator", "--node", "b").stdout == "log of coordinator-b\n"
    elsewhere = elastane("logs", "done", "0", "--node", "b")
    assert elsewhere.exit_code == 2
    assert "choose one of worker-100, coordinator" in elsewhere.stderr


def test_a_worker_with_a_number_of_the_attempt_before_is_where_it_runs_now(elastane, three_machines) -> None:
    with three_machines.events.open("ab") as file:
        file.write(msgspec.json.encode(start_worker(0, "b")) + b"\n")
    assert "worker-0" in list_shown(elastane("logs", "done", "--node", "b", "--json"))


def test_an_unknown_machine_is_refused_with_the_nearest_name(elastane, three_machines) -> None:
    result = elastane("logs", "done", "--node", "ceasar")
    assert result.exit_code == 2
    assert "did you mean caesar?" in result.stderr
    assert "machines of the run: first, b, caesar" in result.stderr
