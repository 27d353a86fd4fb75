"""What the output of squeue says about agents, however odd it is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastane.cluster.engines.slurm.job_queue import (
    COLUMNS,
    GONE,
    LEAVING,
    PENDING,
    RUNNING,
    choose_jobs,
    describe_agent,
    list_doubles,
    parse_accounting,
    parse_queue,
)
from elastane.cluster.engines.slurm.submission import find_agent_of_job, name_job

COMPLETED = (
    "1                   |COMPLETED               |0               |2026-11-30T02:12:40     |n1"
    "                     |1           |gpu:a100:1          |elastane-c1-1           |None           |"
)
"""A row of Slurm 22.05.8."""


def row(**changes) -> str:
    fields = {
        "JobID": "12",
        "State": "RUNNING",
        "exit_code": "0",
        "EndTime": "NONE",
        "NodeList": "n1",
        "NumCPUs": "2",
        "tres-per-node": "gres:gpu:1",
        "Name": "elastane-c1-7",
        "Reason": "None",
    }
    changed = {name.replace("tres_per_node", "tres-per-node"): value for name, value in changes.items()}
    return "".join(f"{value:20}|" for value in (fields | changed).values())


def see(**changes):
    (job,) = parse_queue(row(**changes), "c1")
    return describe_agent(job)


def test_a_real_row_is_an_agent():
    (job,) = parse_queue(COMPLETED, "c1")
    seen = describe_agent(job)
    assert (seen.id, seen.state, seen.node, seen.exit_code) == ("c1-1", "gone", "n1", 0)
    assert seen.ended_s == 1796004760.0
    assert seen.until_s is None


def test_a_running_agent_has_the_end_of_its_time():
    assert see(EndTime="2026-11-30T02:12:40").until_s == 1796004760.0
    for text in ("NONE", "N/A", "Unknown", "", "2026-13-45T00:00:00", "1796004760"):
        assert see(EndTime=text).until_s is None


@pytest.mark.parametrize(
    ("state", "stage"),
    [
        *((state, "pending") for state in sorted(PENDING)),
        *((state, "running") for state in sorted(RUNNING)),
        *((state, "leaving") for state in sorted(LEAVING)),
        *((state, "gone") for state in sorted(GONE)),
    ],
)
def test_each_state_of_slurm_has_a_stage(state, stage):
    seen = see(State=state)
    assert seen.state == stage
    assert bool(seen.why) == (stage in ("pending", "gone"))
    assert seen.exit_code is None or stage == "gone"


@pytest.mark.parametrize("state", ["DANCING", "", "running", "\x1b[31m"])
def test_an_unknown_state_may_hold_devices(state):
    seen = see(State=state)
    assert seen.state == "running"
    assert "Slurm calls" in seen.why
    assert seen.why.isprintable()


@pytest.mark.parametrize(
    ("state", "text", "reason", "node", "exit_code", "why"),
    [
        ("FAILED", "768", "NonZeroExitCode", "n1", 3, "it ended with exit code 3"),
        ("FAILED", "3:0", "NonZeroExitCode", "n1", 3, "it ended with exit code 3"),
        ("FAILED", "9", "JobLaunchFailure", "n1", None, "signal 9 ended it"),
        ("FAILED", "0:9", "RaisedSignal:9(Killed)", "n1", None, "signal 9 ended it"),
        ("FAILED", "4021", "JobLaunchFailure", "n1", None, "could not start its script on n1"),
        ("FAILED", "32512", "NonZeroExitCode", "n1", 127, "could not start the command"),
        ("FAILED", "139", "RaisedSignal:11(Segmentation_fault)", "n1", None, "signal 11 ended it"),
        ("FAILED", "x", "Strange", "n1", None, "its job failed (Strange)"),
        ("COMPLETED", "x", "None", "n1", None, "its job ended (None)"),
        ("TIMEOUT", "15", "TimeLimit", "n1", None, "its time limit ended it"),
        ("TIMEOUT", "0", "TimeLimit", "n1", 0, "its time limit ended it"),
        ("PREEMPTED", "15", "None", "n1", None, "preempted"),
        ("NODE_FAIL", "1", "NodeDown", "n1", None, "its machine failed"),
        ("OUT_OF_MEMORY", "0:125", "OutOfMemory", "n1", None, "more memory"),
        ("CANCELLED", "15", "None", "n1", None, "its job was cancelled"),
        ("CANCELLED", "0", "Resources", "", None, "its job was cancelled before it began"),
        ("BOOT_FAIL", "0", "None", "n1", None, "its machine did not boot"),
        ("DEADLINE", "0", "DeadLine", "", None, "its deadline ended it"),
    ],
)
def test_the_end_of_an_agent_has_a_reason(state, text, reason, node, exit_code, why):
    seen = see(State=state, exit_code=text, Reason=reason, NodeList=node, EndTime="2026-11-30T02:12:40")
    assert (seen.state, seen.exit_code) == ("gone", exit_code)
    assert why in seen.why
    assert seen.ended_s is not None


@pytest.mark.parametrize(
    ("reason", "why"),
    [
        ("Resources", "no machine has enough free devices, processors or memory now (Resources)"),
        ("Priority", "other jobs have a higher priority (Priority)"),
        ("None", "Slurm has not looked at it yet"),
        ("", "Slurm has not looked at it yet"),
        (
            "ReqNodeNotAvail, UnavailableNodes:n3",
            "machines that it needs are down, drained or reserved (ReqNodeNotAvail, UnavailableNodes:n3)",
        ),
        ("QOSMaxJobsPerUserLimit", "a limit of its QOS for each user is reached (QOSMaxJobsPerUserLimit)"),
        ("QOSGrpGRES", "a limit of its QOS for all users is reached (QOSGrpGRES)"),
        ("AssocGrpCpuLimit", "a limit of its account is reached (AssocGrpCpuLimit)"),
        ("Full_Moon", "Slurm gives the reason Full_Moon"),
        ("a|b \x1b[2J", "Slurm gives the reason a|b \\x1b[2J"),
    ],
)
def test_a_pending_agent_says_in_words_why(reason, why):
    assert see(State="PENDING", Reason=reason, NodeList="").why == why


def test_a_long_reason_is_cut():
    assert len(see(State="PENDING", Reason="x" * 5000).why) < 200


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "slurm_load_jobs error: something",
        "|" * 8,
        row(Name="a|b c"),
        row(Name="x|elastane-c1-7"),
        row(Name="elastane-c2-7"),
        row(Name="elastane-c1-7x"),
        row(Name="elastane-c11-7"),
        row(Name=" elastane-c1-"),
        row(JobID="12_[1-3]"),
        row(JobID="12+0"),
        row(JobID=""),
        row(JobID="9" * 40),
        row(Name="elastane-c1-7")[:100],
    ],
)
def test_a_row_of_something_else_costs_only_itself(bad):
    good = row(Name="elastane-c1-8", JobID="13")
    assert [job.agent for job in parse_queue(f"{bad}\n{good}\n", "c1")] == ["c1-8"]


def test_an_unreadable_field_does_not_lose_an_agent():
    seen = see(
        State="?", exit_code="?", EndTime="?", NodeList="?,?", NumCPUs="many", tres_per_node="?", Reason="?"
    )
    assert (seen.id, seen.state, seen.node) == ("c1-7", "running", "")


def test_the_separator_in_a_reason_does_not_lose_an_agent():
    assert see(State="PENDING", Reason="a|b|elastane-c1-9").id == "c1-7"


def test_a_job_that_slurm_has_refused_is_no_agent():
    refused = row(State="FAILED", Reason="BadConstraints", NodeList="", exit_code="1")
    assert parse_queue(refused, "c1") == ()


@given(st.text(), st.integers(0, 8))
def test_no_text_breaks_the_list(text, place):
    fields = row().split("|")
    fields[place] = text
    rows = "|".join(fields) + "\n" + row(Name="elastane-c1-8")
    jobs = parse_queue(rows, "c1")
    assert "c1-8" in {job.agent for job in jobs}
    assert all(describe_agent(job).why.isprintable() for job in jobs)


def test_of_several_jobs_of_an_agent_the_oldest_living_one_counts():
    def list_jobs(*states):
        rows = (row(JobID=str(number), State=state) for number, state in enumerate(states, 1))
        return parse_queue("\n".join(rows), "c1")

    for states, counted, doubles in (
        (("RUNNING", "RUNNING", "PENDING"), 1, (2, 3)),
        (("COMPLETED", "RUNNING"), 2, ()),
        (("RUNNING", "CANCELLED"), 1, ()),
        (("FAILED", "COMPLETED"), 2, ()),
        (("FAILED", "PENDING", "COMPLETED", "RUNNING"), 2, (4,)),
    ):
        jobs = list_jobs(*states)
        assert choose_jobs(jobs)["c1-7"].id == counted
        assert tuple(job.id for job in list_doubles(jobs)) == doubles


def test_the_accounting_knows_agents_that_slurm_has_forgotten():
    rows = [
        "n1|COMPLETED|elastane-c1-1",
        "None assigned|FAILED|elastane-c1-2",
        "None assigned|CANCELLED by 0|elastane-c1-3",
        "n1|FAILED|elastane-c1-4",
        "n1|PREEMPTED|elastane-c1-11",
        "n1|COMPLETED|elastane-c2-5",
        "n1|COMPLETED|a|elastane-c1-6",
        "",
        "nonsense",
    ]
    assert parse_accounting("\n".join(rows), "c1") == {"c1-1", "c1-3", "c1-4", "c1-11"}


def test_names_of_jobs_have_the_id_of_the_agent_and_fit_into_their_column():
    longest = f"{'c' * 16}-{'9' * 15}"
    assert find_agent_of_job(name_job(longest), "c" * 16) == longest
    assert len(name_job(longest)) < COLUMNS["Name"]
    assert find_agent_of_job("elastane-c1-7\n", "c1") is None
