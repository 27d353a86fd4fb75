"""``elastane up`` and ``elastane down``, with the controller in its own process."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from typer.testing import CliRunner

from elastane.cli.main import app
from elastane.cluster.client.cluster import Cluster
from elastane.cluster.client.context import connect, read_running
from elastane.cluster.client.controller_lock import find_lock_holder
from elastane.cluster.nouns.controller import ControllerReady
from elastane.common.connections.controller_connection import ControllerUnreachable
from elastane.common.connections.controller_context import read_context
from elastane.common.errors import BadInput
from tests.certificates import make_certificate
from tests.full_disk import fill_disk
from tests.waiting import WAIT_S, wait_until

pytestmark = [
    pytest.mark.processes,
    # The command leaves its controller running, as it should.
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]

ELASTANE = (sys.executable, "-m", "elastane.cli.main")


def run_elastane(*args: str) -> subprocess.CompletedProcess[str]:
    """Run a command in this process; a controller that it starts has a process of its own."""
    result = CliRunner().invoke(app, args)
    return subprocess.CompletedProcess(args, result.exit_code, result.stdout, result.stderr)


@pytest.fixture(autouse=True)
def cleanup(home: Path) -> Iterator[None]:
    """End all processes that a test leaves running."""
    yield
    found = read_running()
    if found is not None:
        run_elastane("down")


def start_controller(*args: str) -> ControllerReady:
    started = run_elastane("up", "--detach", "--json", "--listen=127.0.0.1:0", *args)
    assert started.returncode == 0, started.stderr
    return msgspec.json.decode(started.stdout, type=ControllerReady)


def test_up_prints_its_address_and_stores_the_token_for_other_commands(home):
    ready = start_controller()
    assert ready.token.startswith("ela_")
    assert (home / "cluster.json").stat().st_mode & 0o777 == 0o600
    assert (home / "controller.log").stat().st_mode & 0o777 == 0o600
    with connect() as cluster:
        assert cluster.version().elastane


def test_files_that_others_could_read_are_closed_and_named(home):
    home.mkdir(mode=0o755)
    secrets = [home / name for name in ("controller.db", "controller.log", "cluster.json")]
    for path in secrets:
        path.touch()
        path.chmod(0o644)
    (home / "cluster.json").write_text('{"url": "http://127.0.0.1:1", "token": "ela_x"}')
    home.chmod(0o755)
    started = run_elastane("up", "--detach", "--listen=127.0.0.1:0")
    assert started.returncode == 0, started.stderr
    said = next(line for line in started.stdout.splitlines() if "to other users: " in line)
    assert all(str(path) in said for path in (home, *secrets))
    assert home.stat().st_mode & 0o777 == 0o750
    assert {path.stat().st_mode & 0o777 for path in secrets} == {0o600}
    run_elastane("down")
    assert start_controller().narrowed == ()


def test_the_url_of_the_store_is_in_no_command_line_because_it_may_have_a_password(home):
    ready = start_controller(f"--store=sqlite:///{home}/hunter2.db")
    assert "hunter2" in ready.store
    for process in list_family(ready.pid):
        assert b"hunter2" not in Path(f"/proc/{process}/cmdline").read_bytes()


def list_family(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    children = [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]
    return [pid, *(one for child in children for one in list_family(child))]


def test_a_second_up_is_refused_and_leaves_the_first_controller_alone(home):
    first = start_controller()
    second = run_elastane("up", "--detach", "--listen=127.0.0.1:0")
    assert second.returncode == 2
    assert f"a controller already runs here ({first.url}" in second.stderr
    assert "elastane down" in second.stderr
    assert read_running().pid == first.pid
    with connect() as cluster:
        assert cluster.version().elastane


def test_a_port_in_use_is_reported_before_anything_else_happens(home):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = run_elastane("up", "--detach", f"--listen=127.0.0.1:{port}")
    assert refused.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}" in refused.stderr
    assert "another --listen" in refused.stderr
    assert not (home / "controller.db").exists()


def test_listening_to_other_machines_needs_tls(home):
    refused = run_elastane("up", "--detach", "--listen=0.0.0.0:0")
    assert refused.returncode == 2
    assert "tokens would cross the network without encryption" in refused.stderr
    assert "--tls-cert" in refused.stderr


def test_after_down_the_same_port_and_token_can_be_used_again(home):
    first = start_controller()
    port = first.url.rpartition(":")[2]
    down = run_elastane("down")
    assert down.returncode == 0, down.stderr
    assert "jobs continue" in down.stdout + down.stderr
    again = run_elastane("up", "--detach", "--json", f"--listen=127.0.0.1:{port}")
    assert again.returncode == 0, again.stderr
    assert msgspec.json.decode(again.stdout, type=ControllerReady).token == ""
    with connect() as cluster:
        assert cluster.version().elastane


def test_the_token_of_each_store_is_valid_after_a_restart(home, tmp_path):
    other = f"--store=sqlite:///{tmp_path / 'other.db'}"
    tokens = [start_controller().token]
    run_elastane("down")
    tokens.append(start_controller(other).token)
    run_elastane("down")
    assert all(tokens)
    for store, token in (((), tokens[0]), ((other,), tokens[1])):
        assert start_controller(*store).token == ""
        assert read_context().token == token
        with connect() as cluster:
            assert cluster.version().elastane
        run_elastane("down")


def test_up_in_a_terminal_ends_its_controller_with_ctrl_c(home):
    terminal = subprocess.Popen(
        [*ELASTANE, "up", "--json", "--listen=127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    ready = b""
    while not ready.endswith(b"}\n"):
        line = terminal.stdout.readline()
        assert line, "it ended"
        ready += line
    pid = msgspec.json.decode(ready, type=ControllerReady).pid
    os.killpg(terminal.pid, signal.SIGINT)
    terminal.communicate(timeout=WAIT_S)
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "its controller has ended")


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """Return a self-signed certificate for this machine."""
    files = tmp_path / "cert.pem", tmp_path / "key.pem"
    for file, content in zip(files, make_certificate("elastane"), strict=True):
        file.write_bytes(content)
    return files


def test_with_a_certificate_other_machines_may_connect_and_clients_check_it(home, certificate):
    ready = start_controller(
        "--listen=0.0.0.0:0", f"--tls-cert={certificate[0]}", f"--tls-key={certificate[1]}"
    )
    assert ready.url.startswith("https://")
    url = f"https://127.0.0.1:{ready.url.rpartition(':')[2]}"
    with Cluster(url, ready.token, verify=str(certificate[0])) as cluster:
        assert cluster.version().elastane
    # No retries, because they would not help.
    with (
        Cluster(url, ready.token, timeout_s=1e9) as cluster,
        pytest.raises(ControllerUnreachable, match="not trusted"),
    ):
        cluster.version()


@pytest.mark.parametrize("half", ["--tls-cert", "--tls-key"])
def test_a_certificate_without_its_key_is_refused(home, certificate, half):
    refused = run_elastane("up", "--detach", "--listen=127.0.0.1:0", f"{half}={certificate[0]}")
    assert refused.returncode == 2
    assert "give --tls-cert and --tls-key" in refused.stderr


@pytest.mark.parametrize("wrong", ["another's key", "a key with a passphrase", "no certificate"])
def test_an_invalid_certificate_or_key_is_refused_before_the_controller_is_reported_ready(
    home, certificate, wrong
):
    cert, key = certificate
    own = serialization.load_pem_private_key(key.read_bytes(), password=None)
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    if wrong == "no certificate":
        cert.write_text("junk")
    elif wrong == "another's key":
        other = ec.generate_private_key(ec.SECP256R1())
        key.write_bytes(other.private_bytes(pem, pkcs8, serialization.NoEncryption()))
    else:
        key.write_bytes(own.private_bytes(pem, pkcs8, serialization.BestAvailableEncryption(b"secret")))
    refused = run_elastane("up", "--detach", "--listen=127.0.0.1:0", f"--tls-cert={cert}", f"--tls-key={key}")
    assert refused.returncode == 2
    assert "not a certificate and its key" in refused.stderr
    assert "nothing was started" in refused.stderr


def test_down_without_a_controller_is_an_error(home):
    refused = run_elastane("down")
    assert refused.returncode == BadInput.exit_code
    assert "elastane up" in refused.stderr


# -- the record of the controller cannot be written ----------------------------------------------------------


@pytest.fixture
def small_home(make_small_disk, monkeypatch) -> Iterator[Path]:
    """Make a home on a separate small disk."""
    disk = make_small_disk(2 << 20)
    disk.chmod(0o700)
    monkeypatch.setenv("ELASTANE_HOME", str(disk))
    yield disk
    (disk / "ballast").unlink(missing_ok=True)
    run_elastane("down")


def test_a_controller_that_cannot_be_recorded_is_ended_and_the_message_names_the_next_step(
    small_home, tmp_path
):
    store = f"--store=sqlite:///{tmp_path / 'elsewhere.db'}"
    (small_home / "controller.log").touch()
    (small_home / "controller.lock").touch()
    ballast = fill_disk(small_home)
    refused = run_elastane("up", "--detach", "--listen=127.0.0.1:0", store)
    assert refused.returncode == 1
    assert "No space left" in refused.stderr
    assert "was ended again" in refused.stderr
    assert "free some space" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert find_lock_holder(small_home) is None, "its process is still there"
    assert run_elastane("down").returncode == 2

    ballast.unlink()
    # The first token was never printed.
    assert "elastane up --new-token" in refused.stderr
    again = start_controller(store, "--new-token")
    assert again.token
    assert read_running().pid == again.pid == find_lock_holder(small_home)
    assert run_elastane("down").returncode == 0


@pytest.mark.parametrize("logged", [False, True], ids=["no log can be made", "the log is there"])
def test_a_full_disk_is_reported_even_if_nothing_can_be_logged(small_home, logged):
    if logged:
        (small_home / "controller.log").touch()
        (small_home / "controller.lock").touch()
    fill_disk(small_home)
    refused = run_elastane("up", "--detach", "--listen=127.0.0.1:0")
    assert refused.returncode != 0
    assert "is full" in refused.stderr or "No space left" in refused.stderr
    assert "do: " in refused.stderr
    assert "Traceback" not in refused.stderr
    assert find_lock_holder(small_home) is None


@pytest.mark.parametrize("record", ["missing", "of the one before", "cut off"])
def test_down_and_up_find_the_controller_even_if_its_record_is_wrong(home, record):
    first = start_controller()
    path = home / "controller.json"
    recorded = path.read_bytes()
    if record == "missing":
        path.unlink()
    if record == "of the one before":
        before = msgspec.structs.replace(read_running(), pid=os.getppid(), started=1)
        path.write_bytes(msgspec.json.encode(before))
    if record == "cut off":
        path.write_bytes(recorded[:10])
    second = run_elastane("up", "--detach", "--listen=127.0.0.1:0")
    assert second.returncode == 2
    assert f"process {first.pid}" in second.stderr
    down = run_elastane("down", "--json")
    assert down.returncode == 0, down.stderr
    assert msgspec.json.decode(down.stdout) == {"pid": first.pid, "ended": True}
    assert find_lock_holder(home) is None
    path.unlink(missing_ok=True)
