"""Connections without the run's secret are refused, and no process listens beyond this machine."""

import json
import socket
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from elastane.run.agent.processes import Commands
from elastane.run.worker.links.frames import HEADER
from tests.waiting import WAIT_S

from .stage import LiveRun

pytestmark = pytest.mark.processes

LOOPBACK = "0100007F"
LISTENING = "0A"


def find_listening_ports(pid: int) -> set[tuple[str, int]]:
    """Return the addresses, in hexadecimal, and the ports on which a process listens, IPv4 and IPv6."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(descriptor.readlink())
        except FileNotFoundError:
            continue  # closed meanwhile
        if target.startswith("socket:["):
            inodes.add(target.removeprefix("socket:[").removesuffix("]"))
    found = set()
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if rest[5] in inodes and (state == LISTENING or table.startswith("udp")):
                address, port = local.split(":")
                found.add((address, int(port, 16)))
    return found


@pytest.fixture(scope="module")
def probed(stage):
    """Connect to each port of a run without its secret; return the results and the run."""
    results: dict[str, object] = {}

    async def disturb(run: LiveRun) -> None:
        answer = await run.wait_for_step(4)
        rows = [row for row in answer.processes if row.role != "agent"]
        results["listening"] = {f"{row.role} {row.worker}": find_listening_ports(row.pid) for row in rows}
        endpoint = json.loads(run.run_dir.endpoint.read_text())
        url = f"ws://{endpoint['host']}:{endpoint['port']}"
        results["websocket"] = [connect_to_coordinator(url, secret) for secret in (None, "", "guess")]
        workers = [
            addresses for process, addresses in results["listening"].items() if process.startswith("worker")
        ]
        results["mesh"] = [is_dropped(port) for addresses in workers for _, port in addresses]
        run.stop_pacing()

    # The standby is a process of its own, not one of the warm process, so that its sockets are seen.
    commands = Commands(fork_server=stage.commands.fork_server)
    return results, stage.play("--paced-from=5", disturb=disturb, start=2, commands=commands)


def connect_to_coordinator(url: str, secret: str | None) -> int:
    headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
    try:
        connect(url, additional_headers=headers, proxy=None).close()
    except InvalidStatus as refusal:
        return refusal.response.status_code
    return 200


def is_dropped(port: int) -> bool:
    """Answer a worker's greeting with noise and wait until it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as connection:
        connection.sendall(HEADER.pack(5, 0) + b"noise")
        try:
            while connection.recv(4096):
                pass
        except ConnectionResetError:
            pass
        return True


def test_the_coordinator_refuses_connections_without_the_secret(probed):
    results, _ = probed
    assert results["websocket"] == [401, 401, 401]


def test_every_worker_drops_connections_without_the_secret(probed):
    results, _ = probed
    assert results["mesh"] == [True, True]


def test_all_processes_listen_on_loopback_only(probed):
    results, _ = probed
    assert {address for addresses in results["listening"].values() for address, _ in addresses} == {LOOPBACK}
    assert {process for process, addresses in results["listening"].items() if addresses} == {
        "coordinator None",
        "worker 0",
        "worker 1",
    }


def test_refused_connections_change_no_byte(probed, assert_equals_reference):
    _, ended = probed
    assert_equals_reference(ended)


def test_only_its_owner_can_read_the_secret_and_no_file_repeats_it(probed):
    _, ended = probed
    secret = ended.run.run_dir.secret
    assert secret.stat().st_mode & 0o777 == 0o600
    assert len(bytes.fromhex(secret.read_text())) == 32
    for path in ended.run.run_dir.root.rglob("*"):
        if path.is_file() and path != secret:
            assert secret.read_bytes() not in path.read_bytes(), path
