"""Commands about jobs, against a controller over a real socket, in a world that its clock moves."""

import json
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from types import SimpleNamespace

import msgspec
import pytest
from typer.testing import CliRunner

from elastane.cli.jobs import control
from elastane.cli.main import app
from elastane.cli.runs import requests
from elastane.cluster.client import code_upload, job_handle
from elastane.cluster.client.context import StartedController, save_running
from elastane.cluster.controller.code_files import CodeFiles
from elastane.cluster.nouns.engine import StopAttempt
from elastane.cluster.nouns.job_checks import parse_job_spec
from elastane.common.connections import controller_connection
from elastane.common.connections.controller_context import Context, find_context, read_context, save_context
from elastane.run.nouns.records import EventLine
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import RunRecord, RunSpec
from tests.waiting import WAIT_S

POOL = {"name": "h100", "device": "h100", "devices": 4}
JOB = """\
name: digits
script: train.py
args: [--epochs, "3"]
elasticPolicy: {maxReplicas: 2}
"""


@pytest.fixture
def url(cluster, served, tmp_path, monkeypatch):
    monkeypatch.setenv("ELASTANE_HOME", str(tmp_path / "home"))
    operator = cluster.api.user("operator", user="olga")
    operator.put("/pools/h100", POOL)
    operator.put("/priorities/high", {"name": "high", "value": 100})
    with served(cluster.api) as at:
        save_context(Context(url=at, token=cluster.api.token(), team="vision"))
        yield at


@pytest.fixture
def elastane(url):
    """Run a command, and return its answer."""
    return lambda *words, **more: CliRunner().invoke(app, [str(word) for word in words], **more)


