"""When checkpoints are made, what a stop leaves behind, and what becomes of them while storage is away."""

import logging
import os
import signal

import boto3
import pytest
from moto.server import ThreadedMotoServer

from elastane.api.checkpoints import format_checkpoint_name
from elastane.api.control import AskCheckpoint, AskDrain, AskResize, AskStop
from elastane.storage.catalog import Catalog
from elastane.storage.urls import open_storage

from .stage import member_states, state_of
from .test_surviving_everything import EVERY_FOUR

pytestmark = [
    pytest.mark.processes,
    # moto's, and those of s3fs, which closes its sockets when the interpreter ends.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning"),
]


def names(*steps: int, resumed: int = 0) -> list[str]:
    return [format_checkpoint_name(step, resumed) for step in steps]


# -- each kind makes what it promises ------------------------------------------------------------------------


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
    ids=["steps", "epochs", "evaluations", "both", "the script's own", "the last step's is the end's"],
)
def test_checkpoints_are_made_when_they_were_asked_for(
    attempts, assert_as_if_nothing_happened, options, args, steps
):
    attempts.begin("--start=2", *options, "--keep-last=20", args=args)
    ended = attempts.ended()
    assert_as_if_nothing_happened(ended)
    assert attempts.complete() == [*attempts.found()] == names(*steps)
    assert [event.detail["name"] for event in ended.events("checkpoint.saved")] == names(*steps)
    assert not any(attempts.catalog.verify(name) for name in attempts.complete())
    if args:
        metrics = attempts.found()[format_checkpoint_name(13)].metrics
        assert metrics["asked_for"] == 1.5
        assert "unknown" not in metrics, "JSON has no number for one that is not finite"


def test_without_a_wish_checkpoints_are_made_now_and_then_and_at_the_end(attempts):
    attempts.begin("--start=2")
    assert attempts.finish() == 0
    assert attempts.complete() == names(30)


def test_never_means_never(attempts):
    attempts.begin("--start=2", "--checkpoint-every=never", args=("--keep-at=13",))
    assert attempts.finish() == 0
    assert attempts.complete() == []


def test_a_checkpoint_is_made_when_somebody_asks(attempts, assert_as_if_nothing_happened):
    attempts.begin("--start=2", "--checkpoint-every=1 h", args=("--paced-from=10",))
    attempts.until_step(9)
    attempts.ask(AskCheckpoint())
    attempts.open("gates")
    ended = attempts.ended()
    assert_as_if_nothing_happened(ended)
    first, last = attempts.complete()
    assert last == format_checkpoint_name(30)
    assert format_checkpoint_name(9) <= first < last


def test_a_joiner_knows_the_figures_that_checkpoints_are_told_apart_by(
    attempts, assert_as_if_nothing_happened
):
    """The one who evaluated is gone when the last checkpoint is written."""
    attempts.begin("--start=1", "--checkpoint-every=1 h", args=("--paced-from=10",))
    attempts.until_step(9)
    attempts.ask(AskResize(workers=2))
    paced(attempts, lambda: 1 in member_states(attempts.status))
    attempts.ask(AskDrain(worker=0))
    paced(attempts, lambda: state_of(attempts.status, 0) == "")
    attempts.open("gates")
    ended = attempts.ended()
    assert_as_if_nothing_happened(ended)
    assert ended.shares(30).keys() == {1}
    evaluated = ended.events("evaluation")[0].detail
    metrics = attempts.found()[format_checkpoint_name(30)].metrics
    assert {name: metrics[f"evaluation.{name}"] for name in ("right", "seen")} == evaluated


def paced(attempts, done) -> None:
    """One step after the other, until it is so."""
    while not done():
        step = attempts.status.step + 1
        attempts.open(f"gate-{step}")
        attempts.until_step(step)


# -- stops and drains ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["SIGTERM", "SIGINT", "elastane stop"])
def test_a_stop_leaves_a_checkpoint_that_the_run_goes_on_from(attempts, assert_as_if_nothing_happened, way):
    attempts.begin("--start=2", "--checkpoint-every=1 h", args=("--paced-from=10",))
    attempts.until_step(9)
    if way == "elastane stop":
        attempts.ask(AskStop())
    else:
        attempts.send(signal.Signals[way])
    attempts.until_event("stop.requested")
    attempts.open("gates")
    assert attempts.finish() == 130
    (stopped,) = attempts.events("run.stopped")
    assert 10 <= stopped.step < 30
    assert attempts.complete() == names(stopped.step)
    assert attempts.run_dir.model_files.weights.exists()
    attempts.resume("--start=3", "--copies=2")
    ended = attempts.ended()
    assert_as_if_nothing_happened(ended)
    (resumed,) = ended.events("run.resumed")
    assert (resumed.step, resumed.detail["lost_steps"]) == (stopped.step, 0)


def test_a_stream_that_was_stopped_is_not_a_finished_one(attempts, stage):
    """How many steps its epochs have is known when they are over."""
    expected = stage.play("stream", "--until=2 epochs", script="feeding.py")
    args = ("stream", "--until=2 epochs", "--paced-from=10")
    attempts.begin("--start=2", "--checkpoint-every=1 h", script="feeding.py", args=args)
    attempts.until_step(9)
    attempts.ask(AskStop())
    attempts.open("gates")
    assert attempts.finish() == 130
    (stopped,) = attempts.events("run.stopped")
    assert stopped.step < len(expected.run.ledger)
    attempts.resume()
    ended = attempts.ended()
    assert ended.over.code == 0, ended.story()
    assert (ended.losses, ended.model) == (expected.losses, expected.model)
    assert ended.verdict.problems == ()


