"""A real coordinator process over real websockets, with workers that the test plays."""

import http.client
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from contextlib import suppress

import msgspec
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from elastane.common.untrusted_data import Malformed
from elastane.run.connections.coordinator_connection import open_connection
from elastane.run.connections.endpoint import build_endpoint
from elastane.run.connections.run_certificate import build_client_context, create_certificate
from elastane.run.connections.short_reports import ProposedGenerations, shorten_report
from elastane.run.coordinator.server import Coordinator
from elastane.run.machines.claims.decisions import DecisionClaims
from elastane.run.machines.claims.history import find_newest_term
from elastane.run.machines.claims.terms import SUPERSEDED_CODE, OwnTerm, TermOrder
from elastane.run.machines.claims.urls import open_claim_list
from elastane.run.nouns.control import (
    Acknowledge,
    AgentReport,
    AskStatus,
    ProcessInfo,
    Propose,
    StepReport,
    StepReports,
    WorkerReport,
    decode_answer,
    decode_to_worker,
    encode,
)
from elastane.run.nouns.machine_address import LOOPBACK_ONLY, publish_address
from elastane.run.nouns.membership import Generation, GenerationId, Member
from elastane.run.nouns.records import EventLine
from elastane.run.nouns.rundir import CLAIMS, RunDir
from elastane.run.nouns.spec import Resumed, RunRecord, RunSpec
from elastane.run.observability.run_files import read_record, read_run
from tests.waiting import WAIT_S, wait_until

SECRET = "0123456789abcdef"  # noqa: S105 - of a run in a temporary directory


class Served:
    """A run directory and its listening socket, with one coordinator after the other."""

    def __init__(self, root, listen: str = "") -> None:
        self.run_dir = RunDir(root)
        self.run_dir.logs.mkdir()
        (self.run_dir.root / CLAIMS).mkdir()
        spec = RunSpec(name="n", script="train.py", listen=listen)
        self.run_dir.run.write_bytes(
            msgspec.json.encode(RunRecord(spec=spec, created="2026-01-01T00:00:00Z"))
        )
        self.run_dir.secret.write_text(SECRET)
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.lifeline, self.agent_end = os.pipe()
        self.term = 0

    def start(self, *, serving: bool = True) -> None:
        self.term += 1
        options = {
            "--fd": self.listening.fileno(),
            "--run-dir": self.run_dir.root,
            "--lifeline": self.lifeline,
        }
        command = [sys.executable, "-P", "-m", "elastane.run.coordinator"]
        for name, value in options.items():
            command += [name, str(value)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(self.listening.fileno(), self.lifeline),
        )
        if serving:
            self.send_term()

    def send_term(self, attempt: int = 0) -> None:
        self.process.stdin.write(msgspec.json.encode(TermOrder(self.term, attempt=attempt)) + b"\n")
        self.process.stdin.flush()

    def connect(self, secret: str = SECRET, *, timeout_s: float = WAIT_S):
        host, port = self.listening.getsockname()
        return connect(
            f"ws://{host}:{port}",
            additional_headers={"Authorization": f"Bearer {secret}"},
            proxy=None,
            open_timeout=timeout_s,
        )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_S)
        self.process.stdin.close()
        self.process.stderr.close()

    def close(self) -> None:
        self.kill()
        self.listening.close()
        for fd in {self.lifeline, self.agent_end}:
            os.close(fd)


@pytest.fixture
def served(tmp_path):
    served = Served(tmp_path)
    served.start()
    yield served
    served.close()


def receive(worker, kind):
    while not isinstance(message := decode_to_worker(worker.recv(timeout=WAIT_S)), kind):
        pass
    return message


def receive_answer(terminal) -> str:
    while '"Answer"' not in (frame := terminal.recv(timeout=WAIT_S)):
        pass
    return frame


def make_generation(number: int) -> Generation:
    return Generation(number, 1, (Member(0, "127.0.0.1", 5000),), planned=False)


