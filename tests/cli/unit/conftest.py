"""Fixtures: a separate home for every test, with small finished runs."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from typer.testing import CliRunner

from elastane.cli.main import app
from elastane.run.nouns.records import Digest, EventLine, LedgerLine, Samples
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import RunRecord, RunSpec
from elastane.run.protocol.sampling import find_sample_index, find_step_samples, hash_sample
from tests.pinned import SMALL_RUN

if TYPE_CHECKING:
    from tests.run.claims.s3_server import FaultyServer

PINNED = msgspec.structs.replace(
    SMALL_RUN,
    script_digest="ab" * 32,
    virtual_ranks=2,
    global_batch=4,
    microbatch=2,
    steps=4,
    parameters=10,
    layout_digest="cd" * 32,
    optimizer="SGD(lr=0.1)",
    versions={"torch": "2.13.0"},
)


def ledger_line(step: int) -> LedgerLine:
    place = find_step_samples(step, PINNED.dataset_length, PINNED.global_batch)
    indices = [
        find_sample_index(p, PINNED.dataset_length, 0, place.epoch) for p in range(place.start, place.stop)
    ]
    checksum = f"{sum(map(hash_sample, indices)) % 2**64:016x}"
    return LedgerLine(
        step=step,
        generation=1,
        workers={0: ((0, 2),)},
        samples=Samples(place.epoch, place.start, place.stop, place.count, checksum),
        loss=1 / step,
        loss_hex=(1 / step).hex(),
        time=100.0 + step,
        seconds={"step": 0.1, "compute": 0.08},
        digest=Digest("ab" * 32, "cd" * 32, ("ab",), ("cd",)),
    )


EVENTS = (
    EventLine(time=100.0, kind="run.started"),
    EventLine(time=101.0, kind="worker.joined", who="worker 0", step=1),
    EventLine(time=104.5, kind="run.finished", step=4),
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ELASTANE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def lines() -> Callable[[int], LedgerLine]:
    return ledger_line


@pytest.fixture
def finished_run(home: Path) -> Callable[..., RunDir]:
    def build(name: str = "done", *, seed: int = 0, first_loss: float = 1.0) -> RunDir:
        run_dir = RunDir(home / "runs" / name)
        run_dir.logs.mkdir(parents=True)
        record = RunRecord(
            spec=RunSpec(name=name, script="train.py"),
            pinned=msgspec.structs.replace(PINNED, seed=seed),
            created="2026-01-01T00:00:00Z",
        )
        run_dir.run.write_bytes(msgspec.json.encode(record))
        ledger = [ledger_line(step) for step in range(1, 5)]
        ledger[0] = msgspec.structs.replace(ledger[0], loss=first_loss, loss_hex=first_loss.hex())
        for path, values in ((run_dir.ledger, ledger), (run_dir.events, EVENTS)):
            path.write_bytes(b"".join(msgspec.json.encode(value) + b"\n" for value in values))
        run_dir.log("worker-0").write_text("hello from 0\n")
        run_dir.log("coordinator").write_text("listening\n")
        return run_dir

    return build


@pytest.fixture
def claims_server(monkeypatch: pytest.MonkeyPatch) -> Iterator["FaultyServer"]:
    """Serve the object store s3://claims."""
    # Only few tests need these libraries.
    import boto3
    import s3fs

    from tests.run.claims.kinds import set_s3_environment
    from tests.run.claims.s3_server import FaultyServer

    server = FaultyServer()
    set_s3_environment(monkeypatch, server)
    client = boto3.client("s3")
    client.create_bucket(Bucket="claims")
    # fsspec keeps them for the whole process, with the endpoint of the first test.
    s3fs.S3FileSystem.clear_instance_cache()
    yield server
    client.close()
    server.stop()


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("import elastane\n")
    return path


@pytest.fixture
def elastane(home: Path) -> Callable:
    """Run the command line in this process."""
    return lambda *args: CliRunner().invoke(app, [str(arg) for arg in args])
