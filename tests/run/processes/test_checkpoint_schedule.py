"""The times of checkpoints, the checkpoint of a stop, and checkpoints while storage is unavailable."""

import logging
import os
import signal

import pytest

from elastane.run.checkpoints.catalog import Catalog
from elastane.run.checkpoints.storage.urls import open_storage
from elastane.run.nouns.checkpoints import format_checkpoint_name
from elastane.run.nouns.control import AskCheckpoint, AskDrain, AskResize, AskStop

from .stage import find_members, get_state
from .test_resume import EVERY_FOUR

pytestmark = [
    pytest.mark.processes,
    # moto warns, and s3fs closes its sockets only when the interpreter ends.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning"),
]


def format_names(*steps: int) -> list[str]:
    return [format_checkpoint_name(step) for step in steps]


# -- each option makes its checkpoints -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "args", "steps"),
    [
        (("--checkpoint-every=4 steps",), (), (4, 8, 12, 16, 20, 24, 28, 30)),
        # Four steps are an epoch, the last of them short; step 7 is followed by an evaluation.
        (("--checkpoint-every=1 h", "--checkpoint-at=epoch"), (), (4, 8, 12, 16, 20, 24, 28, 30)),
        (("--checkpoint-every=1 h", "--checkpoint-at=evaluation"), (), (7, 30)),
        (
            ("--checkpoint-every=1 h", "--checkpoint-at=epoch,evaluation"),
            (),
            (4, 7, 8, 12, 16, 20, 24, 28, 30),
        ),
        (("--checkpoint-every=1 h",), ("--keep-at=13",), (13, 30)),
        (("--checkpoint-every=30 steps",), (), (30,)),
    ],
    ids=["steps", "epochs", "evaluations", "both", "of the script", "of the last step and the end"],
)
def test_checkpoints_are_written_at_the_times_that_the_options_say(
    attempts, assert_attempts_equal_reference, options, args, steps
):
    attempts.begin("--start=2", *options, "--keep-last=20", args=args)
    ended = attempts.wait_for_end()
    assert_attempts_equal_reference(ended)
    assert attempts.list_complete_checkpoints() == [*attempts.find_checkpoints()] == format_names(*steps)
    assert [event.detail["name"] for event in ended.find_events("checkpoint.saved")] == format_names(*steps)
    assert not any(attempts.catalog.verify(name) for name in attempts.list_complete_checkpoints())
    if args:
        metrics = attempts.find_checkpoints()[format_checkpoint_name(13)].metrics
        assert metrics["asked_for"] == 1.5
        assert "unknown" not in metrics, "JSON has no number that is not finite"


def test_by_default_a_short_run_writes_only_the_checkpoint_of_its_end(attempts):
    attempts.begin("--start=2")
    assert attempts.wait_for_exit() == 0
    assert attempts.list_complete_checkpoints() == format_names(30)


def test_checkpoint_every_never_also_ignores_the_script(attempts):
    attempts.begin("--start=2", "--checkpoint-every=never", args=("--keep-at=13",))
    assert attempts.wait_for_exit() == 0
    assert attempts.list_complete_checkpoints() == []


def test_a_checkpoint_is_written_when_a_user_requests_one(attempts, assert_attempts_equal_reference):
    attempts.begin("--start=2", "--checkpoint-every=1 h", args=("--paced-from=10",))
    attempts.wait_for_step(9)
    attempts.ask(AskCheckpoint())
    attempts.touch("gates")
    ended = attempts.wait_for_end()
    assert_attempts_equal_reference(ended)
    first, last = attempts.list_complete_checkpoints()
    assert last == format_checkpoint_name(30)
    assert format_checkpoint_name(9) <= first < last


def test_a_worker_that_joined_writes_the_metrics_of_an_earlier_evaluation_to_checkpoints(
    attempts, assert_attempts_equal_reference
):
    """The only worker that evaluated has left when the last checkpoint is written."""
    attempts.begin("--start=1", "--checkpoint-every=1 h", args=("--paced-from=10",))
    attempts.wait_for_step(9)
    attempts.ask(AskResize(workers=2))
    step_until(attempts, lambda: 1 in find_members(attempts.status))
    attempts.ask(AskDrain(worker=0))
    step_until(attempts, lambda: get_state(attempts.status, 0) == "")
    attempts.touch("gates")
    ended = attempts.wait_for_end()
    assert_attempts_equal_reference(ended)
    assert ended.get_shares(30).keys() == {1}
    evaluated = ended.find_events("evaluation")[0].detail
    metrics = attempts.find_checkpoints()[format_checkpoint_name(30)].metrics
    assert {name: metrics[f"evaluation.{name}"] for name in ("right", "seen")} == evaluated


