"""Options of ``elastane submit`` and fields of job files, and the errors for invalid ones."""

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import msgspec
import pytest

from elastane.cli.jobs.job_file import anchor_paths, format_job, read_job
from elastane.cli.jobs.job_options import JobOptions
from elastane.cli.jobs.scale import parse_limits
from elastane.cli.jobs.submission import (
    Invocation,
    apply_options,
    format_limits,
    list_notes,
    read_environment,
)
from elastane.cli.option_values import read_future_time
from elastane.cluster.nouns.config import Team
from elastane.cluster.nouns.job_checks import check_job_spec
from elastane.cluster.nouns.jobs import ElasticPolicy, JobSpec
from elastane.common.documents import read_yaml
from elastane.common.errors import BadInput

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "examples" / "jobs").glob("*.yaml"))
SPEC = JobSpec(
    name="j",
    team="t",
    script="/train.py",
    env={"A": "1", "B": "2"},
    elastic_policy=ElasticPolicy(min_replicas=2, max_replicas=4, scaling_timeout_in_seconds=9),
)
BERLIN = timezone(timedelta(hours=1))
NOW = datetime(2026, 11, 21, 12, tzinfo=BERLIN)
HERE = Invocation(directory=Path("/home/ada"), environment={"HOME": "/home/ada"}, now=NOW)


def list_field_names(kind) -> list[str]:
    """Return the names of the fields of a type and of its parts, as files have them."""
    found = []
    for field in msgspec.structs.fields(kind):
        found.append(field.encode_name)
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            found += list_field_names(field.type)
    return found


def test_fields_without_an_option_stay_unchanged() -> None:
    assert apply_options(SPEC, JobOptions(), HERE) == SPEC


def test_an_option_changes_its_field_only() -> None:
    after = apply_options(SPEC, JobOptions(workers="1:8", env=["B=3", "HOME"], copies="2", keep_last=5), HERE)
    assert after.elastic_policy.limits == (1, 8)
    assert after.elastic_policy.scaling_timeout_in_seconds == 9
    assert after.env == {"A": "1", "B": "3", "HOME": "/home/ada"}
    assert (after.training.copies, after.training.checkpoints.keep_last) == (2, 5)


def test_a_worker_has_a_device_for_each_of_its_processes_unless_it_asks_for_more() -> None:
    spec = apply_options(SPEC, JobOptions(processes=4), HERE)
    assert (spec.processes, spec.worker_devices, spec.resources_per_worker.devices) == (4, 4, None)
    assert apply_options(SPEC, JobOptions(processes=4, devices=8), HERE).worker_devices == 8
    assert SPEC.worker_devices == 1


@pytest.mark.parametrize(
    ("wishes", "said"),
    [
        (JobOptions(workers="4:2"), "MIN 4 is larger than MAX 2"),
        (JobOptions(workers="9" * 20), "more than 1000000 workers"),
        (JobOptions(workers="many"), "is not MIN:MAX"),
        (JobOptions(name="a b"), "name: 'a b' is not a valid name"),
        (JobOptions(env=["NOWHERE"]), "this terminal has no such variable"),
        (JobOptions(copies="some"), "neither 'all' nor a number"),
        (JobOptions(copies="0"), r"training\.copies"),
        (JobOptions(checkpoint_every="10 years"), "neither a duration nor a number of steps"),
        (JobOptions(checkpoint_at="step"), "invalid --checkpoint-at"),
        (JobOptions(deadline="tomorrow"), "invalid time for --deadline"),
        (JobOptions(virtual_ranks=3), r"training\.virtualRanks: 3 is less than the 4 workers"),
        (JobOptions(budget=0.0), "budget: 0 is not more than 0"),
        (JobOptions(processes=6), "processes: 6 is not a power of two"),
    ],
)
def test_invalid_options_are_refused_with_an_explanation(wishes, said) -> None:
    with pytest.raises(BadInput, match=said):
        check_job_spec(apply_options(SPEC, wishes, HERE))


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("+8h", NOW + timedelta(hours=8)),
        ("+ 1.5 days", NOW + timedelta(hours=36)),
        ("+30min", NOW + timedelta(minutes=30)),
        ("2026-12-01T18:00", datetime(2026, 12, 1, 18, tzinfo=BERLIN)),
        ("2026-12-01T18:00Z", datetime(2026, 12, 1, 18, tzinfo=UTC)),
    ],
)
def test_a_deadline_is_a_time_or_a_duration_from_now(text, moment) -> None:
    assert read_future_time("--deadline", text, NOW) == moment


