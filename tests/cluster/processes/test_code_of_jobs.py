"""Jobs that bring their code with them train from it, although its directory is gone."""

import shutil

import pytest

from elastane.cluster.engines.local.engine import EngineDirectories
from elastane.run.machines.joining.shipped_code import check_shipped_code
from elastane.run.observability.run_files import read_run
from tests.run.processes.stage import SCRIPTS
from tests.waiting import wait_until

from .process_engine import AgentProcesses, ProcessEngine
from .small_cluster import SOURCES, open_cluster, read_json

pytestmark = [pytest.mark.processes, pytest.mark.early]

JOB = f"""\
code: .
script: src/train.py
args: [--steps=12]
workingDir: src
env: {{PYTHONPATH: {SOURCES}}}
training: {{checkpoints: {{every: never}}}}
elasticPolicy: {{minReplicas: 2, maxReplicas: 2}}
runPolicy: {{suspend: true}}
"""


@pytest.fixture
def project(tmp_path):
    """A project with a script that needs a module beside it, and a file in its working directory."""
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    (root / "src" / "helper.py").write_text(
        "from pathlib import Path\nassert Path('note.txt').read_text() == 'x'\n"
    )
    (root / "src" / "note.txt").write_text("x")
    # A script may write its results into its working directory.
    with (root / "src" / "helper.py").open("a") as helper:
        helper.write("Path('result.txt').write_text('y')\n")
    shutil.copy(SCRIPTS / "faults.py", root / "src")
    (root / "src" / "train.py").write_text("import helper\n" + (SCRIPTS / "training.py").read_text())
    (root / "job.yaml").write_text(JOB)
    return root


def train_without_project(run_elastane, project, home):
    """Submit a job, delete the project, and let the job train; return its run."""
    submitted = run_elastane("submit", project / "job.yaml", "--name", "shipped")
    assert f"sending the code of {project}: 5 files" in submitted.output
    assert "sending" not in run_elastane("submit", project / "job.yaml", "--name", "other").output
    shutil.rmtree(project)
    run_elastane("resume", "shipped")
    wait_until(
        lambda: run_elastane.read_job("shipped").state in {"finished", "failed"},
        "it has ended",
    )
    job = read_json(run_elastane, "describe", "shipped")
    assert job["state"] == "finished", job["why"]
    run = read_run(EngineDirectories(home).get_run_dir("shipped"))
    assert [line.step for line in run.ledger] == [*range(1, 13)]
    assert run.record.spec.code == job["spec"]["code"]
    return run


def check_copy(run_dir, spec):
    """Check that a run directory has the code of the job, and a result of the script beside it."""
    copy = run_dir.root / "code" / spec.code
    assert spec.directory == str(copy / "src")
    assert (copy / "src" / "result.txt").exists()
    check_shipped_code(run_dir, spec.code)


def test_a_job_trains_from_the_code_that_it_has_brought(stage, tmp_path, monkeypatch, project):
    with open_cluster(stage, tmp_path, monkeypatch) as run_elastane:
        run = train_without_project(run_elastane, project, tmp_path / "home")
    assert {len(line.workers) for line in run.ledger} == {2}
    check_copy(EngineDirectories(tmp_path / "home").get_run_dir("shipped"), run.record.spec)


@pytest.mark.parametrize("homes", [pytest.param("shared", marks=pytest.mark.long), "own"])
def test_agents_fetch_the_code_of_their_job(stage, tmp_path, monkeypatch, project, homes):
    command = stage.build_command("elastane.cli.main")
    engine = AgentProcesses(command, tmp_path / "agents", own_homes=homes == "own")
    options = {"home": homes}
    try:
        with open_cluster(
            stage,
            tmp_path,
            monkeypatch,
            open_engine=lambda cluster: ProcessEngine(engine, cluster),
            engine_options=options,
        ) as run_elastane:
            run = train_without_project(run_elastane, project, tmp_path / "home")
    finally:
        engine.end()
    assert len(engine.agents) == 2
    if homes == "shared":
        check_copy(EngineDirectories(tmp_path / "home").get_run_dir("shipped"), run.record.spec)