def step_until(attempts, done) -> None:
    """Let a paced run make one step after the other until the condition holds."""
    while not done():
        step = attempts.status.step + 1
        attempts.touch(f"gate-{step}")
        attempts.wait_for_step(step)


# -- stops and drains ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["SIGTERM", "SIGINT", "elastane stop"])
def test_a_stopped_run_resumes_from_the_checkpoint_of_its_stop(
    attempts, assert_attempts_equal_reference, way
):
    attempts.begin("--start=2", "--checkpoint-every=1 h", args=("--paced-from=10",))
    attempts.wait_for_step(9)
    if way == "elastane stop":
        attempts.ask(AskStop())
    else:
        attempts.send_signal(signal.Signals[way])
    attempts.wait_for_event("stop.requested")
    attempts.touch("gates")
    assert attempts.wait_for_exit() == 130
    (stopped,) = attempts.find_events("run.stopped")
    assert 10 <= stopped.step < 30
    assert attempts.list_complete_checkpoints() == format_names(stopped.step)
    assert attempts.run_dir.model_files.weights.exists()
    attempts.resume("--start=3", "--copies=2")
    ended = attempts.wait_for_end()
    assert_attempts_equal_reference(ended)
    (resumed,) = ended.find_events("run.resumed")
    assert (resumed.step, resumed.detail["lost_steps"]) == (stopped.step, 0)


def test_a_stopped_run_over_a_stream_has_not_finished(attempts, stage):
    """The number of steps of a stream's epoch is known only at its end."""
    expected = stage.play("stream", "--until=2 epochs", script="data_sources.py")
    args = ("stream", "--until=2 epochs", "--paced-from=10")
    attempts.begin("--start=2", "--checkpoint-every=1 h", script="data_sources.py", args=args)
    attempts.wait_for_step(9)
    attempts.ask(AskStop())
    attempts.touch("gates")
    assert attempts.wait_for_exit() == 130
    (stopped,) = attempts.find_events("run.stopped")
    assert stopped.step < len(expected.run.ledger)
    attempts.resume()
    ended = attempts.wait_for_end()
    assert ended.outcome.code == 0, ended.describe()
    assert (ended.losses, ended.model_digest) == (expected.losses, expected.model_digest)
    assert ended.verdict.problems == ()


def test_a_worker_writes_its_part_of_a_checkpoint_before_it_leaves(attempts, assert_attempts_equal_reference):
    attempts.begin("--start=2", EVERY_FOUR, "--keep-last=9", args=("--paced-from=7", "--hold=within-part:4"))
    attempts.wait_for_file("held")
    attempts.ask(AskDrain(worker=1))
    for step in (7, 8):
        attempts.wait_for_step(step - 1)
        attempts.touch(f"gate-{step}")
    attempts.wait_until(lambda: get_state(attempts.status, 1) == "leaving", "worker 1 has left training")
    assert attempts.list_complete_checkpoints() == []
    assert not attempts.find_events("worker.left")
    attempts.touch("release")
    attempts.wait_for_event("worker.left")
    attempts.touch("gates")
    ended = attempts.wait_for_end()
    assert_attempts_equal_reference(ended)
    first = ended.find_events("checkpoint.saved")[0]
    assert (first.detail["name"], first.detail["writers"]) == (format_checkpoint_name(4), 2)


def test_a_checkpoint_whose_writer_dies_is_abandoned_and_another_is_written(
    attempts, assert_attempts_equal_reference
):
    attempts.begin(
        "--start=2", "--checkpoint-every=1 h", args=("--paced-from=10", "--keep-at=6", "--hold=within-part")
    )
    attempts.wait_for_file("held")
    victims = [row for row in attempts.status.processes if row.role == "worker" and row.worker == 1]
    os.kill(victims[0].pid, signal.SIGKILL)
    attempts.wait_for_event("worker.died")
    attempts.touch("gates")
    attempts.wait_for_event("checkpoint.abandoned")
    attempts.touch("release")
    ended = attempts.wait_for_end()
    assert_attempts_equal_reference(ended)
    (abandoned,) = ended.find_events("checkpoint.abandoned")
    assert abandoned.why == f"{format_checkpoint_name(6)}: its writers died: worker 1"
    instead, last = attempts.list_complete_checkpoints()
    assert format_checkpoint_name(6) < instead < last == format_checkpoint_name(30)