def test_a_worker_that_leaves_writes_its_part_before_it_goes(attempts, assert_as_if_nothing_happened):
    attempts.begin("--start=2", EVERY_FOUR, "--keep-last=9", args=("--paced-from=7", "--hold=within-part:4"))
    attempts.until_file("held")
    attempts.ask(AskDrain(worker=1))
    for step in (7, 8):
        attempts.until_step(step - 1)
        attempts.open(f"gate-{step}")
    attempts.until(lambda: state_of(attempts.status, 1) == "leaving", "worker 1 has left training")
    assert attempts.complete() == []
    assert not attempts.events("worker.left")
    attempts.open("release")
    attempts.until_event("worker.left")
    attempts.open("gates")
    ended = attempts.ended()
    assert_as_if_nothing_happened(ended)
    first = ended.events("checkpoint.saved")[0]
    assert (first.detail["name"], first.detail["writers"]) == (format_checkpoint_name(4), 2)


def test_a_writer_that_dies_is_named_and_another_checkpoint_is_made(attempts, assert_as_if_nothing_happened):
    attempts.begin(
        "--start=2", "--checkpoint-every=1 h", args=("--paced-from=10", "--keep-at=6", "--hold=within-part")
    )
    attempts.until_file("held")
    victims = [row for row in attempts.status.processes if row.role == "worker" and row.worker == 1]
    os.kill(victims[0].pid, signal.SIGKILL)
    attempts.until_event("worker.died")
    attempts.open("gates")
    attempts.until_event("checkpoint.abandoned")
    attempts.open("release")
    ended = attempts.ended()
    assert_as_if_nothing_happened(ended)
    (abandoned,) = ended.events("checkpoint.abandoned")
    assert abandoned.why == f"{format_checkpoint_name(6)}: its writers died: worker 1"
    instead, last = attempts.complete()
    assert format_checkpoint_name(6) < instead < last == format_checkpoint_name(30)


# -- storage away for a while --------------------------------------------------------------------------------


def outlives(attempts, assert_as_if_nothing_happened, *, go, come, place, refusal):
    """Storage goes away after step 9, when two checkpoints are there, and comes back after step 20."""
    attempts.until_event("checkpoint.saved", 2)
    go()
    for step in range(10, 21):
        attempts.open(f"gate-{step}")
    attempts.until_step(20)
    attempts.until_event("checkpoint.failing")
    saved = len(attempts.events("checkpoint.saved"))
    assert saved == 2, "nothing can have been saved meanwhile"
    come()
    attempts.until_event("checkpoint.saved", 3)
    attempts.open("gates")
    ended = attempts.ended()
    assert_as_if_nothing_happened(ended)
    failing = ended.events("checkpoint.failing")[0]
    assert "training continues, and the run tries again" in failing.why
    assert refusal in failing.why
    catalog = Catalog(open_storage(place))
    assert ended.events("checkpoint.saved")[-1].detail["name"] == format_checkpoint_name(30)
    assert catalog.verify(format_checkpoint_name(30)) == ()


PACED = ("--paced-from=10",)


def test_training_goes_on_while_the_directory_is_away(attempts, tmp_path, assert_as_if_nothing_happened):
    root, aside = tmp_path / "kept", tmp_path / "aside"

    def go() -> None:
        root.rename(aside)
        root.write_text("where a disk was mounted")

    def come() -> None:
        root.unlink()
        aside.rename(root)

    attempts.begin("--start=2", EVERY_FOUR, f"--checkpoint-dir={root}", args=PACED)
    outlives(
        attempts, assert_as_if_nothing_happened, go=go, come=come, place=str(root), refusal="Not a directory"
    )


@pytest.fixture
def small_disk(small_disk_of):
    return small_disk_of(16 << 20)


def test_training_goes_on_while_the_disk_is_full(attempts, small_disk, assert_as_if_nothing_happened):
    filler = small_disk / "filler"

    def go() -> None:
        with filler.open("wb", buffering=0) as file:
            for size in (1 << 16, 1 << 12, 1):
                try:
                    while file.write(bytes(size)):
                        pass
                except OSError:
                    continue

    place = str(small_disk / "kept")
    attempts.begin("--start=2", EVERY_FOUR, f"--checkpoint-dir={place}", args=PACED)
    outlives(
        attempts,
        assert_as_if_nothing_happened,
        go=go,
        come=filler.unlink,
        place=place,
        refusal="No space left",
    )


def test_training_goes_on_while_an_object_store_is_away(attempts, monkeypatch, assert_as_if_nothing_happened):
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

    def come() -> None:
        servers.append(ThreadedMotoServer(ip_address="127.0.0.1", port=port))
        servers[-1].start()

    place = "s3://away/kept"
    try:
        attempts.begin("--start=2", EVERY_FOUR, f"--checkpoint-dir={place}", args=PACED)
        outlives(
            attempts,
            assert_as_if_nothing_happened,
            go=servers[0].stop,
            come=come,
            place=place,
            refusal=f"{port}",
        )
    finally:
        for server in servers[1:]:
            server.stop()
