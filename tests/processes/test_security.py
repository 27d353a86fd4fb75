"""Whoever does not know the run's secret is not listened to, and nothing listens beyond this machine."""

import json
import socket
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from elastane.runtime.links.frames import HEADER

from .stage import Running

pytestmark = pytest.mark.processes

LOOPBACK = "0100007F"
LISTENING = "0A"


def listening(pid: int) -> set[tuple[str, int]]:
    """Addresses, in the kernel's hexadecimal, and ports a process listens on, IPv4 and IPv6."""
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
def visited(stage):
    """One run, visited by strangers in the middle of its training; what they met."""
    met: dict[str, object] = {}

    async def story(running: Running) -> None:
        answer = await running.until_step(4)
        rows = [row for row in answer.processes if row.role != "agent"]
        met["listening"] = {f"{row.role} {row.worker}": listening(row.pid) for row in rows}
        endpoint = json.loads(running.run_dir.endpoint.read_text())
        url = f"ws://{endpoint['host']}:{endpoint['port']}"
        met["websocket"] = [refused(url, secret) for secret in (None, "", "guess")]
        workers = [addresses for who, addresses in met["listening"].items() if who.startswith("worker")]
        met["mesh"] = [hung_up_on(port) for addresses in workers for _, port in addresses]
        running.go()

    return met, stage.play("--paced-from=5", story=story, start=2)


def refused(url: str, secret: str | None) -> int:
    headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
    try:
        connect(url, additional_headers=headers, proxy=None).close()
    except InvalidStatus as refusal:
        return refusal.response.status_code
    return 200


def hung_up_on(port: int) -> bool:
    """A worker drops whoever answers its greeting with noise."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as stranger:
        stranger.sendall(HEADER.pack(5, 0) + b"noise")
        try:
            while stranger.recv(4096):
                pass
        except ConnectionResetError:
            pass
        return True


def test_a_connection_without_the_secret_is_unauthorised(visited):
    met, _ = visited
    assert met["websocket"] == [401, 401, 401]


def test_a_stranger_is_dropped_by_every_worker(visited):
    met, _ = visited
    assert met["mesh"] == [True, True]


def test_everything_listens_on_loopback_only(visited):
    met, _ = visited
    assert {address for addresses in met["listening"].values() for address, _ in addresses} == {LOOPBACK}
    assert {who for who, addresses in met["listening"].items() if addresses} == {
        "coordinator None",
        "worker 0",
        "worker 1",
    }


def test_the_training_does_not_notice(visited, assert_undisturbed):
    _, ended = visited
    assert_undisturbed(ended)


def test_the_secret_is_its_owners_alone(visited):
    _, ended = visited
    secret = ended.run.run_dir.secret
    assert secret.stat().st_mode & 0o777 == 0o600
    assert len(bytes.fromhex(secret.read_text())) == 32
    for path in ended.run.run_dir.root.rglob("*"):
        if path.is_file() and path != secret:
            assert secret.read_bytes() not in path.read_bytes(), path