def make_report(worker: int = 0, **changes) -> WorkerReport:
    report = WorkerReport(worker=worker, pid=10, host="127.0.0.1", port=5000, state="ready")
    return msgspec.structs.replace(report, **changes)


def encode_ready_report(worker: int = 0, **changes) -> bytes:
    return encode(make_report(worker, **changes))


def encode_agent_report() -> bytes:
    workers = (ProcessInfo(role="worker", pid=10, worker=0),)
    return encode(AgentReport(pid=1, target=1, term=1, workers=workers))


def test_a_connection_without_the_secret_is_refused(served) -> None:
    with pytest.raises(InvalidStatus) as refused:
        served.connect("guess")
    assert refused.value.response.status_code == 401


def test_an_acknowledged_step_of_a_member_is_on_disk(served, line) -> None:
    with served.connect() as agent, served.connect() as worker:
        agent.send(encode_agent_report())
        worker.send(encode_ready_report())
        generation = receive(worker, Propose).generation
        assert generation.workers == (0,)
        report = StepReport(worker=0, line=line(1), step_s=0.1, healthy=False)
        worker.send(encode(StepReports(worker=0, reports=(report,))))
        assert receive(worker, Acknowledge) == Acknowledge(step=1)
        assert served.run_dir.ledger.read_bytes().count(b"\n") == 1


def test_a_new_coordinator_on_the_same_port_reads_the_files_of_the_old_one(served, line) -> None:
    with served.connect() as agent, served.connect() as worker:
        agent.send(encode_agent_report())
        worker.send(encode_ready_report())
        generation = receive(worker, Propose).generation
        report = StepReport(worker=0, line=line(1), step_s=0.1, healthy=False)
        worker.send(encode(StepReports(worker=0, reports=(report,))))
        receive(worker, Acknowledge)
    served.kill()
    served.start()
    with served.connect() as agent, served.connect() as worker, served.connect() as terminal:
        agent.send(encode_agent_report())
        worker.send(
            encode_ready_report(state="member", generation=1, newest=generation, complete=True, step=2)
        )
        again = tuple(StepReport(worker=0, line=line(step), step_s=0.1, healthy=True) for step in (1, 2))
        worker.send(encode(StepReports(worker=0, reports=again)))
        assert receive(worker, Acknowledge) == Acknowledge(step=2)
        terminal.send(encode(AskStatus()))
        answer = decode_answer(terminal.recv(timeout=WAIT_S))
        assert (answer.term, answer.generation, answer.step, answer.loss) == (2, 1, 2, 0.5)
    recorded = read_run(served.run_dir)
    assert [entry.step for entry in recorded.ledger] == [1, 2]
    kinds = [event.kind for event in recorded.events]
    assert kinds.count("run.started") == 1
    assert kinds.count("coordinator.died") == 1
    assert kinds.count("worker.started") == 1


def test_an_invalid_message_ends_its_connection_only(served) -> None:
    with served.connect() as worker, served.connect() as connection:
        connection.send('{"type": "Nonsense"}')
        with pytest.raises(ConnectionClosed) as closed:
            connection.recv(timeout=WAIT_S)
        assert "invalid message" in closed.value.rcvd.reason
        worker.send(encode(AskStatus()))
        assert decode_answer(worker.recv(timeout=WAIT_S)).ok


def test_a_report_may_name_a_generation_that_the_coordinator_knows(served) -> None:
    with served.connect() as agent, served.connect() as worker, served.connect() as other:
        agent.send(encode_agent_report())
        worker.send(encode_ready_report())
        generation = receive(worker, Propose).generation
        member = {"state": "member", "generation": 1, "complete": True, "step": 7}
        # On any connection: the coordinator has proposed it.
        other.send(encode_ready_report(newest_id=generation.id, **member))
        other.send(encode(AskStatus()))
        answer = decode_answer(receive_answer(other))
        assert (answer.generation, answer.step) == (1, 7)


