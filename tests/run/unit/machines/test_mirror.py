"""A machine without the directory of a run visits it with a ticket, and keeps a mirror of its files."""

import asyncio
import socket
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from elastane.common.errors import BadInput, NoSuchRun
from elastane.run.connections.endpoint import CoordinatorEndpoint, publish_endpoint
from elastane.run.connections.run_certificate import compute_fingerprint, create_certificate, read_certificate
from elastane.run.connections.run_lock import is_live
from elastane.run.machines.agents.neighbours import answer_neighbours
from elastane.run.machines.agents.run_pages import RunPages
from elastane.run.machines.succession.takeover import CoordinatorHeard
from elastane.run.machines.tickets import remote_files
from elastane.run.machines.tickets.ticket_files import (
    find_tickets,
    issue_ticket,
    list_tickets,
    open_tickets,
    revoke_tickets,
)
from elastane.run.machines.tickets.tickets import encode_ticket
from elastane.run.machines.visits import mirror, run_pages_client
from elastane.run.machines.visits.mirror import ORIGIN, Mirror, is_mirror
from elastane.run.machines.visits.run_finder import find_run
from elastane.run.machines.visits.visits import find_shared_run, get_admission, visit_run
from elastane.run.nouns.membership import NodeAddress
from elastane.run.nouns.rundir import RunDir

SECRET = "5" * 64


class Machine:
    """A run on another machine, as far as its pages go."""

    def __init__(self, root: Path) -> None:
        self.run_dir = RunDir(root)
        self.places: dict = {}
        self.others: tuple = ()
        (root / "logs").mkdir(parents=True)
        create_certificate(self.run_dir)
        open_tickets(self.run_dir)
        self.run_dir.secret.write_text(SECRET)
        self.run_dir.run.write_text("{}")
        self.run_dir.events.write_text("one\n")
        self.run_dir.log("worker-0").write_text("hello\n")
        self.run_dir.log("coordinator").touch()
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]
        certificate = read_certificate(self.run_dir)
        publish_endpoint(self.run_dir, CoordinatorEndpoint("127.0.0.1", 9, certificate))

    @property
    def nodes(self):
        return (NodeAddress("", "127.0.0.1", self.port),)

    def write_ticket(self, **limits):
        fingerprint = compute_fingerprint(read_certificate(self.run_dir))
        return encode_ticket(issue_ticket(self.run_dir, fingerprint, (("127.0.0.1", self.port),), **limits))

    @contextmanager
    def serve(self):
        loop = asyncio.new_event_loop()
        pages = RunPages(self.run_dir, "demo", lambda: (*self.nodes, *self.others), self.places)
        ended, began = asyncio.Event(), threading.Event()

        async def answer() -> None:
            heard = CoordinatorHeard(0.0, 1)
            async with answer_neighbours(self.run_dir, self.listening, lambda: heard, pages):
                began.set()
                await ended.wait()

        thread = threading.Thread(target=loop.run_until_complete, args=(answer(),))
        thread.start()
        began.wait()
        try:
            yield
        finally:
            loop.call_soon_threadsafe(ended.set)
            thread.join()
            loop.close()


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("ELASTANE_HOME", str(tmp_path / "home"))
    # A test pulls by hand.
    monkeypatch.setattr(Mirror, "start", Mirror.pull)
    monkeypatch.setattr(mirror, "_kept", {})
    return tmp_path / "home"


@pytest.fixture
def machine(tmp_path):
    made = Machine(tmp_path / "elsewhere" / "demo")
    with made.serve():
        yield made
    made.listening.close()


@pytest.fixture
def hidden(machine, monkeypatch):
    """The machine, with a directory that the visitor does not see."""
    monkeypatch.setattr("elastane.run.machines.visits.visits._has_secret", lambda *_: False)
    return machine


def test_a_visitor_that_shares_the_directory_uses_it(machine) -> None:
    assert visit_run(machine.write_ticket()) == machine.run_dir
    assert find_shared_run(machine.write_ticket()) == (machine.run_dir, ())
    assert not list(find_tickets(machine.run_dir).glob("mark-*"))


def make_nodes(count):
    """Return so many machines with the longest names and hosts."""
    return tuple(NodeAddress(f"{number:x>63}", f"{number:a>253}", 65535) for number in range(count))


