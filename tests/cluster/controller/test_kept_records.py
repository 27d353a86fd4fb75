"""The records of a run that a controller keeps: what it takes, and what another machine gets."""

import os
from pathlib import Path

import msgspec
import pytest

from elastane.cluster.controller.agents.kept_records import KeptRecords, RecordsRefused
from elastane.cluster.controller.agents.stored_agent import StoredAgent, StoredRun, format_agent_id
from elastane.cluster.controller.store import agent_rows
from elastane.cluster.nouns.job_tickets import encode_credentials
from elastane.common.errors import ElastaneError, NoCoordinator
from elastane.run.attempts.run_directory import write_run_request
from elastane.run.connections.coordinator_request import ask_coordinator
from elastane.run.connections.endpoint import CoordinatorEndpoint, publish_endpoint, read_endpoint
from elastane.run.connections.record_store import (
    RecordSender,
    RecordStore,
    StoreAccess,
    write_store_access,
)
from elastane.run.connections.result_sender import ResultSender
from elastane.run.coordinator.takeover_records import fetch_records
from elastane.run.machines.claims.claim_list import ClaimList
from elastane.run.machines.claims.controller_store import open_agent_list
from elastane.run.machines.claims.place import ClaimsUnusable
from elastane.run.machines.claims.records import TermClaim, make_nonce
from elastane.run.nouns.control import AskStatus
from elastane.run.nouns.record_parts import (
    APPENDED,
    AT_ONCE_BYTES,
    REPLACED,
    NewRecords,
    RecordPart,
    is_result,
)
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import RunSpec


def claim_term(kept: KeptRecords, number: int) -> None:
    record = TermClaim(number=number, claimant="a:1", nonce=make_nonce(), time=1.0)
    ClaimList(kept.place).claim(len(kept.place.read(1)) + 1, record)


@pytest.fixture
def kept(tmp_path):
    """The records of a run with one claimed term."""
    records = KeptRecords(tmp_path / "kept")
    records.prepare()
    claim_term(records, 1)
    return records


def append(name: str, content: bytes, offset: int = 0) -> RecordPart:
    return RecordPart(name=name, content=content, offset=offset)


def replace(name: str, content: bytes, offset: int = 0, *, end: bool = True) -> RecordPart:
    return RecordPart(name=name, content=content, offset=offset, whole=True, end=end)


def send(kept: KeptRecords, *parts: RecordPart, term: int = 1) -> None:
    kept.write(NewRecords(term=term, parts=parts))


def read(kept: KeptRecords, name: str) -> bytes | None:
    found = kept.read(name, 0)
    return None if found is None else found.content


# -- what a controller takes ---------------------------------------------------------------------------------


def test_lines_follow_each_other_and_a_repetition_changes_nothing(kept):
    for _ in range(2):
        send(kept, append("ledger.jsonl", b"1\n"), append("ledger.jsonl", b"2\n", 2))
    assert read(kept, "ledger.jsonl") == b"1\n2\n"
    with pytest.raises(RecordsRefused, match="has 4 bytes, so byte 5 cannot follow"):
        send(kept, append("ledger.jsonl", b"3\n", 5))
    assert read(kept, "ledger.jsonl") == b"1\n2\n"


@pytest.mark.parametrize("term", [0, 1, 3])
def test_only_the_newest_term_changes_records(kept, term):
    send(kept, append("events.jsonl", b"1\n"))
    claim_term(kept, 2)
    for part in (append("events.jsonl", b"x\n", 2), replace("run.json", b"{}")):
        with pytest.raises(RecordsRefused, match=f"term {term} is not in charge of this run"):
            send(kept, append("logs/worker-0.log", b"x"), part, term=term)
    assert (read(kept, "events.jsonl"), read(kept, "run.json")) == (b"1\n", None)
    send(kept, append("events.jsonl", b"2\n", 2), term=2)
    assert read(kept, "events.jsonl") == b"1\n2\n"


def test_without_a_claimed_term_nothing_is_taken(tmp_path):
    records = KeptRecords(tmp_path)
    records.prepare()
    with pytest.raises(RecordsRefused, match="term 0 is not in charge"):
        send(records, replace("run.json", b"{}"), term=0)