@pytest.fixture
def script(tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    path = tmp_path / "work" / "train.py"
    path.write_text("import elastane\n")
    return path


@pytest.fixture
def submitted(elastane, script):
    """Submit a job with 1 to 2 workers."""

    def submit(name="digits", *words):
        answer = elastane("submit", script, "--name", name, "--workers", "1:2", *words)
        assert answer.exit_code == 0, answer.output
        return name

    return submit


@pytest.fixture
def meanwhile(cluster):
    """Let time pass beside a block, until a condition holds; the block ends no earlier."""

    @contextmanager
    def begin(true):
        with ThreadPoolExecutor(1) as pool:
            passed = pool.submit(cluster.until, true)
            yield
            passed.result()

    return begin


def test_a_script_is_submitted_with_the_typed_options(elastane, cluster, script):
    words = ("--workers", "2:4", "--priority", "high", "--queue", "nightly", "--spot", "--no-borrow")
    more = ("--env", "COLOUR=red", "--seed", "7", "--retries", "0", "--json", "--", "--lr", "3e-4")
    answer = elastane("submit", "train.py", "--name", "digits", *words, *more)
    assert answer.exit_code == 0, answer.output
    assert json.loads(answer.stdout)["state"] == "queued"
    spec = cluster.job("digits").spec
    assert (spec.team, spec.priority_class, spec.queue) == ("vision", "high", "nightly")
    assert (spec.script, spec.args, spec.working_dir) == (str(script), ("--lr", "3e-4"), str(script.parent))
    assert spec.elastic_policy.limits == (2, 4)
    assert (spec.spot, spec.borrow, spec.env) == (True, False, {"COLOUR": "red"})
    assert (spec.training.seed, spec.run_policy.job_max_retry_count) == (7, 0)


def test_a_job_of_an_undeclared_team_is_submitted_with_a_note(elastane, cluster, script, url):
    cluster.api.user("operator", user="olga").put("/teams/vision", {"name": "vision"})
    save_context(Context(url=url, token=cluster.api.token("operator"), team="vision"))
    answer = elastane("submit", script, "--name", "digits", "--team", "visoin", "--json")
    assert json.loads(answer.stdout)["team"] == "visoin"
    assert "team visoin is not declared" in answer.stderr
    assert "did you mean vision?" in answer.stderr
    assert "note" not in elastane("submit", script, "--name", "other").output


def test_options_win_over_a_file_and_its_paths_start_from_its_directory(elastane, cluster, script, tmp_path):
    (script.parent / "job.yaml").write_text(JOB)
    answer = elastane("submit", "../work/job.yaml", "--name", "other", "--workers", "1:3")
    assert answer.exit_code == 0, answer.output
    spec = cluster.job("other").spec
    assert (spec.script, spec.args, spec.working_dir) == (str(script), ("--epochs", "3"), "")
    assert (spec.team, spec.elastic_policy.limits) == ("vision", (1, 3))


def test_the_script_of_a_file_must_exist_if_the_controller_is_on_this_machine(elastane, script, url):
    (script.parent / "job.yaml").write_text(JOB)
    script.unlink()
    # Elsewhere there may be one: of a cluster's disks this machine knows nothing.
    assert elastane("submit", "job.yaml").exit_code == 0
    save_running(StartedController(url=url, pid=1, started=0))
    answer = elastane("submit", "job.yaml", "--name", "other")
    assert answer.exit_code == 2
    assert f"job.yaml: there is no script {script}" in answer.stderr
    script.write_text("import elastane\n")
    assert elastane("submit", "job.yaml", "--name", "other").exit_code == 0


def test_the_module_of_a_file_must_exist_in_the_directory_of_the_job(elastane, script, url):
    (script.parent / "job.yaml").write_text("module: no.such")
    save_running(StartedController(url=url, pid=1, started=0))
    answer = elastane("submit", "job.yaml")
    assert f"job.yaml: there is no Python module no.such in {script.parent}" in answer.stderr
    assert "correct module: in the file, or workingDir:" in answer.stderr
    assert "relative path" not in answer.stderr


@pytest.mark.parametrize(
    ("folder", "said"), [("data", "there is no directory"), ("train.py", "is not a directory")]
)
def test_the_working_directory_of_a_file_must_exist_if_the_controller_is_on_this_machine(
    elastane, script, url, folder, said
):
    (script.parent / "job.yaml").write_text(JOB + f"workingDir: {folder}\n")
    assert elastane("submit", "job.yaml", "--name", "elsewhere").exit_code == 0
    save_running(StartedController(url=url, pid=1, started=0))
    for words in ((), ("--dry-run",)):
        answer = elastane("submit", "job.yaml", "--name", "other", *words)
        assert answer.exit_code == 2
        assert said in answer.stderr
        assert str(script.parent / folder) in answer.stderr
        assert "correct workingDir: in the file" in answer.stderr
    assert elastane("describe", "other").exit_code != 0


def test_a_dry_run_prints_a_file_of_the_same_job_and_submits_nothing(elastane, script):
    words = ("submit", "train.py", "--name", "digits", "--workers", "1:3", "--checkpoint-every", "500 steps")
    printed = elastane(*words, "--dry-run").stdout
    (script.parent / "job.yaml").write_text(printed)
    assert elastane("submit", "job.yaml", "--dry-run").stdout == printed
    assert parse_job_spec(json.loads(elastane(*words, "--dry-run", "--json").stdout)).name == "digits"
    assert elastane("jobs", "--json").stdout == ""


@pytest.fixture
def kept(cluster, tmp_path):
    """Return the directory in which the controller keeps code."""
    cluster.api.controller.code = CodeFiles(tmp_path / "controller")
    return tmp_path / "controller" / "code"


def test_the_code_of_a_script_is_sent_once(elastane, cluster, script, kept):
    (script.parent / "data.bin").write_bytes(bytes(1000))
    (script.parent / ".gitignore").write_text("*.bin\n")
    words = ("submit", "train.py", "--ship-code", "--workers", "1")
    answer = elastane(*words, "--name", "first")
    assert answer.exit_code == 0, answer.output
    assert f"sending the code of {script.parent}: 2 files, 0.0 MiB" in answer.output
    spec = cluster.job("first").spec
    assert (spec.script, spec.working_dir) == ("train.py", "")
    assert [path.name for path in kept.iterdir()] == [f"{spec.code}.tar.gz"]
    again = elastane(*words, "--name", "second")
    assert "sending" not in again.output
    assert cluster.job("second").spec.code == spec.code
    script.write_text("import elastane, sys\n")
    assert "sending" in elastane(*words, "--name", "third").output
    assert cluster.job("third").spec.code != spec.code
    assert f"{spec.code}, sent with the job" in elastane("describe", "first").stdout


def test_large_code_is_sent_with_words_of_progress(elastane, script, kept, monkeypatch):
    monkeypatch.setattr(code_upload, "LARGE_BYTES", 1000)
    monkeypatch.setattr(controller_connection, "PIECE_BYTES", 10_000)
    (script.parent / "weights.bin").write_bytes(random.Random(1).randbytes(100_000))
    output = elastane("submit", "train.py", "--ship-code", "--name", "large").output
    assert [word in output for word in ("25 % is", "50 % is", "75 % is", "100 % is")] == [True] * 4
    assert len(list(kept.iterdir())) == 1


def test_a_job_file_names_the_directory_of_its_code(elastane, cluster, script, kept):
    jobs = script.parent / "jobs"
    jobs.mkdir()
    (jobs / "job.yaml").write_text(f"name: digits\ncode: ..\nscript: {script}\nworkingDir: jobs\n")
    assert elastane("submit", "jobs/job.yaml").exit_code == 0
    spec = cluster.job("digits").spec
    assert (spec.script, spec.working_dir, len(spec.code)) == ("train.py", "jobs", 64)
    # A digest names code that was sent before.
    (jobs / "job.yaml").write_text(f"code: {spec.code}\nscript: train.py\n")
    assert elastane("submit", "jobs/job.yaml", "--name", "again").exit_code == 0
    assert cluster.job("again").spec.code == spec.code
    assert len(list(kept.iterdir())) == 1


def test_code_that_lacks_the_script_is_not_sent(elastane, script, kept):
    words = ("submit", script, "--ship-code", "--name", "digits")
    (script.parent / ".elastaneignore").write_text("train.py\n")
    answer = elastane(*words)
    assert answer.exit_code == 2
    assert "lacks the script train.py" in answer.stderr
    (script.parent / "elsewhere").mkdir()
    (script.parent / "elsewhere" / "job.yaml").write_text("script: ../train.py\n")
    answer = elastane("submit", script.parent / "elsewhere" / "job.yaml", "--ship-code")
    assert answer.exit_code == 2
    assert f"{script} is not below {script.parent / 'elsewhere'}" in answer.stderr
    assert not kept.exists()


def test_a_dry_run_with_code_prints_a_file_of_the_same_job(elastane, script):
    printed = elastane("submit", "train.py", "--ship-code", "--name", "digits", "--dry-run").stdout
    assert f"code: {script.parent}\n" in printed
    assert "script: train.py\n" in printed
    (script.parent / "job.yaml").write_text(printed)
    assert elastane("submit", "job.yaml", "--dry-run").stdout == printed


def test_options_of_the_script_follow_two_dashes(elastane, script):
    answer = elastane("submit", script, "--lr", "3e-4")
    assert answer.exit_code == 2
    assert "--lr is not an option of elastane submit" in answer.stderr
    assert "Did you mean" not in answer.stderr
    assert "Did you mean --workers?" in elastane("submit", script, "--wrkers", "1:2").stderr


@pytest.mark.parametrize("words", [("--help",), ("-h",), ("train.py", "--name", "digits", "--help")])
def test_submit_has_help(elastane, script, words):
    answer = elastane("submit", *words)
    assert answer.exit_code == 0, answer.output
    assert "Submit a job to the cluster" in answer.stdout


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--workers -1:3", "--workers: '-1:3' is not MIN:MAX"),
        ("--budget -5", "budget: -5 is not more than 0"),
    ],
)
def test_a_value_that_begins_with_a_dash_belongs_to_its_option(elastane, script, option, said):
    answer = elastane("submit", script, *option.split())
    assert answer.exit_code == 2
    assert said in answer.stderr