def test_a_single_use_ticket_admits_to_a_run_of_1024_machines_with_the_longest_names(hidden) -> None:
    hidden.others = make_nodes(1023)
    word = hidden.write_ticket(uses=1)
    mirrored = visit_run(word)
    # Both the kept admission and the mirror have all of them.
    assert get_admission(word).nodes == (*hidden.nodes, *hidden.others)
    assert mirrored.events.read_text() == "one\n"
    Mirror(mirrored).pull()
    assert (mirrored.root / ORIGIN).stat().st_size > 64 << 10


def test_a_run_of_more_machines_names_as_many_as_a_client_takes(hidden) -> None:
    hidden.others = make_nodes(3000)
    assert get_admission(hidden.write_ticket(uses=1)).nodes == (*hidden.nodes, *hidden.others[:1023])


def test_a_copy_of_the_directory_is_not_shared(machine, tmp_path, monkeypatch) -> None:
    admission = get_admission(word := machine.write_ticket())
    copy = tmp_path / "copy"
    (copy / "tickets").mkdir(parents=True)
    (copy / "secret").write_text(SECRET)
    monkeypatch.setattr("elastane.run.machines.visits.visits.SEEN_S", 0.2)
    changed = type(admission)(
        **{name: getattr(admission, name) for name in admission.__struct_fields__} | {"directory": str(copy)}
    )
    monkeypatch.setattr("elastane.run.machines.visits.visits.get_admission", lambda _: changed)
    with pytest.raises(BadInput, match="does not share the directory of the run"):
        find_shared_run(word)


def test_a_mirror_has_the_files_but_no_keys(hidden) -> None:
    found = find_run(hidden.write_ticket())
    assert is_mirror(found)
    assert found.events.read_text() == "one\n"
    assert found.log("worker-0").read_text() == "hello\n"
    assert found.log("coordinator").read_text() == ""
    assert found.endpoint.read_bytes() == hidden.run_dir.endpoint.read_bytes()
    assert not (found.root / "certificate.pem").exists()
    assert not find_tickets(found).exists()
    assert found.secret.stat().st_mode & 0o077 == 0


def test_a_mirror_follows_what_the_run_writes(hidden, monkeypatch) -> None:
    monkeypatch.setattr(mirror, "AT_ONCE_BYTES", 8)
    monkeypatch.setattr("elastane.run.machines.agents.run_pages.AT_ONCE_BYTES", 8)
    monkeypatch.setattr(mirror, "OVERLAP_BYTES", 6)
    events = "".join(f"event {number}\n" for number in range(20))
    found = visit_run(hidden.write_ticket())
    for length in (0, 3, 50, 51, len(events)):
        hidden.run_dir.events.write_text("one\n" + events[:length])
        Mirror(found).pull()
        assert found.events.read_text() == "one\n" + events[:length]
    # A successor on another machine writes other lines after those that it has copied.
    hidden.run_dir.events.write_text("one\n" + events.replace("event 19", "event 91") + "more\n")
    Mirror(found).pull()
    assert found.events.read_text() == hidden.run_dir.events.read_text()
    hidden.run_dir.events.write_text("shorter\n")
    Mirror(found).pull()
    assert found.events.read_text() == "shorter\n"
    hidden.run_dir.endpoint.unlink()
    Mirror(found).pull()
    assert not found.endpoint.exists()


def test_the_name_of_a_mirror_finds_it_again(hidden, home) -> None:
    found = visit_run(hidden.write_ticket(uses=1))
    assert found.root == home / "runs" / "demo"
    assert find_run("demo") == found


def test_another_run_of_the_name_stays_as_it_is(hidden, home) -> None:
    own = RunDir(home / "runs" / "demo")
    own.root.mkdir(parents=True)
    own.run.write_text("mine")
    found = visit_run(hidden.write_ticket())
    assert found.root.name.startswith("demo-")
    assert own.run.read_text() == "mine"


def test_one_use_serves_all_commands_of_a_user(hidden, monkeypatch, tmp_path) -> None:
    word = hidden.write_ticket(uses=1)
    assert visit_run(word) == visit_run(word)
    monkeypatch.setenv("ELASTANE_HOME", str(tmp_path / "another user"))
    with pytest.raises(BadInput, match="valid for use once, and is used up"):
        visit_run(word)


