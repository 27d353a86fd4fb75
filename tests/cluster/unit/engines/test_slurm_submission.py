"""The job of an agent: the words of sbatch, and a script that a shell understands as it is meant."""

import subprocess

import pytest

from elastane.cluster.engines.slurm.options import SlurmOptions, SlurmPool
from elastane.cluster.engines.slurm.submission import (
    END_OF_TICKET,
    build_script,
    build_submission,
    compute_time_limit_min,
)
from elastane.cluster.nouns.agents import AgentAsk
from elastane.common.errors import BadInput

NOW_S = 1_000_000.0


def ask(**changes) -> AgentAsk:
    fields = {
        "id": "c1-7",
        "job": "demo",
        "pool": {},
        "devices": 2,
        "grace_s": 29.5,
        "ticket": "elastane1-secret",
    }
    return AgentAsk(**fields | changes)


def build_words(pool: SlurmPool | None = None, **changes) -> set[str]:
    return set(build_submission(ask(**changes), pool or SlurmPool(), SlurmOptions(), NOW_S).words)


def test_a_job_is_one_process_on_one_machine_that_never_begins_twice():
    words = build_words()
    assert {"--parsable", "--no-requeue", "--nodes=1", "--ntasks=1", "--export=NONE"} <= words
    assert {"--job-name=elastane-c1-7", "--comment=demo", "--cpus-per-task=2"} <= words
    assert "--signal=B:USR1@30" in words
    assert not any(word.startswith(("--time", "--mem", "--gres")) for word in words)


def test_the_options_of_a_pool_become_words():
    pool = SlurmPool(
        partition="gpu",
        account="lab",
        qos="high",
        reservation="course",
        constraint="a100",
        exclude="n1",
        time_s=3601,
        gres="gpu:a100",
        cpus_per_device=4,
        memory_bytes_per_device=3 << 30,
    )
    assert {
        "--partition=gpu",
        "--account=lab",
        "--qos=high",
        "--reservation=course",
        "--constraint=a100",
        "--exclude=n1",
        "--time=61",
        "--gres=gpu:a100:2",
        "--cpus-per-task=8",
        "--mem=6144M",
    } <= build_words(pool)
    # What the agent asks for goes before what comes with its devices.
    assert {"--cpus-per-task=3", "--mem=2M"} <= build_words(pool, cpus=3, memory_bytes=(1 << 20) + 1)


def test_without_grace_there_is_no_notice_and_a_long_one_is_cut():
    assert not any(word.startswith("--signal") for word in build_words(grace_s=0.0))
    assert "--signal=B:USR1@65535" in build_words(grace_s=1e9)


@pytest.mark.parametrize(
    ("time_s", "left_s", "minutes"),
    [(None, None, None), (90.0, None, 2), (None, 119.0, 1), (90.0, 600.0, 2), (7200.0, 600.0, 10)],
)
def test_the_time_limit_is_the_shorter_one_in_minutes(time_s, left_s, minutes):
    until_s = None if left_s is None else NOW_S + left_s
    assert compute_time_limit_min(ask(until_s=until_s), SlurmPool(time_s=time_s), NOW_S) == minutes


@pytest.mark.parametrize(
    "changes", [{"until_s": NOW_S + 59}, {"until_s": 0.0}, {"devices": 0}, {"devices": 5000}]
)
def test_what_can_be_no_job_is_refused(changes):
    with pytest.raises(BadInput):
        build_words(**changes)


@pytest.mark.parametrize("ticket", ["", "a b", "a\nb", "a\n", "ä", "a\0", END_OF_TICKET, "x" * 20000])
def test_a_ticket_is_one_word(ticket):
    with pytest.raises(BadInput) as caught:
        build_script(ask(ticket=ticket), SlurmOptions())
    assert not ticket.strip() or ticket not in str(caught.value)


def test_the_ticket_is_in_the_script_only():
    found = build_submission(ask(job="a\nb" * 200), SlurmPool(), SlurmOptions(), NOW_S)
    assert not any("secret" in word or "\n" in word for word in found.words)
    assert found.script.count("elastane1-secret") == 1
    comment = next(word for word in found.words if word.startswith("--comment="))
    assert len(comment) < 250


def test_the_output_goes_to_the_file_of_the_engine_or_else_of_the_agent():
    def find_output(output="", log=""):
        words = build_submission(ask(log=log), SlurmPool(), SlurmOptions(output=output), NOW_S).words
        return next(word.removeprefix("--output=") for word in words if word.startswith("--output="))

    assert find_output() == "/dev/null"
    assert find_output(log="/home/me/100%/c1-7.log") == "/home/me/100%%/c1-7.log"
    assert find_output("/logs/%x.out", "/home/me/c1-7.log") == "/logs/%x.out"
    for log in ("c1-7.log", "/a\nb", "/a\\%j"):
        with pytest.raises(BadInput):
            find_output(log=log)


HOSTILE = ("two words", "$(touch gone)", "`id`", "'", '"', "\\", "*", "~", "!x", END_OF_TICKET, "-")


@pytest.mark.parametrize("ticket", ["$HOME", "`id`", "a\\b", "'", "$(id)", "a;b"])
def test_a_shell_passes_on_each_word_and_the_ticket_unchanged(tmp_path, ticket):
    show = tmp_path / "show it"
    show.write_text('#!/bin/bash\nprintf "%s\\n" "$$" "$SETUP" "$#" "$@"\ncat\n')
    show.chmod(0o755)
    options = SlurmOptions(command=(str(show), *HOSTILE), setup="export SETUP=before\n\n")
    script = build_script(ask(ticket=ticket), options)
    with subprocess.Popen(
        ["bash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tmp_path, text=True
    ) as shell:
        output, _ = shell.communicate(script)
    # The agent has the pid of the shell: signals for the batch process reach it.
    words = (*HOSTILE, "join", "-")
    assert output.splitlines() == [str(shell.pid), "before", str(len(words)), *words, ticket]
    assert [path.name for path in tmp_path.iterdir()] == ["show it"]