def test_a_token_of_the_environment_submits_for_its_own_team(elastane, cluster, script, monkeypatch):
    monkeypatch.setenv("ELASTANE_URL", find_context().url)
    monkeypatch.setenv("ELASTANE_HOME", str(script.parent / "elsewhere"))
    monkeypatch.setenv("ELASTANE_TOKEN", cluster.api.token(team="speech", user="bob"))
    assert json.loads(elastane("submit", script, "--dry-run", "--json").stdout)["team"] == "speech"
    answer = elastane("submit", script, "--name", "digits")
    assert answer.exit_code == 0, answer.output
    assert cluster.job("digits").spec.team == "speech"


def test_a_saved_token_is_sent_to_no_other_controller(elastane, monkeypatch):
    monkeypatch.setenv("ELASTANE_URL", "http://127.0.0.1:1")
    answer = elastane("jobs")
    assert answer.exit_code == 2
    assert "ELASTANE_TOKEN is not set" in answer.stderr
    assert read_context().url in answer.stderr


def test_no_token_is_sent_over_an_unencrypted_connection(elastane, monkeypatch):
    monkeypatch.setenv("ELASTANE_URL", "http://192.0.2.2:7425")
    monkeypatch.setenv("ELASTANE_TOKEN", "ela_x")
    answer = elastane("jobs")
    assert answer.exit_code == 2
    assert "http://192.0.2.2:7425 is not encrypted" in answer.stderr


@pytest.mark.parametrize("name", ["digits#2", "digits?a=b", "../me", "a/b", ""])
def test_an_invalid_name_leads_to_no_other_path(elastane, submitted, name):
    submitted()
    for words in (("describe", name), ("cancel", name), ("scale", name, "2"), ("team", "remove", name)):
        answer = elastane(*words)
        assert answer.exit_code == 2, answer.output
        assert f"{name!r} is not a valid name" in answer.stderr


@pytest.mark.parametrize(
    ("there", "lacking"), [("ELASTANE_URL", "ELASTANE_TOKEN"), ("ELASTANE_TOKEN", "ELASTANE_URL")]
)
def test_an_incomplete_address_of_a_cluster_is_reported(elastane, tmp_path, monkeypatch, there, lacking):
    monkeypatch.setenv("ELASTANE_HOME", str(tmp_path / "elsewhere"))
    monkeypatch.setenv(there, "http://127.0.0.1:1")
    answer = elastane("jobs")
    assert answer.exit_code == 2
    assert f"{lacking} is not set" in answer.stderr
    assert f"{there} is not set" not in answer.stderr


def test_a_wrong_job_is_refused_by_the_controller_with_its_field(elastane, script):
    answer = elastane("submit", script, "--priority", "highest", "--json")
    assert answer.exit_code == 2
    assert "priorityClass: there is no class 'highest'" in json.loads(answer.stdout)["error"]["what"]


def test_an_image_that_no_engine_runs_is_refused_and_one_that_runs_is_a_fact_of_its_job(
    elastane, cluster, script
):
    operator = cluster.api.user("operator", user="olga")
    operator.put("/engines/ray", {"name": "ray", "kind": "ray"})
    answer = elastane("submit", script, "--image", "team/train:1")
    assert answer.exit_code == 2
    assert "image: no engine of the cluster can run team/train:1" in answer.stderr
    assert "Train" in elastane("submit", script, "--image", "Train").stderr
    operator.put("/engines/hpc", {"name": "hpc", "kind": "slurm", "options": {"container": "pyxis"}})
    assert elastane("submit", script, "--image", "/shared/train.sif").exit_code == 2
    assert elastane("submit", script, "--image", "team/train:1", "--name", "far").exit_code == 0
    cluster.pass_time(1)
    assert "team/train:1" in elastane("describe", "far").stdout
    # There is a pool on the controller's machine only.
    assert "can run its image team/train:1" in elastane("explain", "far").stdout