def test_a_record_appears_whole_or_not_at_all(kept, tmp_path):
    send(kept, replace("run.json", b"old"))
    send(kept, replace("run.json", b"ne", end=False))
    assert read(kept, "run.json") == b"old"
    send(kept, replace("run.json", b"w", 2))
    assert read(kept, "run.json") == b"new"
    send(kept, append("ledger.jsonl", b"1\n2\n"))
    send(kept, replace("ledger.jsonl", b"9\n", end=False))
    assert read(kept, "ledger.jsonl") == b"1\n2\n"
    # Its sender has died, and another one sends less.
    send(kept, replace("ledger.jsonl", b"8", end=True))
    assert read(kept, "ledger.jsonl") == b"8"
    assert not list((tmp_path / "kept").glob(".*.partial"))


def test_an_empty_endpoint_removes_it(kept):
    send(kept, replace("endpoint.json", b"{}"))
    for _ in range(2):
        send(kept, replace("endpoint.json", b""))
        assert "endpoint.json" not in {record.name for record in kept.list_records()}


def test_secrets_are_private(kept, tmp_path):
    for name in REPLACED:
        send(kept, replace(name, b"x"))
        mode = (tmp_path / "kept" / name).stat().st_mode & 0o777
        assert mode == (0o600 if name in ("secret", "certificate.pem") else 0o644), name


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "lock",
        "/etc/passwd",
        "../run.json",
        "logs/../run.json",
        "logs/.hidden.log",
        "logs/worker-0.txt",
        "claims/1",
        "code/x.json",
        "artifacts/3/../../x.json",
        "artifacts/3/a/b.png",
        ".run.json.partial",
        "record-store.json",
        "address-m.json",
        "run.json\n",
        "x\0.json",
        "controller.db",
        "tickets/a.json",
    ],
)
def test_only_records_have_names(kept, name, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(RecordsRefused, match="is not the name of a record"):
        send(kept, replace(name, b"x"))
    assert sorted(tmp_path.rglob("*")) == before
    assert kept.read(name, 0) is None


@pytest.mark.parametrize(
    "name", ["model.safetensors", "model-00001-of-00002.safetensors", "tokenizer.json", "artifacts/3/a.png"]
)
def test_results_need_no_term(kept, name, tmp_path):
    assert is_result(name)
    send(kept, replace(name, b"x"), term=0)
    assert (tmp_path / "kept" / name).read_bytes() == b"x"
    with pytest.raises(RecordsRefused, match="is sent as a whole"):
        send(kept, append(name, b"x", 1), term=0)


def test_nothing_is_written_through_a_link(kept, tmp_path):
    root, secret = tmp_path / "kept", tmp_path / "private"
    secret.write_bytes(b"private")
    (root / "ledger.jsonl").symlink_to(secret)
    os.link(secret, root / "events.jsonl")
    (tmp_path / "elsewhere").mkdir()
    (root / "logs").symlink_to(tmp_path / "elsewhere")
    (root / ".run.json.partial").symlink_to(secret)
    with pytest.raises(OSError, match="symbolic link"):
        send(kept, append("ledger.jsonl", b"x"))
    with pytest.raises(RecordsRefused, match="is not a file of its own"):
        send(kept, append("events.jsonl", b"x"))
    with pytest.raises(OSError, match="Not a directory"):
        send(kept, append("logs/worker-0.log", b"x"))
    send(kept, replace("run.json", b"{}"))
    assert secret.read_bytes() == b"private"
    assert not list((tmp_path / "elsewhere").iterdir())
    assert read(kept, "ledger.jsonl") is None


def test_a_record_has_a_limit(kept):
    with pytest.raises(RecordsRefused, match="would have more than"):
        send(kept, append("logs/worker-0.log", b"x", 64 << 20))


def test_a_run_directory_has_these_records():
    run_dir = RunDir(Path("run"))
    known = {run_dir.root / name for name in (*APPENDED, *REPLACED)}
    assert {run_dir.ledger, run_dir.lost_ledger, run_dir.events, run_dir.run, run_dir.attempt} <= known
    assert {run_dir.secret, run_dir.endpoint, run_dir.card, run_dir.metrics, run_dir.report} <= known
    assert run_dir.trackers.identity in known


# -- agents, over the API ------------------------------------------------------------------------------------


@pytest.fixture
def world(api_over, sqlite_store, tmp_path):
    """An API with two agents of one job, of which the first one has begun attempt 1."""
    api = api_over(sqlite_store, home=tmp_path / "home")
    with api.store.begin_write() as tx:
        cluster = agent_rows.get_cluster_id(tx)
        agents = [
            agent_rows.insert_agent(
                tx,
                StoredAgent(
                    job=job,
                    engine="hpc",
                    pool="a100",
                    workers=1,
                    devices=1,
                    key=bytes([number]) * 16,
                    asked_s=1.0,
                    attempt=attempt,
                ),
            )
            for number, (job, attempt) in enumerate([("train", 1), ("train", 0), ("other", 1)])
        ]
        agent_rows.write_agent_run(tx, StoredRun(job="train", attempt=1, beginner=agents[0].number))
        agent_rows.write_agent_run(tx, StoredRun(job="other", attempt=1, beginner=agents[2].number))
    ids = [format_agent_id(cluster, agent.number) for agent in agents]
    return api, ids, [encode_credentials(agent.key) for agent in agents]


def make_term(number: int) -> bytes:
    return msgspec.json.encode(TermClaim(number=number, claimant="a:1", nonce=make_nonce(), time=1.0))


def test_an_agent_writes_only_for_its_own_job_and_in_the_newest_attempt(world, tmp_path):
    api, (first, second, other), keys = world
    records = {"term": 1, "parts": [{"name": "events.jsonl", "content": "eAo="}]}
    claim = {"slot": 1, "content": msgspec.to_builtins(make_term(1))}
    for agent, key, status in (
        (first, keys[1], 401),
        (first, keys[2], 401),
        # It has not been told to take part.
        (second, keys[1], 409),
        (first, keys[0], 201),
    ):
        answer = api.with_secret(key).post(f"/agents/{agent}/claims", claim)
        assert answer.status_code == status, answer.text
    assert api.with_secret(keys[1]).post(f"/agents/{second}/records", records).status_code == 409
    assert api.with_secret(keys[0]).post(f"/agents/{first}/records", records).status_code == 204
    assert (tmp_path / "home/runs/train/events.jsonl").read_bytes() == b"x\n"
    # The second one may read, so that it can join.
    reader = api.with_secret(keys[1])
    assert reader.get(f"/agents/{second}/records/events.jsonl").json() == {"content": "eAo=", "size": 2}
    assert len(reader.get(f"/agents/{second}/claims").json()["items"]) == 1
    assert api.with_secret(keys[2]).get(f"/agents/{other}/records/events.jsonl").status_code == 404
    assert not (tmp_path / "home/runs/other/events.jsonl").exists()
    with api.store.begin_write() as tx:
        agent_rows.write_agent_run(tx, StoredRun(job="train", attempt=2, beginner=2))
    late = api.with_secret(keys[0]).post(f"/agents/{first}/records", records)
    assert late.status_code == 409
    assert "does not take part in the newest attempt" in late.json()["detail"]


def test_a_claim_list_has_no_gap_and_each_slot_one_holder(world):
    api, (first, *_), keys = world
    caller = api.with_secret(keys[0])

    def claim(slot):
        return caller.post(
            f"/agents/{first}/claims", {"slot": slot, "content": msgspec.to_builtins(make_term(1))}
        )

    assert claim(2).status_code == 409
    assert [claim(1).json(), claim(1).json()] == [{"written": True}, {"written": False}]
    assert caller.get(f"/agents/{first}/claims/right").status_code == 204


def test_odd_requests_are_refused_in_words(world):
    api, (first, *_), keys = world
    caller = api.with_secret(keys[0])
    for body in ({}, {"parts": [{}]}, {"parts": [{"name": "run.json", "offset": -1}]}, {"parts": 1}):
        answer = caller.post(f"/agents/{first}/records", body)
        assert answer.status_code == 422, body
    assert caller.get(f"/agents/{first}/records/..%2fsecret").status_code in (404, 422)
    assert caller.get(f"/agents/{first}/records/run.json?offset=-1").status_code == 422


def test_a_full_disk_is_said_and_may_pass(world, monkeypatch):
    api, (first, *_), keys = world

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(KeptRecords, "write", fail)
    answer = api.with_secret(keys[0]).post(f"/agents/{first}/records", {"parts": []})
    assert answer.status_code == 503
    assert "No space left" in answer.json()["detail"]


# -- from one machine to another, over a real connection -----------------------------------------------------


@pytest.fixture
def store(world, served):
    api, (first, *_), keys = world
    with served(api) as url:
        yield RecordStore(StoreAccess(url, f"/agents/{first}", keys[0]), timeout_s=5.0)


def make_machine(where: Path) -> RunDir:
    (where / "logs").mkdir(parents=True)
    return RunDir(where)


def test_another_machine_gets_what_the_first_one_has_written(store, tmp_path):
    claims = ClaimList(open_agent_list(store))
    claims.prove_writable()
    claims.claim(1, TermClaim(number=1, claimant="a:1", nonce=make_nonce(), time=1.0))
    one, other = make_machine(tmp_path / "one"), make_machine(tmp_path / "other")
    long = b"".join(b'{"step":%d}\n' % step for step in range(AT_ONCE_BYTES // 8))
    one.ledger.write_bytes(long)
    one.run.write_bytes(b"{}")
    one.secret.write_bytes(b"secret")
    one.endpoint.write_bytes(b"old")
    sender = RecordSender(store, one, 1, anew=True)
    sender.send_new()
    with one.ledger.open("ab") as ledger:
        ledger.write(b"last\n")
    one.endpoint.write_bytes(b"new")
    sender.send_new(renew=True)
    store.fetch(other, (*APPENDED, *REPLACED))
    assert other.ledger.read_bytes() == long + b"last\n"
    assert (other.endpoint.read_bytes(), other.secret.read_bytes()) == (b"new", b"secret")
    assert other.secret.stat().st_mode & 0o777 == 0o600
    assert not other.events.exists()
    # The other one takes charge, and the first one, which does not know it, changes nothing more.
    claims.claim(2, TermClaim(number=2, claimant="b:1", nonce=make_nonce(), time=1.0))
    with one.ledger.open("ab") as ledger:
        ledger.write(b"too late\n")
    with pytest.raises(ElastaneError, match="term 1 is not in charge"):
        sender.send_new()
    with other.ledger.open("ab") as ledger:
        ledger.write(b"in time\n")
    RecordSender(store, other, 2, anew=False).send_new()
    assert store.read("ledger.jsonl") == long + b"last\nin time\n"


def begin_run(run_dir: RunDir) -> None:
    write_run_request(run_dir, RunSpec(name="train", script=f"{run_dir.root}/train.py"), None)


def make_endpoint(*, node: str = "", attempt: int = 0, term: int = 0) -> CoordinatorEndpoint:
    return CoordinatorEndpoint("127.0.0.1", 1, node=node, attempt=attempt, term=term, kept=True)


def test_a_machine_fetches_what_another_one_began_to_send_and_then_died(store, world, tmp_path, served):
    """The kept endpoint is that of this machine: the other one had no time for its own."""
    api, (first, *_), keys = world
    claims = ClaimList(open_agent_list(store))
    claims.claim(1, TermClaim(number=1, claimant="a:1", nonce=make_nonce(), time=1.0))
    one = make_machine(tmp_path / "one")
    begin_run(one)
    one.ledger.write_bytes(b"1\n")
    publish_endpoint(one, make_endpoint(term=1))
    RecordSender(store, one, 1, anew=True).send_new()
    with one.ledger.open("ab") as ledger:
        ledger.write(b"2 not sent, and long\n")
    claims.claim(2, TermClaim(number=2, claimant="b:1", nonce=make_nonce(), time=1.0))
    store.send([append("ledger.jsonl", b"2 kept\n", 2)], term=2)
    claims.claim(3, TermClaim(number=3, claimant="a:1", nonce=make_nonce(), time=1.0))
    with served(api) as url:
        write_store_access(one, StoreAccess(url, f"/agents/{first}", keys[0]))
        sender = fetch_records(one, make_endpoint(term=3), from_node="m2")
        assert one.ledger.read_bytes() == b"1\n2 kept\n"
        with one.ledger.open("ab") as ledger:
            ledger.write(b"3\n")
        sender.send_new()
    assert store.read("ledger.jsonl") == b"1\n2 kept\n3\n"


@pytest.mark.parametrize("attempt", [0, 1])
def test_a_machine_keeps_its_own_records_if_no_other_one_was_in_charge(
    store, world, tmp_path, served, attempt
):
    """Also those of a new attempt, which the controller does not have yet."""
    api, (first, *_), keys = world
    ClaimList(open_agent_list(store)).claim(
        1, TermClaim(number=1, claimant="a:1", nonce=make_nonce(), time=1.0)
    )
    one = make_machine(tmp_path / "one")
    begin_run(one)
    one.ledger.write_bytes(b"1\n2\n")
    publish_endpoint(one, make_endpoint(term=1))
    RecordSender(store, one, 1, anew=True).send_new()
    one.ledger.write_bytes(b"1\nB\nC\n" if attempt else b"1\n2\n3\n")
    expected = one.ledger.read_bytes()
    with served(api) as url:
        write_store_access(one, StoreAccess(url, f"/agents/{first}", keys[0]))
        fetch_records(one, make_endpoint(term=1, attempt=attempt), from_node=None).send_new()
    assert one.ledger.read_bytes() == store.read("ledger.jsonl") == expected


def test_a_request_finds_the_coordinator_that_has_taken_over_meanwhile(store, world, tmp_path, served):
    api, (first, *_), keys = world
    ClaimList(open_agent_list(store)).claim(
        1, TermClaim(number=1, claimant="a:1", nonce=make_nonce(), time=1.0)
    )
    one, other = make_machine(tmp_path / "one"), make_machine(tmp_path / "other")
    begin_run(one)
    publish_endpoint(other, make_endpoint(node="m2", term=2))
    RecordSender(store, other, 1, anew=True).send_new()
    with served(api) as url:
        write_store_access(one, StoreAccess(url, f"/agents/{first}", keys[0]))
        publish_endpoint(one, make_endpoint(term=1))
        with pytest.raises(NoCoordinator):
            ask_coordinator(one, AskStatus(), timeout_s=0.5)
    assert read_endpoint(one).node == "m2"


def test_a_new_attempt_replaces_a_longer_ledger(store, tmp_path):
    ClaimList(open_agent_list(store)).claim(
        1, TermClaim(number=1, claimant="a:1", nonce=make_nonce(), time=1.0)
    )
    one = make_machine(tmp_path / "one")
    one.ledger.write_bytes(b"1\n2\n3\n")
    RecordSender(store, one, 1, anew=True).send_new()
    # It has made two steps again before it was heard.
    one.ledger.write_bytes(b"1\nB\nC\nD\n")
    RecordSender(store, one, 1, anew=True).send_new()
    assert store.read("ledger.jsonl") == b"1\nB\nC\nD\n"


def test_logs_follow_those_of_an_earlier_machine_and_artifacts_are_sent_once(store, tmp_path):
    one, other = make_machine(tmp_path / "one"), make_machine(tmp_path / "other")
    (one.logs / "coordinator.log").write_bytes(b"first\n")
    (one.artifacts / "step-3").mkdir(parents=True)
    (one.artifacts / "step-3" / "a.png").write_bytes(b"png")
    with ResultSender(store, one):
        pass
    (other.logs / "coordinator.log").write_bytes(b"second\n")
    sender = ResultSender(store, other)
    assert sender.send_new()
    with (other.logs / "coordinator.log").open("ab") as log:
        log.write(b"third\n")
    assert sender.send_new()
    kept = tmp_path / "home/runs/train"
    assert (kept / "logs/coordinator.log").read_bytes() == b"first\nsecond\nthird\n"
    assert (kept / "artifacts/step-3/a.png").read_bytes() == b"png"


def test_a_controller_that_is_away_is_no_refusal(tmp_path):
    store = RecordStore(StoreAccess("http://127.0.0.1:9", "/agents/c0-1", "ab"), timeout_s=0.2)
    with pytest.raises(ElastaneError, match=r"has not answered|does not answer"):
        ClaimList(open_agent_list(store), wait_s=0.1).read()
    assert not ResultSender(store, make_machine(tmp_path)).send_new()


def test_a_refused_claim_is_unusable(world, served):
    api, (_, second, _), keys = world
    with served(api) as url:
        store = RecordStore(StoreAccess(url, f"/agents/{second}", keys[1]), timeout_s=5.0)
        claims = ClaimList(open_agent_list(store), wait_s=0.5)
        assert claims.read() == ()
        with pytest.raises(ElastaneError, match="does not take part in the newest attempt"):
            claims.prove_writable()
        with pytest.raises(ClaimsUnusable, match="no valid job ticket"):
            ClaimList(
                open_agent_list(RecordStore(StoreAccess(url, f"/agents/{second}", "00"), timeout_s=5.0))
            ).read()


def test_the_access_of_a_machine_is_private(tmp_path):
    run_dir = make_machine(tmp_path)
    assert not run_dir.is_private
    write_store_access(run_dir, StoreAccess("http://127.0.0.1:9", "/agents/c0-1", "ab"))
    assert run_dir.is_private
    assert run_dir.record_store.stat().st_mode & 0o777 == 0o600
