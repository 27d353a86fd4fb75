"""What the workers of a job do comes from its run, which may be silent, slow or hostile."""

import threading
from contextlib import contextmanager

import msgspec
import pytest
from websockets.sync.server import serve

from elastane.cluster.controller.rest import workers
from elastane.cluster.nouns.job_records import ObservedJob
from elastane.run.connections.endpoint import CoordinatorEndpoint
from elastane.run.nouns.control import Answer, ProcessInfo, encode
from elastane.run.nouns.rundir import RunDir
from tests.cluster.controller import job_rows
from tests.waiting import WAIT_S

ROWS = (
    ProcessInfo(role="agent", pid=1, state="running"),
    ProcessInfo(role="worker", pid=3, worker=1, state="member", node="b", activity={"wait": 100}),
    ProcessInfo(role="worker", pid=2, worker=0, state="member", virtual_ranks=3, activity={"compute": 90}),
)


@contextmanager
def answer_with(run_dir: RunDir, reply: bytes):
    """Serve a coordinator that answers each request so; empty: it never answers."""
    closing = threading.Event()

    def take_request(connection) -> None:
        connection.recv()
        if reply:
            connection.send(reply, text=True)
        closing.wait(WAIT_S)

    with serve(take_request, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        host, port = server.socket.getsockname()[:2]
        run_dir.endpoint.write_bytes(msgspec.json.encode(CoordinatorEndpoint(host, port)))
        run_dir.secret.write_text("secret")
        try:
            yield
        finally:
            closing.set()
            server.shutdown()
            thread.join()


@pytest.fixture
def run_dir(api, make_spec, tmp_path):
    api.user().post("/jobs", make_spec())
    with api.store.begin_write() as tx:
        job_rows.observe(
            tx,
            "train",
            api.clock(),
            state="running",
            observed=ObservedJob(),
            run_dir=str(tmp_path / "run"),
        )
    (tmp_path / "run").mkdir()
    return RunDir(tmp_path / "run")


def list_workers(user):
    answer = user.get("/jobs/train/workers")
    assert answer.status_code == 200, answer.text
    return [
        (row["node"], row["worker"], row["virtualRanks"], row["activity"]) for row in answer.json()["items"]
    ]


def test_the_workers_come_by_machine_with_what_they_do(api, run_dir):
    with answer_with(run_dir, encode(Answer(ok=True, processes=ROWS))):
        assert list_workers(api.user("viewer", user="eve")) == [
            ("", 0, 3, {"compute": 90}),
            ("b", 1, 0, {"wait": 100}),
        ]


@pytest.mark.parametrize(
    "reply",
    [
        b"{",
        b'{"type":"Answer","ok":true,"processes":[{"role":"worker","pid":1,"activity":{"<b>":1}}]}',
        b'{"type":"Answer","ok":true,"processes":[{"role":"worker","pid":1,"activity":{"load":1e9}}]}',
        b"",
    ],
    ids=["torn", "foreign activity", "impossible share", "silent"],
)
def test_a_run_that_does_not_answer_rightly_has_no_workers(api, run_dir, reply, monkeypatch):
    monkeypatch.setattr(workers, "ANSWER_S", WAIT_S if reply else 0.1)
    with answer_with(run_dir, reply):
        assert list_workers(api.user()) == []


def test_a_job_that_does_not_train_has_no_workers(api, make_spec, run_dir):
    assert list_workers(api.user()) == []  # its coordinator has not begun
    api.user().post("/jobs", make_spec("waits"))
    assert api.user().get("/jobs/waits/workers").json()["items"] == []


def test_another_team_learns_nothing(api, run_dir):
    with answer_with(run_dir, encode(Answer(ok=True, processes=ROWS))):
        assert api.user("viewer", team="speech").get("/jobs/train/workers").status_code == 404