@pytest.mark.parametrize("text", ["+99999999999d", f"+{'9' * 400}d"])
def test_a_deadline_after_the_year_9999_is_refused_with_an_explanation(text) -> None:
    with pytest.raises(BadInput, match=r"--by: .* is after the year 9999"):
        read_future_time("--by", text, NOW)


def test_a_variable_may_be_empty_or_hold_an_equals_sign() -> None:
    assert read_environment(("A=", "B=x=y"), {}) == {"A": "", "B": "x=y"}


def test_paths_in_a_job_file_are_relative_to_its_folder(tmp_path) -> None:
    path = tmp_path / "jobs" / "job.yaml"
    path.parent.mkdir()
    path.write_text("script: ../train.py\nworkingDir: data\ntraining: {checkpoints: {url: kept}}\n")
    spec = read_job(path, name="made-up", team="default")
    assert (spec.name, spec.team) == ("made-up", "default")
    assert spec.script == str(tmp_path / "train.py")
    assert spec.working_dir == str(tmp_path / "jobs" / "data")
    assert spec.training.checkpoints.url == str(tmp_path / "jobs" / "kept")


def test_a_command_in_a_job_file_runs_in_the_folder_of_the_file(tmp_path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("command: [python, train.py]\n")
    assert read_job(path, name="j", team="t").working_dir == str(tmp_path)


def test_a_url_stays_unchanged(tmp_path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("script: /t.py\ntraining: {checkpoints: {url: 's3://bucket/x'}}\n")
    assert read_job(path, name="j", team="t").training.checkpoints.url == "s3://bucket/x"


def test_a_job_reads_back_as_it_was_written(tmp_path) -> None:
    path = tmp_path / "job.yaml"
    spec = apply_options(SPEC, JobOptions(deadline="+1h", seed=3, kind=["h100"], env=["C=yes"]), HERE)
    path.write_text(format_job(spec))
    assert read_job(path, name="x", team="y") == anchor_paths(spec, tmp_path)


@pytest.mark.parametrize(
    ("text", "said", "write"),
    [
        ("scrpt: t.py", "job.yaml: scrpt: a job has no such field", "write script"),
        (
            "elasticPolicy: {maxReplica: 2}",
            "elasticPolicy.maxReplica: a job has no such",
            "write maxReplicas",
        ),
        ("env: {A: 1}", "env.A: is a whole number, not a text", 'write a text, such as "abc"'),
        ("env: {A: a, B: b, C: 3, D: 4}", "env.C: is a whole number", 'write a text, such as "abc"'),
        ("env: {A: a, 1: b}", "env: the key 1 is not a text", 'write "1" in quotes'),
        ("env: {true: b}", "env: the key true is not a text", "in quotes"),
        ("1: a", "job: the key 1 is not a text", 'write "1" in quotes'),
        ("budget: much", "budget: is a text, not a number", "write a number, such as 0.5, or null"),
        ("resourcesPerWorker:", "is null, not fields with values", "write fields with values, such as {"),
        ("deadline: soon", "deadline: is not a time with its time zone", "such as 2026-12-01T18:00:00Z"),
        ("training: {convergence: loose}", "'loose' is not an allowed value", "write exact or fast"),
        ("training: {copies: every}", "'every' is not an allowed value", "write a number or all"),
        ("maxReplicas: 2", "a job has no such field", "write it as elasticPolicy.maxReplicas"),
        ("colour: red", "a job has no such field", "look for its name in docs/concepts/job.md"),
        ("script: [", "job.yaml is not YAML", "correct it"),
        (
            "env: {A: a}\nseed: 1\nenv: {B: b}",
            "has env twice: on lines 1 and 3",
            "write it once",
        ),
        ("env: {A: a, A: b}", "has A twice: on line 1", "write it once"),
        (
            "deadline: 2026-13-45",
            "deadline: is not a time with its time zone",
            "such as 2026-12-01T18:00:00Z",
        ),
        (
            "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nspec: {}",
            "is a file for Kubernetes: kubeflow.org/v1 PyTorchJob",
            "elastane submit SCRIPT --dry-run",
        ),
        ("kind: TrainJob\nspec: {}", "is a file for Kubernetes: TrainJob", "elastic"),
        ("kind: TrainJob", "kind: a job has no such field", ""),
        ("- script", "is not a job: it is a list", "name: train"),
        ("", "is not a job: it is empty", "name: train"),
    ],
)
def test_a_mistake_in_a_job_file_is_named_with_the_file(tmp_path, text, said, write) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(BadInput) as refused:
        read_job(path, name="j", team="t")
    assert str(path) in refused.value.what
    assert said in refused.value.what
    assert write in refused.value.do


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"name": "\xff"}', "is not JSON: 'utf-8' codec"),
        ('{"env": {"A": "a"}, "env": {"B": "b"}}', "has env twice in one place"),
        ('{"training": {"seed": 1, "seed": 2}}', "has seed twice in one place"),
        ('{"env": ', "is not JSON"),
    ],
)
def test_malformed_json_is_named_with_the_file(tmp_path, text, said) -> None:
    path = tmp_path / "job.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(BadInput, match=rf"job\.json {said}"):
        read_job(path, name="j", team="t")