def test_unfinished_jobs_are_listed_and_with_all_the_ended_ones_too(elastane, cluster, submitted):
    submitted("one")
    submitted("two", "--workers", "4:4")
    cluster.world.habits["one"] = {"steps": 20}
    cluster.until(lambda: cluster.workers("one") == 2)
    page = elastane("jobs").stdout
    assert "2 of 1:2" in page
    assert "queued" in page
    cluster.until(lambda: cluster.job("one").state == "finished")
    assert [json.loads(line)["name"] for line in elastane("jobs", "--json").stdout.splitlines()] == ["two"]
    page = elastane("jobs", "--all").stdout
    assert "20/20" in page
    assert "finished" in page
    assert elastane("jobs", "--state", "failed").stdout == "no jobs\n"
    assert elastane("jobs", "--state", "dead").exit_code == 2


def test_a_list_with_several_users_has_their_names(elastane, cluster, submitted, url):
    submitted("one", "--queue", "night")
    submitted("two")
    titles, *_ = elastane("jobs").stdout.splitlines()
    assert titles.split()[:4] == ["name", "team", "queue", "state"]
    save_context(Context(url=url, token=cluster.api.token("operator", user="olga"), team="vision"))
    submitted("three")
    titles, newest, *_ = elastane("jobs").stdout.splitlines()
    assert titles.split()[:4] == ["name", "team", "user", "queue"]
    assert newest.split()[:3] == ["three", "vision", "olga"]


def test_a_row_has_the_speed_at_the_present_size(elastane, cluster, submitted):
    submitted()
    cluster.until(lambda: cluster.workers("digits") == 2)
    cluster.pass_time(20)
    row = json.loads(elastane("jobs", "--json").stdout)
    assert (row["workers"], row["samplesPerS"]) == (2, 128.0)
    assert row["loss"] < 2


def test_top_without_a_terminal_prints_free_devices_once(elastane, cluster, submitted):
    submitted()
    cluster.until(lambda: cluster.workers("digits") == 2)
    page = elastane("top").stdout
    assert "2/4" in page
    assert "digits" in page
    sight = json.loads(elastane("top", "--json").stdout)
    assert (sight["pools"][0]["used"], sight["pools"][0]["devices"]) == (2, 4)
    assert [job["name"] for job in sight["jobs"]] == ["digits"]
    assert not sight["failing"]
    assert "partly failing" not in page
    condition = cluster.api.store.soundness.condition
    condition.report("writing", "the disk under the store is full", "free some space", detail="/secret")
    for verb in (("top",), ("describe", "digits"), ("explain", "digits", "--job")):
        page = elastane(*verb).stdout
        assert "jobs continue" in page
        assert "the disk under the store is full (since " in page
        assert "do: free some space" in page
        assert "secret" not in page
    assert json.loads(elastane("top", "--json").stdout)["failing"]


def test_a_job_is_described_and_explained(elastane, cluster, submitted):
    submitted()
    assert "has not planned since" in elastane("explain", "digits").stdout
    cluster.until(lambda: cluster.workers("digits") == 2)
    page = elastane("describe", "digits").stdout
    for words in ("vision, submitted by ada", "2 of 1:2", "h100: 2", "job.started", "keeps 2 workers"):
        assert words in page
    page = elastane("explain", "digits").stdout
    assert "allows no more than 2 workers" in page
    assert "start" in page
    assert json.loads(elastane("explain", "digits", "--json").stdout)["workers"] == 2


def test_describe_shows_target_deadline_and_budget(elastane, cluster, script):
    cluster.api.user("operator", user="olga").put("/pools/h100", POOL | {"labels": {"fabric": "ib"}})
    script.with_name("job.yaml").write_text(
        "name: digits\nscript: train.py\n"
        "target: {loss: 0.25, by: 2026-12-01T12:00:00Z}\n"
        "data: {labels: {fabric: ib}}\n"
        "runPolicy: {activeDeadlineSeconds: 7200}\n"
    )
    assert elastane("submit", "job.yaml").exit_code == 0
    cluster.until(lambda: cluster.workers("digits") == 1)
    page = elastane("describe", "digits").stdout
    by = datetime(2026, 12, 1, 12, tzinfo=UTC).astimezone()
    assert f"loss 0.25 by {by:%Y-%m-%d %H:%M:%S}" in page
    assert "fabric=ib" in page
    assert "of 2 h used" in page


def test_a_crashed_job_shows_the_time_of_its_retry(elastane, cluster, submitted, monkeypatch):
    monkeypatch.setattr("time.time", cluster.clock)
    submitted()
    for crashes in range(1, 4):
        cluster.until(lambda: cluster.workers("digits") == 2)
        assert "next attempt" not in elastane("jobs").stdout
        cluster.world.running["digits"].end(None)
        cluster.until(lambda crashes=crashes: cluster.job("digits").crashes == crashes)
    at_s = cluster.job("digits").retry_at_s
    assert at_s - cluster.clock() == 8
    for verb in ("jobs", "top"):
        assert "next attempt in 8 s" in elastane(verb).stdout
    page = elastane("describe", "digits").stdout
    assert "next attempt in 8 s" in page
    assert f"{datetime.fromtimestamp(at_s).astimezone():%H:%M:%S}" in page
    told = json.loads(elastane("jobs", "--json").stdout)
    assert (told["state"], told["retryAtS"]) == ("running", at_s)
    elastane("cancel", "digits")
    assert "cancel" in elastane("jobs", "--all").stdout
    assert "next attempt" not in elastane("jobs", "--all").stdout