def test_a_report_that_names_an_unknown_generation_ends_its_connection(served) -> None:
    with served.connect() as worker:
        worker.send(encode_ready_report(state="member", generation=9, newest_id=GenerationId(1, 9)))
        with pytest.raises(ConnectionClosed) as closed:
            worker.recv(timeout=WAIT_S)
        assert "generation 9 is not known here" in closed.value.rcvd.reason


def test_of_many_generations_those_in_use_are_known() -> None:
    known = ProposedGenerations()
    first = known.add(make_generation(0))
    for number in range(1, 100):
        known.add(make_generation(number))
        # Each report makes one object of equal generations.
        assert known.add(make_generation(0)) is first
    with pytest.raises(Malformed, match="generation 1 is not known"):
        known.complete(make_report(newest_id=GenerationId(1, 1)))
    assert known.complete(make_report(newest_id=GenerationId(1, 99))).newest == make_generation(99)


def test_a_report_does_not_grow_with_the_run() -> None:
    large = Generation(1, 1, tuple(Member(worker, "10.0.0.1", 1) for worker in range(1000)), planned=False)
    assert len(encode(shorten_report(make_report(newest=large)))) < len(encode(make_report())) + 50


def test_a_connection_belongs_to_one_worker(served) -> None:
    with served.connect() as worker:
        worker.send(encode_ready_report(0))
        worker.send(encode_ready_report(1))
        with pytest.raises(ConnectionClosed) as closed:
            worker.recv(timeout=WAIT_S)
        assert "this connection belongs to worker 0" in closed.value.rcvd.reason


def ask_term(served) -> int:
    with served.connect() as terminal:
        terminal.send(encode(AskStatus()))
        return decode_answer(terminal.recv(timeout=WAIT_S)).term


def test_each_coordinator_claims_its_term_before_it_acts(served) -> None:
    claims = open_claim_list(str(served.run_dir.root / CLAIMS))
    assert ask_term(served) == 1
    first = served.process.pid
    served.kill()
    served.start()
    assert ask_term(served) == 2
    records = [one.record for one in claims.read()]
    assert [record.number for record in records] == [1, 2]
    assert [int(record.claimant.rpartition(":")[2]) for record in records] == [first, served.process.pid]


def test_a_term_that_is_claimed_already_is_not_used_again(served) -> None:
    assert ask_term(served) == 1
    served.kill()
    # Its coordinator died before its first event.
    OwnTerm(open_claim_list(str(served.run_dir.root / CLAIMS)), at_least=2).claim()
    served.start()
    assert ask_term(served) == 3


def test_a_coordinator_that_was_away_learns_of_the_higher_term_and_ends_in_words(served) -> None:
    assert ask_term(served) == 1
    stale = served.process
    stale.send_signal(signal.SIGSTOP)
    served.start()
    claims = open_claim_list(str(served.run_dir.root / CLAIMS))
    wait_until(lambda: len(claims.read()) == 2, "the second coordinator has a term")
    # It has its term, and waits for the lock on the ledger.
    assert served.run_dir.events.read_bytes().count(b"coordinator.started") == 1
    stale.send_signal(signal.SIGCONT)
    assert stale.wait(WAIT_S) == SUPERSEDED_CODE
    words = stale.stderr.read().decode()
    stale.stdin.close()
    stale.stderr.close()
    assert f"the coordinator of term 1 ends: {claims.read()[1].record.claimant} has claimed term 2" in words
    assert ask_term(served) == 2
    assert [event.kind for event in read_run(served.run_dir).events] == [
        "run.started",
        "coordinator.started",
        "coordinator.died",
        "coordinator.started",
    ]


def test_a_coordinator_of_an_earlier_attempt_claims_no_term(tmp_path) -> None:
    served = Served(tmp_path)
    record = read_record(served.run_dir)
    resumed = Resumed("step-8", 8, times=1, first_worker=2, first_term=2)
    served.run_dir.run.write_bytes(msgspec.json.encode(msgspec.structs.replace(record, resumed=resumed)))
    served.start(serving=False)
    served.send_term(attempt=0)
    assert served.process.wait(WAIT_S) == SUPERSEDED_CODE
    assert "attempt 1 of the run has ended" in served.process.stderr.read().decode()
    assert open_claim_list(str(served.run_dir.root / CLAIMS)).read() == ()
    served.close()


