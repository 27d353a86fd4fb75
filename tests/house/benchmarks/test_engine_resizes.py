"""The resizes of a job are measured through a controller, whichever engine has its agents."""

import pytest
from engine_resizes import build_spec, measure_resizes

from elastane.cluster.client.context import connect
from elastane.cluster.client.job_handle import JobHandle
from elastane.cluster.nouns.job_records import ENDED
from tests.cluster.processes.process_engine import AgentProcesses, ProcessEngine
from tests.cluster.processes.small_cluster import open_cluster

pytestmark = [pytest.mark.processes, pytest.mark.long]


@pytest.mark.parametrize("on_agents", [False, True])
def test_what_workers_feel_of_a_resize_is_measured(stage, tmp_path, monkeypatch, on_agents):
    agents = AgentProcesses(stage.build_command("elastane.cli.main"), tmp_path / "agents")
    open_engine = (lambda cluster: ProcessEngine(agents, cluster)) if on_agents else None
    try:
        with open_cluster(stage, tmp_path, monkeypatch, open_engine=open_engine), connect() as cluster:
            spec = build_spec("cpu", "default")
            cluster.jobs.submit(spec, key=spec.name)
            results = measure_resizes(JobHandle(cluster, spec.name), 1)
            assert cluster.jobs.get(spec.name).state in ENDED
    finally:
        agents.end()
    assert {name: row["n"] for name, row in results["seconds"].items()} == {"grow": 1, "shrink": 1}
    for name in ("grow", "shrink"):
        felt = results[f"felt by the healthy, {name}"]
        assert felt["slowest step over a usual one"]["p50"] > 0
        assert felt["the same, calm"]["p50"] > 0
    assert len(agents.agents) == (2 if on_agents else 0)