def test_a_job_that_stops_at_its_own_limits_does_not_count_as_preempted(elastane, cluster, submitted):
    submitted()
    cluster.until(lambda: cluster.workers("digits") == 2)
    assert elastane("scale", "digits", "9:9").exit_code == 0
    cluster.until(lambda: cluster.job("digits").state == "queued")
    assert "preempted once" not in elastane("describe", "digits").stdout
    assert elastane("scale", "digits", "1:2").exit_code == 0
    cluster.until(lambda: cluster.workers("digits") == 2)
    submitted("wide", "--workers", "4:4", "--priority", "high")
    cluster.until(lambda: cluster.workers("wide") == 4)
    assert "preempted once" in elastane("describe", "digits").stdout


def test_limits_are_changed_together_or_one_by_one(elastane, cluster, submitted):
    submitted()
    for words, limits in (
        (("2:4",), (2, 4)),
        (("--max", "3"), (2, 3)),
        (("--min", "1"), (1, 3)),
        (("2",), (2, 2)),
    ):
        assert elastane("scale", "digits", *words).exit_code == 0
        assert cluster.job("digits").spec.elastic_policy.limits == limits
    assert elastane("scale", "digits", "--sizes", "4,1,2").exit_code == 0
    assert cluster.job("digits").spec.elastic_policy.replica_discrete_values == (1, 2, 4)
    for words in ((), ("2:1",), ("two",), ("1:2", "--max", "3"), ("2", "--sizes", "2"), ("--sizes", "few")):
        assert elastane("scale", "digits", *words).exit_code == 2


def test_a_job_gets_another_priority(elastane, cluster, submitted):
    submitted()
    assert elastane("amend", "digits", "--priority", "high").stdout == "digits: priority high, no bounds\n"
    assert cluster.job("digits").spec.priority_class == "high"
    assert elastane("amend", "digits", "--priority", "royal").exit_code == 2


def test_a_job_gets_a_priority_and_bounds_together_or_neither(elastane, cluster, submitted):
    submitted("digits", "--budget", "10")
    refused = elastane("amend", "digits", "--priority", "royal", "--budget", "20")
    assert (refused.exit_code, cluster.job("digits").spec.budget) == (2, 10)
    refused = elastane("amend", "digits", "--priority", "high", "--budget", "-1")
    assert (refused.exit_code, cluster.job("digits").spec.priority_class) == (2, "")
    said = elastane("amend", "digits", "--priority", "high", "--budget", "20").stdout
    assert said == "digits: priority high, a budget of 20 (0.00 spent)\n"
    spec = cluster.job("digits").spec
    assert (spec.priority_class, spec.budget) == ("high", 20)


def test_bounds_of_a_job_are_set_and_removed(elastane, cluster, submitted):
    submitted("digits", "--budget", "10")
    said = elastane("amend", "digits", "--budget", "250", "--loss", "0.1").stdout
    assert said == "digits: a budget of 250 (0.00 spent), a target loss of 0.1\n"
    assert cluster.job("digits").spec.target.loss == 0.1
    assert "a deadline" in elastane("amend", "digits", "--deadline", "+8h", "--loss", "none").stdout
    spec = json.loads(elastane("amend", "digits", "--throughput", "64", "--json").stdout)["spec"]
    assert (spec["budget"], spec["target"]) == (250, {"throughput": 64})
    by = "2026-12-01T18:00Z"
    assert "to be reached by" in elastane("amend", "digits", "--loss", "0.1", "--by", by).stdout
    assert cluster.job("digits").spec.target.by == datetime(2026, 12, 1, 18, tzinfo=UTC)
    assert elastane("amend", "digits", "--loss", "none").exit_code == 0
    assert cluster.job("digits").spec.target.by is None
    assert elastane("amend", "digits", "--loss", "none", "--by", "none").exit_code == 0
    assert "requires target.loss" in elastane("amend", "digits", "--loss", "none", "--by", "+1h").output
    assert "invalid time for --by: 'soon'" in elastane("amend", "digits", "--by", "soon").output
    for wrong in ((), ("--budget", "much"), ("--budget", "-1"), ("--deadline", "soon"), ("--loss", "nan")):
        assert elastane("amend", "digits", *wrong).exit_code == 2
    assert cluster.job("digits").spec.budget == 250


def test_a_job_is_paused_resumed_and_cancelled(elastane, cluster, submitted, meanwhile):
    submitted()
    cluster.until(lambda: cluster.workers("digits") == 2)
    assert "pauses at the next commit" in elastane("pause", "digits").stdout
    assert "pausing" in elastane("jobs").stdout
    with meanwhile(lambda: cluster.job("digits").state == "paused"):
        assert elastane("pause", "digits", "--wait").stdout == "digits is paused\n"
    assert {order.why for order in cluster.world.orders if isinstance(order, StopAttempt)} == {
        "It is paused."
    }
    assert cluster.uses() == {}
    with meanwhile(lambda: bool(cluster.job("digits").observed.held)):
        assert elastane("resume", "digits", "--wait").stdout == "digits runs with 2 workers\n"
    with meanwhile(lambda: cluster.job("digits").state == "cancelled"):
        assert elastane("cancel", "digits", "--wait").stdout == "digits is cancelled\n"
    assert elastane("pause", "digits").exit_code == 2