def test_a_coordinator_that_cannot_claim_serves_and_claims_later(served) -> None:
    assert ask_term(served) == 1
    served.kill()
    away = (served.run_dir.root / CLAIMS).rename(served.run_dir.root / "away")
    served.start()
    assert ask_term(served) == 2
    away.rename(served.run_dir.root / CLAIMS)
    claims = open_claim_list(str(served.run_dir.root / CLAIMS))
    wait_until(lambda: find_newest_term(claims.read()).number == 2, "term 2 is claimed")
    assert served.process.poll() is None
    served.process.stdin.close()
    assert b"term 2 begins without a claim" in served.process.stderr.read()


@pytest.fixture
def spread(tmp_path):
    """Return a run on several machines, with the endpoint of its coordinator."""
    spread = Served(tmp_path, listen="127.0.0.1")
    certificate = create_certificate(spread.run_dir)
    publish_address(spread.run_dir, LOOPBACK_ONLY)
    port = spread.listening.getsockname()[1]
    spread.endpoint = build_endpoint(spread.run_dir, LOOPBACK_ONLY, port, certificate, attempt=0)
    spread.start()
    yield spread
    spread.close()


def list_acknowledged(worker) -> list[int]:
    """Return the acknowledged steps until the end of the connection."""
    steps = []
    with suppress(ConnectionClosed):
        while True:
            steps.append(receive(worker, Acknowledge).step)
    return steps


def test_a_superseded_coordinator_acknowledges_no_step_that_its_successor_may_not_know(spread, line) -> None:
    def report(step: int) -> bytes:
        made = StepReport(worker=0, line=line(step), step_s=0.1, healthy=False)
        return encode(StepReports(worker=0, reports=(made,)))

    with open_connection(spread.endpoint, SECRET, largest_bytes=1 << 20, timeout_s=WAIT_S) as worker:
        worker.send(encode_ready_report(), text=True)
        worker.send(report(1), text=True)
        while receive(worker, Acknowledge).step < 1:
            pass
        # Another machine takes charge, and copies the ledger.
        OwnTerm(open_claim_list(str(spread.run_dir.root / CLAIMS)), at_least=2).claim()
        worker.send(report(2), text=True)
        steps = list_acknowledged(worker)
    assert set(steps) <= {1}
    assert spread.process.wait(WAIT_S) == SUPERSEDED_CODE


def test_a_stale_copy_does_not_keep_the_name_of_the_ledger(spread, line) -> None:
    """A coordinator of an earlier term that was stopped may move its copies there much later."""
    with open_connection(spread.endpoint, SECRET, largest_bytes=1 << 20, timeout_s=WAIT_S) as worker:
        worker.send(encode_ready_report(), text=True)
        for step in (1, 2):
            for path in (spread.run_dir.ledger, spread.run_dir.events):
                shutil.copy(path, path.with_name("stale"))
                path.with_name("stale").rename(path)
            made = StepReport(worker=0, line=line(step), step_s=0.1, healthy=False)
            worker.send(encode(StepReports(worker=0, reports=(made,))), text=True)
            while receive(worker, Acknowledge).step < step:
                pass
            run = read_run(spread.run_dir)
            assert [one.step for one in run.ledger] == list(range(1, step + 1))
            assert run.events[0].kind == "run.started"


def test_the_coordinator_ends_with_its_agent(served) -> None:
    with served.connect() as terminal:
        terminal.send(encode(AskStatus()))
        terminal.recv(timeout=WAIT_S)
        os.close(served.agent_end)
        served.agent_end = served.lifeline
        assert served.process.wait(WAIT_S) == 0