def test_a_refusal_says_why(hidden) -> None:
    word = hidden.write_ticket()
    (path,) = find_tickets(hidden.run_dir).glob("*.json")
    revoke_tickets(hidden.run_dir, path.stem)
    with pytest.raises(BadInput, match="the ticket was revoked"):
        visit_run(word)


def test_the_key_is_shown_to_no_other_program(hidden) -> None:
    stranger = issue_ticket(hidden.run_dir, bytes(32), (("127.0.0.1", hidden.port),), uses=1)
    with pytest.raises(NoSuchRun, match="another certificate"):
        visit_run(encode_ticket(stranger))
    assert [ticket.used for ticket in list_tickets(hidden.run_dir)] == [0]


def test_a_run_that_is_over_says_so_and_its_mirror_stays(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("elastane.run.machines.visits.visits._has_secret", lambda *_: False)
    made = Machine(tmp_path / "elsewhere" / "demo")
    word = made.write_ticket()
    with made.serve():
        found = visit_run(word)
    made.listening.close()
    mirror._kept.clear()
    assert find_run("demo") == found
    assert not is_live(found)
    monkeypatch.setenv("ELASTANE_HOME", str(tmp_path / "another user"))
    with pytest.raises(NoSuchRun, match="no machine of the run answers"):
        visit_run(word)


@pytest.mark.parametrize(
    "path",
    [
        "/files/secret",
        "/files/certificate.pem",
        "/files/../secret",
        "/x",
        "/files/logs%2F..%2Fsecret",
        "/files/tickets",
        "/files/logs/a.log?from=-1",
    ],
)
def test_only_files_without_secrets_are_shown(hidden, path) -> None:
    certificate = read_certificate(hidden.run_dir)
    with pytest.raises(NoSuchRun, match=r"no such page|needs a number|has no file"):
        run_pages_client.ask_any(
            hidden.nodes,
            path,
            compute_fingerprint(certificate),
            run_pages_client.present_secret(SECRET),
            at_most_bytes=1000,
        )


def test_pages_need_the_secret(hidden) -> None:
    for header in (run_pages_client.present_secret("6" * 64), "Ticket 00000000." + "0" * 32, ""):
        with pytest.raises(BadInput):
            run_pages_client.ask_any(
                hidden.nodes,
                remote_files.FILES_PATH,
                compute_fingerprint(read_certificate(hidden.run_dir)),
                header,
                at_most_bytes=1000,
            )


def test_a_damaged_mirror_is_refused_in_words(hidden) -> None:
    found = visit_run(hidden.write_ticket())
    mirror._kept.clear()
    (found.root / ORIGIN).write_text("[]")
    with pytest.raises(BadInput, match="is damaged"):
        find_run("demo")


@pytest.mark.parametrize("place", ["elsewhere", "linked in the home"])
def test_a_directory_that_calls_itself_a_mirror_is_none(hidden, home, tmp_path, place, monkeypatch) -> None:
    made = visit_run(hidden.write_ticket())
    mirror._kept.clear()
    received = tmp_path / "received"
    made.root.rename(received)
    name = str(received)
    if place != "elsewhere":
        (home / "runs/received").symlink_to(received)
        name = "received"
    monkeypatch.setattr(Mirror, "pull", lambda _: pytest.fail("an address of the directory was asked"))
    found = find_run(name)
    assert found.root == received
    assert not is_mirror(found)


@pytest.mark.parametrize("file", ["secret", "origin.json", "ledger.jsonl", "logs", "logs/worker-0.log"])
def test_a_mirror_is_read_and_written_through_no_link(hidden, tmp_path, file) -> None:
    made = visit_run(hidden.write_ticket())
    mirror._kept.clear()
    path, private = made.root / file, tmp_path / "private"
    if path.exists():
        path.rename(private)
    path.symlink_to(private)
    before = sorted((entry.name, entry.lstat().st_size) for entry in tmp_path.rglob("*"))
    if file == "origin.json":
        assert not is_mirror(made)
        return
    with pytest.raises(BadInput, match="symbolic link"):
        find_run("demo")
    assert sorted((entry.name, entry.lstat().st_size) for entry in tmp_path.rglob("*")) == before