@pytest.fixture
def looked(monkeypatch):
    """Return when a waiting or following command has polled again."""
    looks, sleep = threading.Semaphore(0), time.sleep  # not a wait: the commands' own

    def counted(seconds):
        looks.release()
        sleep(seconds)

    for module in (job_handle, control, requests):
        monkeypatch.setattr(module, "time", SimpleNamespace(sleep=counted))

    def look():
        while looks.acquire(blocking=False):
            pass
        # The first of these may have begun before.
        for _ in range(2):
            assert looks.acquire(timeout=WAIT_S)

    return look


def test_several_jobs_are_paused_or_cancelled_at_once(elastane, cluster, submitted, meanwhile):
    for name in ("one", "two", "three"):
        submitted(name)
    cluster.until(lambda: cluster.workers("one") == 1)
    with meanwhile(lambda: cluster.job("one").state == cluster.job("two").state == "paused"):
        assert elastane("pause", "one", "two", "one", "--wait").stdout == "one is paused\ntwo is paused\n"
    told = elastane("resume", "one", "two", "--json").stdout.splitlines()
    assert [json.loads(line)["name"] for line in told] == ["one", "two"]
    answer = elastane("cancel", "one", "tow", "three")
    assert answer.exit_code == 3
    assert answer.stdout.startswith("one ")
    assert "did you mean two?" in answer.stderr
    assert cluster.job("three").wanted == "run"


def test_a_waiting_command_prints_the_state_that_it_waits_for_and_its_changes(
    elastane, cluster, submitted, meanwhile, looked
):
    submitted()
    cluster.until(lambda: cluster.workers("digits") == 2)
    with meanwhile(lambda: cluster.job("digits").state == "paused"):
        assert (
            "pauses at the next commit, and keeps its state" in elastane("pause", "digits", "--wait").stderr
        )
    submitted("wide", "--workers", "4:4")
    cluster.until(lambda: cluster.workers("wide") == 4)

    def make_room():
        cluster.until(lambda: "It needs" in " ".join(cluster.job("digits").reason.sentences))
        looked()
        cluster.api.user().post("/jobs/wide/cancel")
        cluster.until(lambda: bool(cluster.job("digits").observed.held))

    thread = threading.Thread(target=make_room)
    thread.start()
    answer = elastane("resume", "digits", "--wait")
    thread.join()
    assert answer.stdout == "digits runs with 2 workers\n"
    first, *others = answer.stderr.splitlines()
    assert first == "digits resumes as soon as its minimum of workers fits"
    assert others[0].startswith("digits waits. It needs 1 device of h100, and none is left for it")
    assert len(others) == len(set(others))
    assert "It is paused" not in answer.stderr


def test_with_json_a_waiting_command_prints_only_the_job(elastane, cluster, submitted, meanwhile):
    submitted()
    cluster.until(lambda: cluster.workers("digits") == 2)
    with meanwhile(lambda: cluster.job("digits").state == "paused"):
        answer = elastane("pause", "digits", "--wait", "--json")
    assert (json.loads(answer.stdout)["state"], answer.stderr) == ("paused", "")


def test_following_a_queued_job_prints_its_reasons(elastane, cluster, submitted, script, looked):
    submitted("wide", "--workers", "4:4")
    cluster.until(lambda: cluster.workers("wide") == 4)

    def make_room():
        cluster.until(lambda: bool(cluster.api.user().get("/jobs/late").json().get("explained")))
        looked()
        cluster.api.user().post("/jobs/late/cancel")
        cluster.pass_time(2)

    thread = threading.Thread(target=make_room)
    thread.start()
    answer = elastane("submit", script, "--name", "late", "--wait")
    thread.join()
    assert answer.stdout.count("late waits. It needs 1 device of h100, and none is left for it") == 1


def test_waiting_prints_events_and_ends_with_the_job(elastane, cluster, script, meanwhile):
    cluster.world.habits["digits"] = {"steps": 20}
    with meanwhile(lambda: cluster.api.user().get("/jobs/digits").json().get("state") == "finished"):
        answer = elastane("submit", script, "--name", "digits", "--wait", "--json")
    assert answer.exit_code == 0, answer.output
    assert json.loads(answer.stdout)["state"] == "finished"
    assert "all 20 steps are made" in answer.stderr


def test_waiting_for_a_failing_job_has_exit_code_1(elastane, cluster, script, meanwhile):
    (script.parent / "job.yaml").write_text(JOB + "runPolicy: {activeDeadlineSeconds: 5}\n")
    with meanwhile(lambda: cluster.api.user().get("/jobs/digits").json().get("state") == "failed"):
        answer = elastane("submit", "job.yaml", "--wait")
    assert answer.exit_code == 1
    assert "DeadlineExceeded" in answer.stdout