def test_a_value_beside_a_merge_key_replaces_the_merged_one() -> None:
    assert read_yaml("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}") == {
        "a": {"x": 1, "y": 2},
        "b": {"x": 1, "y": 3},
    }


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_script_of_each_example_exists(path) -> None:
    assert Path(read_job(path, name="j", team="t").script).is_file()


def test_the_page_of_jobs_has_every_field() -> None:
    page = (ROOT / "docs" / "concepts" / "job.md").read_text()
    assert [name for name in list_field_names(JobSpec) if name not in page] == []


def test_a_missing_file_is_named(tmp_path) -> None:
    with pytest.raises(BadInput, match=r"cannot read .*none\.yaml: No such file"):
        read_job(tmp_path / "none.yaml", name="j", team="t")


def test_one_number_sets_both_limits() -> None:
    assert parse_limits("3", None, None) == (3, 3)
    assert parse_limits(None, 1, None) == (1, None)


@pytest.mark.parametrize(
    ("team", "declared", "said"),
    [
        ("visoin", ("speech", "vision"), ["team visoin is not declared", "did you mean vision?"]),
        (
            "new",
            ("speech", "vision"),
            ["team new is not declared", "elastane team list shows the"],
        ),
        ("vision", ("speech", "vision"), []),
        ("default", (), []),
    ],
)
def test_a_note_names_an_undeclared_team(team, declared, said) -> None:
    spec = msgspec.structs.replace(SPEC, team=team)
    found = list_notes(spec, [Team(name=name) for name in declared], NOW)
    assert len(found) == bool(said)
    assert all(words in found[0] for words in said)


def test_a_note_names_a_deadline_that_has_passed() -> None:
    spec = msgspec.structs.replace(SPEC, deadline=datetime(2026, 11, 21, 10, tzinfo=UTC))
    assert list_notes(spec, [], NOW) == (
        "its deadline, 2026-11-21 11:00, has passed: it grows before other jobs of its priority",
    )
    assert list_notes(msgspec.structs.replace(spec, deadline=NOW + timedelta(hours=1)), [], NOW) == ()


def test_equal_limits_are_shown_as_one_number() -> None:
    assert [format_limits(*of) for of in ((1, 1), (3, 3), (1, 4))] == [
        "1 worker",
        "3 workers",
        "1 to 4 workers",
    ]