@pytest.fixture
def standby(tmp_path):
    served = Served(tmp_path)
    served.start(serving=False)
    yield served
    served.close()


def test_a_standby_opens_no_file_and_accepts_no_message_before_its_term(standby) -> None:
    with pytest.raises(TimeoutError), standby.connect(timeout_s=1.0):
        pass
    assert not standby.run_dir.events.exists()
    standby.send_term()
    with standby.connect() as terminal:
        terminal.send(encode(AskStatus()))
        assert decode_answer(terminal.recv(timeout=WAIT_S)).term == 1


def test_a_standby_ends_with_its_agent(standby) -> None:
    standby.process.stdin.close()
    assert standby.process.wait(WAIT_S) == 0
    assert not standby.run_dir.events.exists()


@pytest.mark.parametrize("damage", ["", "{not a line}\n"])
@pytest.mark.parametrize("adapted_later", [False, True])
def test_a_new_attempt_knows_the_first_losses_of_lost_steps(tmp_path, line, adapted_later, damage) -> None:
    """An attempt that failed with another loss does not count, one that the user accepted does."""
    run_dir = RunDir(tmp_path)
    spec = RunSpec(name="n", script="train.py")
    record = RunRecord(spec=spec, created="2026-01-01T00:00:00Z", resumed=Resumed("c", 0, 2, 1, 1))
    run_dir.run.write_bytes(msgspec.json.encode(record))
    run_dir.secret.write_text(SECRET)
    other = msgspec.structs.replace(line(1), loss_hex=(9.0).hex())
    lines = [line(1), line(2), other]
    encoded = (msgspec.json.encode(entry) + b"\n" for entry in lines)
    run_dir.lost_ledger.write_bytes(damage.encode() + b"".join(encoded))
    for lost, adapted in ((2, False), (1, False)) if not adapted_later else ((2, True), (1, False)):
        detail = {"lost_steps": lost, **({"adapted": 1} if adapted else {})}
        event = EventLine(time=0.0, kind="run.resumed", detail=detail)
        with run_dir.events.open("ab") as file:
            file.write(msgspec.json.encode(event) + b"\n")
    (tmp_path / CLAIMS).mkdir()
    claims = open_claim_list(str(tmp_path / CLAIMS))
    coordinator = Coordinator(run_dir, 1, DecisionClaims(claims, OwnTerm(claims, at_least=1), 1))
    known = coordinator._roster.progress.lost
    if damage:
        assert known == {}
        return
    assert known == ({1: other.loss_hex} if adapted_later else {n: line(n).loss_hex for n in (1, 2)})


def ask_page(served, path: str, header: str, context: ssl.SSLContext | None = None) -> tuple[int, bytes]:
    """Return the status and the body of a page."""
    address = served.listening.getsockname()
    if context is None:
        connection = http.client.HTTPConnection(*address, timeout=WAIT_S)
    else:
        connection = http.client.HTTPSConnection(*address, timeout=WAIT_S, context=context)
    try:
        connection.request("GET", path, headers={"Authorization": header} if header else {})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def test_metrics_are_shown_only_to_clients_with_the_secret(served):
    for header in ("", f"Bearer {SECRET}x"):
        status, body = ask_page(served, "/metrics", header)
        assert (status, b"elastane_run" in body) == (401, False)
    status, body = ask_page(served, "/metrics", f"Bearer {SECRET}")
    assert (status, b"\nelastane_run_steps_total 0.0\n" in body) == (200, True)
    assert ask_page(served, "/secret", f"Bearer {SECRET}")[0] == 404


def test_metrics_of_a_run_on_several_machines_are_encrypted(spread):
    context = build_client_context(spread.endpoint.certificate)
    status, body = ask_page(spread, "/metrics", f"Bearer {SECRET}", context)
    assert (status, b"\nelastane_run_state{" in body) == (200, True)
    with pytest.raises((http.client.HTTPException, OSError)):
        ask_page(spread, "/metrics", f"Bearer {SECRET}")