def test_events_of_a_job_are_followed_until_it_has_ended(elastane, cluster, submitted, meanwhile):
    submitted()
    cluster.world.habits["digits"] = {"steps": 20}
    with meanwhile(lambda: cluster.job("digits").state == "finished"):
        told = [
            json.loads(line)["kind"]
            for line in elastane("events", "digits", "-f", "--json").stdout.splitlines()
        ]
    assert (told[0], told[-1]) == ("job.submitted", "job.finished")
    page = elastane("events", "digits").stdout
    assert "job.running" in page
    assert "digits runs" in page


@pytest.fixture
def run_here(cluster, tmp_path):
    """Build the run of a job between two attempts; lines can be appended to its events and its log."""

    def make(name="digits"):
        directory = RunDir(cluster.world.where / name)
        directory.logs.mkdir()
        record = RunRecord(spec=RunSpec(name=name, script="train.py"), created="2026-01-01T00:00:00Z")
        directory.run.write_bytes(msgspec.json.encode(record))
        directory.attempt.write_text("{}")
        home = tmp_path / "home" / "runs"
        home.mkdir()
        (home / name).symlink_to(directory.root)

        def say(words):
            with directory.events.open("ab") as events:
                events.write(msgspec.json.encode(EventLine(time=0.0, kind="message", why=words)) + b"\n")
            with directory.log("worker-0").open("a") as log:
                log.write(words + "\n")

        return say

    return make


@pytest.mark.parametrize("verb", ["events", "logs"])
def test_events_of_a_local_job_are_followed_over_its_attempts_until_it_ends(
    elastane, cluster, submitted, run_here, *, looked, verb
):
    submitted()
    cluster.until(lambda: cluster.workers("digits") == 2)
    say = run_here()
    say("first attempt")
    elastane("pause", "digits")
    cluster.until(lambda: cluster.job("digits").state == "paused")

    def go_on():
        looked()
        say("second attempt")
        cluster.api.user().post("/jobs/digits/cancel")

    thread = threading.Thread(target=go_on)
    thread.start()
    answer = elastane(verb, "digits", "-f")
    thread.join()
    assert answer.exit_code == 0, answer.output
    assert "first attempt" in answer.stdout
    assert "second attempt" in answer.stdout
    awaited = "digits is paused; waiting for its next attempt"
    assert awaited in answer.stderr
    assert answer.output.index("first attempt") < answer.output.index(awaited)


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        (("stop",), "elastane cancel digits, or elastane pause digits"),
        (("resize", "2"), "elastane scale digits MIN:MAX"),
        (("resize", "auto"), "elastane scale digits MIN:MAX"),
        (("drain", "0"), "elastane scale digits --max N"),
        (("run", "--resume"), "elastane resume digits"),
    ],
)
def test_requests_about_a_job_go_to_its_controller_and_not_to_its_run(
    elastane, cluster, submitted, run_here, *, words, instead
):
    submitted()
    cluster.until(lambda: cluster.workers("digits") == 2)
    run_here()
    verb, *rest = words
    typed = (verb, *rest, "digits") if verb == "run" else (verb, "digits", *rest)
    answer = elastane(*typed)
    assert answer.exit_code == 2
    assert "digits is the run of a job, which a controller manages" in answer.stderr
    assert instead in answer.stderr
    cluster.api.user().post("/jobs/digits/cancel")
    cluster.until(lambda: cluster.job("digits").state == "cancelled")
    assert "its controller decides" not in elastane(*typed).stderr


