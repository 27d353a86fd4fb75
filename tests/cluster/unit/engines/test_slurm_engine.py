"""The engine for Slurm over programs that only seem to be those of Slurm."""

import asyncio
from pathlib import Path

import pytest

from elastane.cluster.engines.commands import judge_command
from elastane.cluster.engines.slurm.doctor import (
    examine_slurm,
    judge_config,
    judge_pool,
    judge_programs,
)
from elastane.cluster.engines.slurm.engine import SlurmEngine
from elastane.cluster.engines.slurm.options import SlurmOptions, SlurmPool
from elastane.cluster.nouns.agents import AgentAsk, AgentEnd, Away, StartRefusal
from tests.waiting import WAIT_S

RUNNING = "12|RUNNING|0|NONE|n1|1|gres:gpu:1|elastane-c1-7|None|"


class FakePrograms:
    """A folder with shell scripts in place of the programs; each notes its words and its input."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("squeue", "sbatch", "scancel", "sinfo", "scontrol", "sacct"):
            self.write(name)

    def write(self, name: str, output: str = "", errors: str = "", code: int = 0) -> None:
        answers = self.folder / f"{name}.answers"
        answers.mkdir(exist_ok=True)
        (answers / "output").write_text(output)
        (answers / "errors").write_text(errors)
        path = self.folder / name
        path.write_text(
            f'#!/bin/sh\necho "$*" >>{answers}/words\ncat >>{answers}/input\n'
            f"cat {answers}/output\ncat {answers}/errors >&2\nexit {code}\n"
        )
        path.chmod(0o755)

    def list_calls(self, name: str) -> list[str]:
        path = self.folder / f"{name}.answers" / "words"
        return path.read_text().splitlines() if path.exists() else []

    def build_engine(self, **changes) -> SlurmEngine:
        return SlurmEngine("c1", SlurmOptions(programs=str(self.folder), answer_s=WAIT_S, **changes))


@pytest.fixture
def programs(tmp_path: Path) -> FakePrograms:
    return FakePrograms(tmp_path)


def ask(agent: str = "c1-8", **changes) -> AgentAsk:
    fields = {"id": agent, "job": "demo", "pool": {}, "devices": 1, "grace_s": 30.0, "ticket": "secret"}
    return AgentAsk(**fields | changes)


def start(engine: SlurmEngine, *asks: AgentAsk):
    return asyncio.run(engine.start_agents(asks))


def end(engine: SlurmEngine, *ends: AgentEnd):
    return asyncio.run(engine.end_agents(ends))


def test_the_jobs_are_looked_at_before_one_is_submitted(programs):
    programs.write("squeue", RUNNING)
    assert start(programs.build_engine(), ask("c1-7"), ask("c1-8")) == {}
    (call,) = programs.list_calls("sbatch")
    assert "--job-name=elastane-c1-8" in call
    assert "secret" not in call
    assert programs.list_calls("sacct") == programs.list_calls("scancel") == []


def test_the_accounting_is_asked_where_it_may_be(programs):
    programs.write("sacct", "n1|COMPLETED|elastane-c1-8\n")
    engine = programs.build_engine(accounting=True)
    assert start(engine, ask("c1-8"), ask("c1-9")) == {}
    (call,) = programs.list_calls("sbatch")
    assert "elastane-c1-9" in call
    programs.write("sacct", errors="Slurm accounting storage is disabled", code=1)
    refusal = start(engine, ask("c1-10"))["c1-10"]
    assert (refusal.why, refusal.for_ever) == ("sacct: Slurm accounting storage is disabled", False)
    assert len(programs.list_calls("sbatch")) == 1


def test_a_list_that_fails_is_no_list(programs):
    programs.write("squeue", RUNNING, "slurm_load_jobs error: Unable to contact slurm controller", code=1)
    engine = programs.build_engine()
    why = "squeue: slurm_load_jobs error: Unable to contact slurm controller"
    assert asyncio.run(engine.list_agents()) == Away(why)
    assert asyncio.run(engine.list_nodes({"pool": {}})) == Away(why)
    assert start(engine, ask()) == {"c1-8": StartRefusal(why)}
    assert end(engine, AgentEnd("c1-7", 0.0)) == {"c1-7": why}
    assert programs.list_calls("sbatch") == programs.list_calls("scancel") == []


@pytest.mark.parametrize("name", ["squeue", "sinfo", "sacct"])
def test_an_output_in_the_form_of_another_version_is_no_answer(programs, name):
    """No agent is gone, and none is started twice, because a row cannot be read."""
    programs.write("squeue", RUNNING)
    programs.write("sinfo", "n1|main*|idle|0/4/0/4|gpu:2|gpu:0|(null)|")
    programs.write(name, "12 elastane-c1-8 RUNNING n1\n")
    engine = programs.build_engine(accounting=True)
    why = f"{name} answers in a form that Elastane does not know: 12 elastane-c1-8 RUNNING n1"
    if name == "sacct":
        assert start(engine, ask()) == {"c1-8": StartRefusal(why)}
        assert programs.list_calls("sbatch") == []
    else:
        assert asyncio.run(engine.list_nodes({"pool": {"gres": "gpu"}})) == Away(why)
    if name == "squeue":
        assert asyncio.run(engine.list_agents()) == Away(why)
        assert end(engine, AgentEnd("c1-8", 0.0)) == {"c1-8": why}


def test_missing_programs_are_no_answer(tmp_path):
    engine = SlurmEngine("c1", SlurmOptions(programs=str(tmp_path)))
    assert isinstance(asyncio.run(engine.list_agents()), Away)
    assert not start(engine, ask())["c1-8"].for_ever


def test_a_list_of_machines_that_fails_is_no_list(programs):
    programs.write("sinfo", "n1|main*|idle|0/4/0/4|gpu:2|gpu:0|(null)|", "sinfo: error", code=1)
    assert asyncio.run(programs.build_engine().list_nodes({"pool": {}})) == Away("sinfo: sinfo: error")


def test_a_pool_with_invalid_options_has_no_machines_and_others_have(programs):
    programs.write("sinfo", "n1|main*|idle|0/4/0/4|gpu:2|gpu:0|(null)|")
    nodes = asyncio.run(programs.build_engine().list_nodes({"good": {"gres": "gpu"}, "bad": {"no": "x"}}))
    assert [(node.name, node.pool, node.devices) for node in nodes] == [("n1", "good", 2)]


def test_nothing_is_run_for_nothing(programs):
    engine = programs.build_engine()
    assert start(engine) == end(engine) == {}
    assert programs.list_calls("squeue") == []


def test_running_agents_get_a_notice_and_waiting_ones_are_cancelled(programs):
    rows = [
        RUNNING,
        "13|PENDING|0|NONE||1|gres:gpu:1|elastane-c1-8|Resources|",
        "14|COMPLETING|0|NONE|n1|1|gres:gpu:1|elastane-c1-9|None|",
        "15|RUNNING|0|NONE|n1|1|gres:gpu:1|elastane-c1-10|None|",
        "16|COMPLETED|0|NONE|n1|1|gres:gpu:1|elastane-c1-11|None|",
        "17|RUNNING|0|NONE|n1|1|gres:gpu:1|elastane-c2-12|None|",
    ]
    programs.write("squeue", "\n".join(rows))
    ends = [AgentEnd(f"c1-{number}", 0.0 if number == 10 else 30.0) for number in range(7, 13)]
    assert end(programs.build_engine(), *ends, AgentEnd("c2-12", 0.0)) == {}
    assert sorted(programs.list_calls("scancel")) == ["--batch --signal=TERM 12", "--state=PENDING 13", "15"]


@pytest.mark.parametrize(
    ("errors", "failures"),
    [
        ("scancel: error: Kill job error on job id 12: Invalid job id specified", {}),
        ("scancel: error: Kill job error on job id 12: Job/step already completing or completed", {}),
        (
            "scancel: error: Kill job error on job id 12: Access/permission denied",
            {"c1-7": "Access/permission denied"},
        ),
        ("scancel: error: Kill job error on job id 99: Access/permission denied", {}),
        ("scancel: error: something", {"c1-7": "scancel: error: something"}),
        ("", {"c1-7": "exit code 1"}),
    ],
)
def test_a_job_that_has_ended_is_no_failure_of_its_end(programs, errors, failures):
    programs.write("squeue", RUNNING)
    programs.write("scancel", errors=errors, code=1)
    assert end(programs.build_engine(), AgentEnd("c1-7", 0.0)) == failures


def test_a_hundred_jobs_are_ended_by_few_commands(programs):
    rows = (f"{number}|RUNNING|0|NONE|n1|1|x|elastane-c1-{number}|None|" for number in range(1, 501))
    programs.write("squeue", "\n".join(rows))
    assert end(programs.build_engine(), *(AgentEnd(f"c1-{number}", 0.0) for number in range(1, 501))) == {}
    calls = programs.list_calls("scancel")
    assert len(calls) == 3
    assert sum(len(call.split()) for call in calls) == 500


def test_the_doctor_judges_programs_and_the_command():
    options = SlurmOptions(command=("no-such-command",))
    assert judge_programs((), options).ok
    assert not judge_programs(("sbatch",), options).ok
    assert judge_command(SlurmOptions().command[0], "", "the nodes").ok
    assert not judge_command("no-such-command", "", "the nodes").ok
    assert "setup" in judge_command("no-such-command", "module load x", "the nodes").what
    assert "at that path" in judge_command("/no/command", "module load x", "the nodes").what


@pytest.mark.parametrize(
    ("setup", "count"), [("", 2), ("module load x\n", 2), ("echo 'open", 3), ("if true; then", 3)]
)
def test_the_doctor_finds_a_setup_that_bash_does_not_understand(tmp_path, setup, count):
    options = SlurmOptions(programs=str(tmp_path), setup=setup, answer_s=WAIT_S)
    findings = asyncio.run(examine_slurm(options, {}))
    assert [finding.ok for finding in findings] == [False, True, False][:count]
    assert all(finding.do for finding in findings if not finding.ok)


def test_the_doctor_judges_the_configuration_of_slurm():
    good = "MinJobAge               = 300 sec\nSLURM_VERSION           = 22.05.8\n"
    (finding,) = judge_config(good)
    assert finding.ok
    assert "22.5" not in finding.what
    assert [f.ok for f in judge_config(good.replace("300", "5"))] == [True, False]
    assert [f.ok for f in judge_config(good.replace("22.05", "19.05"))] == [False]
    assert [f.ok for f in judge_config("nonsense")] == [True]
    assert [f.ok for f in judge_config(Away("squeue did not end within 2 s"))] == [False]


def test_the_doctor_judges_a_pool_without_answers():
    pool = SlurmPool(partition="main")
    assert not judge_pool("a", pool, Away("late"), None).ok
    assert not judge_pool("a", pool, (), None).ok
