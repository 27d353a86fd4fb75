"""The parts of the local engine that need no run."""

import asyncio

import msgspec
import pytest

from elastane.api.errors import BadInput
from elastane.api.jobs import ElasticPolicy, JobSpec
from elastane.api.lives import Life, Outcome
from elastane.api.orders import Drain, Kill, Resize, Settle, Start, Stop
from elastane.api.spec import RunSpec
from elastane.controller.observing import is_permanent
from elastane.engines.local.engine import LocalEngine
from elastane.engines.local.environment import environment_of
from elastane.engines.local.job import run_spec_of
from elastane.engines.local.places import Places
from elastane.lives.life_file import read_life, write_life
from elastane.lives.run_directory import claimed

SPEC = JobSpec(
    name="j",
    team="t",
    script="/train.py",
    args=("--lr", "$(rm -rf /)"),
    elastic_policy=ElasticPolicy(min_replicas=2, max_replicas=6),
)
OVER = Life(number=3, pid=1, started=1, began_s=0.0, outcome=Outcome(code=0, why="all steps are made"))


def test_a_job_gets_what_it_names_and_what_a_process_needs() -> None:
    own = {"PATH": "/bin", "HOME": "/home/x", "ELASTANE_TOKEN": "ela_secret", "AWS_SECRET_ACCESS_KEY": "s"}
    assert environment_of({"COLOUR": "red", "PATH": "/opt/bin"}, own) == {
        "PATH": "/opt/bin",
        "HOME": "/home/x",
        "COLOUR": "red",
    }


def test_a_jobs_limits_and_arguments_are_its_runs() -> None:
    run = run_spec_of("17-j", SPEC)
    assert (run.name, run.start, run.max_workers) == ("17-j", 2, 6)
    assert run.args == ("--lr", "$(rm -rf /)")
    assert run.checkpoints is not None


@pytest.mark.parametrize("wish", [{"script": ""}, {"script": "train.py"}])
def test_what_this_engine_cannot_run_it_refuses_in_words(wish) -> None:
    with pytest.raises(BadInput, match="job j names"):
        run_spec_of("j", msgspec.structs.replace(SPEC, **wish))


def test_a_job_nobody_has_heard_of_is_not_there(tmp_path) -> None:
    seen = asyncio.run(LocalEngine(tmp_path).observe(["j"]))["j"]
    assert (seen.life, seen.present, seen.agent, seen.outcome) == (0, False, False, None)


def test_what_an_earlier_engine_has_left_is_found_without_asking_for_it(tmp_path) -> None:
    places = Places(tmp_path)
    places.note("old")
    places.run_dir("old").logs.mkdir(parents=True)
    places.run_dir("old").presence.touch()
    write_life(places.run_dir("old"), OVER)
    engine = LocalEngine(tmp_path)
    seen = asyncio.run(engine.observe([]))
    assert seen["old"].life == 3
    assert seen["old"].outcome == OVER.outcome
    assert asyncio.run(engine.carry_out([Settle(job="old")])) == {}
    assert asyncio.run(engine.observe([])) == {}


def test_a_damaged_job_hides_no_other(tmp_path) -> None:
    for job in ("good", "bad"):
        places = Places(tmp_path)
        places.run_dir(job).logs.mkdir(parents=True)
        places.run_dir(job).presence.touch()
        write_life(places.run_dir(job), OVER)
    places.run_dir("bad").life.write_bytes(b"{")
    seen = asyncio.run(LocalEngine(tmp_path).observe(["good", "bad"]))
    assert (seen["good"].life, seen["bad"].life) == (3, 0)


def test_a_job_with_the_name_of_somebodys_run_does_not_become_that_run(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("ELASTANE_HOME", str(tmp_path))
    script = tmp_path / "train.py"
    script.touch()
    with claimed(RunSpec(name="j", script=str(script)), Places(tmp_path).run_dir("j").root):
        pass
    engine = LocalEngine(tmp_path)
    order = Start(job="j", life=1, workers=1, spec=msgspec.structs.replace(SPEC, script=str(script)))
    refused = asyncio.run(engine.carry_out([order]))
    assert "holds a run that was not this job's" in refused["j"]
    outcome = asyncio.run(engine.observe(["j"]))["j"].outcome
    assert outcome is not None
    assert is_permanent(outcome)
    assert "another name" in outcome.why


@pytest.mark.parametrize("kind", [Resize, Drain, Stop, Kill])
def test_an_order_for_a_life_that_is_not_there_does_nothing(tmp_path, kind) -> None:
    more = {Resize: {"workers": 2}, Drain: {"worker": 0}}.get(kind, {})
    refused = asyncio.run(LocalEngine(tmp_path).carry_out([kind(job="j", life=1, **more)]))
    assert refused == {"j": "life 1 is not there"}


def test_a_life_reads_back_as_it_was_written(tmp_path) -> None:
    run_dir = Places(tmp_path).run_dir("j")
    run_dir.root.mkdir(parents=True)
    assert read_life(run_dir) is None
    write_life(run_dir, OVER)
    assert read_life(run_dir) == OVER
    run_dir.life.write_bytes(b"{")
    with pytest.raises(BadInput, match="damaged"):
        read_life(run_dir)