def test_requests_about_a_job_go_to_its_run_if_the_controller_is_away(
    elastane, cluster, submitted, run_here, monkeypatch
):
    submitted()
    cluster.until(lambda: cluster.workers("digits") == 2)
    run_here()
    monkeypatch.setenv("ELASTANE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("ELASTANE_TOKEN", "ela_none")
    answer = elastane("stop", "digits")
    assert answer.exit_code == 3
    assert "its controller decides" not in answer.stderr


@pytest.mark.parametrize("verb", ["events", "logs"])
def test_a_run_of_no_job_is_followed_until_its_processes_are_gone(
    elastane, cluster, submitted, run_here, verb
):
    submitted()
    cluster.until(lambda: cluster.workers("digits") == 2)
    run_here()("its only attempt")
    (cluster.world.where / "digits" / "attempt.json").unlink()
    assert "its only attempt" in elastane(verb, "digits", "-f").stdout


def test_a_run_here_wins_over_a_job_of_the_same_name(elastane, submitted, tmp_path):
    submitted()
    run = tmp_path / "home" / "runs" / "digits"
    (run / "logs").mkdir(parents=True)
    (run / "run.json").write_text("{}")
    (run / "logs" / "worker-0.log").write_text("of the run\n")
    assert elastane("logs", "digits").stdout == "worker-0 | of the run\n"
    assert elastane("logs", "digits", "--job").exit_code == 2
    assert "job.submitted" in elastane("events", "digits", "--job").stdout


def test_logs_of_all_processes_are_printed_unless_one_is_named(elastane, cluster, submitted):
    submitted()
    answer = elastane("logs", "digits")
    assert answer.exit_code == 2
    assert "elastane explain digits" in answer.stderr
    cluster.until(lambda: cluster.workers("digits") == 2)
    logs = cluster.world.where / "digits" / "logs"
    logs.mkdir()
    for name in ("worker-2", "worker-10", "agent", "strange"):
        (logs / f"{name}.log").write_text(f"from {name}\nno end")
    shown = elastane("logs", "digits").stdout.splitlines()
    assert shown[:2] == ["worker-2 | from worker-2", "worker-2 | no end"]
    assert [line.split()[0] for line in shown[2:]] == ["worker-10", "worker-10", "agent", "agent"]
    assert elastane("logs", "digits", "2").stdout == "from worker-2\nno end\n"
    assert json.loads(elastane("logs", "digits", "agent", "--json").stdout.splitlines()[0]) == {
        "process": "agent",
        "line": "from agent",
    }
    refused = elastane("logs", "digits", "3")
    assert refused.exit_code == 2
    assert "worker-2, worker-10, agent" in refused.stderr


def completed(*words):
    """Return the completions that a shell offers for the last of these words."""
    place = {"COMP_WORDS": " ".join(("elastane", *words)), "COMP_CWORD": str(len(words))}
    env = {"_ELASTANE_COMPLETE": "complete_bash"} | place
    return CliRunner().invoke(app, env=env, prog_name="elastane").stdout.split()


def test_a_shell_completes_commands_and_names_of_jobs_and_runs(elastane, submitted, tmp_path, monkeypatch):
    submitted("digits-1")
    submitted("digits-2")
    submitted("other")
    run = tmp_path / "home" / "runs" / "digits-0"
    run.mkdir(parents=True)
    (run / "run.json").write_text("{}")
    assert completed("descr") == ["describe"]
    assert completed("describe", "dig") == ["digits-2", "digits-1"]
    assert completed("stop", "dig") == ["digits-0"]
    assert completed("logs", "dig") == ["digits-0", "digits-2", "digits-1"]
    monkeypatch.setenv("ELASTANE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("ELASTANE_TOKEN", "ela_x")
    assert completed("describe", "dig") == []


def test_an_invalid_name_is_refused_with_the_allowed_characters(elastane):
    answer = elastane("describe", "my job")
    assert answer.exit_code == 2
    assert "'my job' is not a valid name" in answer.stderr
    assert "write letters, digits, dots, dashes and underscores" in answer.stderr
    assert "[A-Za-z" not in answer.output


@pytest.mark.parametrize(
    "words",
    [
        ("describe", "nobody"),
        ("explain", "nobody"),
        ("scale", "nobody", "2"),
        ("amend", "nobody", "--priority", "high"),
        ("amend", "nobody", "--budget", "1"),
        ("pause", "nobody"),
        ("resume", "nobody"),
        ("cancel", "nobody"),
        ("events", "nobody"),
        ("logs", "nobody"),
    ],
)
def test_an_unknown_job_has_exit_code_3(elastane, words):
    answer = elastane(*words)
    assert answer.exit_code == 3
    assert "there is no job nobody" in answer.stderr


@pytest.mark.parametrize(
    "words", [("describe",), ("explain",), ("logs",), ("events",), ("cancel",), ("scale", "2")]
)
def test_an_unknown_job_name_gets_the_suggestion_of_a_similar_one(elastane, submitted, words):
    submitted("digits")
    verb, *rest = words
    answer = elastane(verb, "digts", *rest)
    assert answer.exit_code == 3
    assert "did you mean digits?" in answer.stderr
    answer = elastane(verb, "something-else", *rest, "--json")
    assert "did you mean" not in answer.output


def test_another_teams_job_does_not_exist(elastane, cluster, url, submitted):
    submitted()
    save_context(Context(url=url, token=cluster.api.token(team="speech", user="bob"), team="speech"))
    assert elastane("describe", "digits").exit_code == 3
    assert elastane("jobs", "--json").stdout == ""
    assert json.loads(elastane("top", "--json").stdout)["pools"][0]["device"] == "h100"


def test_a_login_is_checked_before_it_is_saved(elastane, cluster, url):
    before = find_context()
    answer = elastane("login", url, "--token-stdin", input="ela_wrong\n")
    assert answer.exit_code == 2, answer.output
    assert "does not know this token" in answer.stderr
    assert find_context() == before
    secret = cluster.api.token("viewer", team="speech", user="bob")
    answer = elastane("login", url + "/", "--token-stdin", input=secret + "\n")
    assert "logged in as bob, viewer in team speech" in answer.stdout
    assert find_context() == Context(url=url, token=secret, team="speech")


@pytest.mark.parametrize("address", ["cluster", "ftp://cluster", "http://cluster.example:7425"])
def test_login_sends_no_token_over_an_unencrypted_connection(elastane, address):
    answer = elastane("login", address, "--token-stdin", input="ela_x\n")
    assert answer.exit_code == 2
    assert "https://" in answer.stderr


def test_the_words_about_an_unmodified_script_are_those_of_its_restarts(
    elastane, cluster, submitted, meanwhile
):
    submitted("script", "--contract", "torchrun")
    cluster.until(lambda: cluster.workers("script") == 2)
    page = elastane("explain", "script").stdout
    assert "restarts its script, and counts as 31.0 s" in page
    assert "Its speed is unknown" in page
    assert "pauses once it has saved, within 1 min, and keeps its state" in elastane("pause", "script").stdout
    assert "Its workers leave once it has saved, within 1 min." in elastane("explain", "script").stdout
    with meanwhile(lambda: cluster.job("script").state == "paused"):
        elastane("pause", "script", "--wait")
    assert "commit" not in elastane("cancel", "script").stdout