# -- unavailable storage ------------------------------------------------------------------------------------


def assert_outlives_outage(
    attempts, assert_attempts_equal_reference, *, break_storage, mend_storage, url, error
):
    """Break the storage after two checkpoints, mend it after step 20, and check the finished run."""
    attempts.wait_for_event("checkpoint.saved", 2)
    break_storage()
    for step in range(10, 21):
        attempts.touch(f"gate-{step}")
    attempts.wait_for_step(20)
    attempts.wait_for_event("checkpoint.failing")
    saved = len(attempts.find_events("checkpoint.saved"))
    assert saved == 2, "no checkpoint can have been saved meanwhile"
    mend_storage()
    # If the checkpoint in progress has been given up, which a slow machine leaves time for, the next one is
    # taken at the next step.
    for step in range(21, 25):
        attempts.touch(f"gate-{step}")
    attempts.wait_for_event("checkpoint.saved", 3)
    attempts.touch("gates")
    ended = attempts.wait_for_end()
    assert_attempts_equal_reference(ended)
    failing = ended.find_events("checkpoint.failing")[0]
    assert "training continues, and the run tries again" in failing.why
    assert error in failing.why
    catalog = Catalog(open_storage(url))
    saved = ended.find_events("checkpoint.saved")
    assert saved[-1].detail["name"] == format_checkpoint_name(30), ended.describe()
    assert catalog.verify(format_checkpoint_name(30)) == ()


PACED = ("--paced-from=10",)


def test_training_continues_while_the_checkpoint_directory_is_missing(
    attempts, tmp_path, assert_attempts_equal_reference
):
    root, aside = tmp_path / "kept", tmp_path / "aside"

    def break_storage() -> None:
        root.rename(aside)
        root.write_text("a file in place of the directory")

    def mend_storage() -> None:
        root.unlink()
        aside.rename(root)

    attempts.begin("--start=2", EVERY_FOUR, f"--checkpoint-dir={root}", args=PACED)
    assert_outlives_outage(
        attempts,
        assert_attempts_equal_reference,
        break_storage=break_storage,
        mend_storage=mend_storage,
        url=str(root),
        error="Not a directory",
    )


@pytest.fixture
def small_disk(make_small_disk):
    return make_small_disk(16 << 20)


def test_training_continues_while_the_disk_is_full(attempts, small_disk, assert_attempts_equal_reference):
    filler = small_disk / "filler"

    def break_storage() -> None:
        with filler.open("wb", buffering=0) as file:
            for size in (1 << 16, 1 << 12, 1):
                try:
                    while file.write(bytes(size)):
                        pass
                except OSError:
                    continue

    url = str(small_disk / "kept")
    attempts.begin("--start=2", EVERY_FOUR, f"--checkpoint-dir={url}", args=PACED)
    assert_outlives_outage(
        attempts,
        assert_attempts_equal_reference,
        break_storage=break_storage,
        mend_storage=filler.unlink,
        url=url,
        error="No space left",
    )


def test_training_continues_while_an_object_store_is_unavailable(
    attempts, monkeypatch, assert_attempts_equal_reference
):
    import boto3
    import s3fs
    from moto.server import ThreadedMotoServer

    # fsspec caches them for the whole process, with the endpoint of the first test.
    s3fs.S3FileSystem.clear_instance_cache()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    servers = [ThreadedMotoServer(ip_address="127.0.0.1", port=0)]
    servers[0].start()
    host, port = servers[0].get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "1",
    }.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3")
    client.create_bucket(Bucket="away")
    client.close()

    def mend_storage() -> None:
        servers.append(ThreadedMotoServer(ip_address="127.0.0.1", port=port))
        servers[-1].start()

    url = "s3://away/kept"
    try:
        attempts.begin("--start=2", EVERY_FOUR, f"--checkpoint-dir={url}", args=PACED)
        assert_outlives_outage(
            attempts,
            assert_attempts_equal_reference,
            break_storage=servers[0].stop,
            mend_storage=mend_storage,
            url=url,
            error=f"{port}",
        )
    finally:
        for server in servers[1:]:
            server.stop()
