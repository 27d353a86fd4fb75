"""Every line of the controller's log has a timestamp."""

import re
import socket
import subprocess
import sys

import msgspec

from elastane.cluster.nouns.controller import ControllerSettings
from tests.waiting import WAIT_S

TIMED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")


def started():
    """Start a controller in a process of its own, before it has received its settings."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "elastane.cluster.controller", "--ready-fd=1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_log_lines_of_the_server_and_of_its_end_have_a_timestamp(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        wish = ControllerSettings(home=str(tmp_path), store=f"sqlite:///{tmp_path}/store.db", port=port)
        with started() as controller:
            _, said = controller.communicate(msgspec.json.encode(wish), timeout=WAIT_S)
    assert controller.returncode == 2
    assert TIMED.match(said.decode())
    assert f"error: cannot listen on 127.0.0.1:{port}" in said.decode()
    with started() as controller:
        controller.stdin.write(msgspec.json.encode(wish))
        controller.stdin.close()
        assert controller.stdout.readline()
        with socket.create_connection(("127.0.0.1", port)) as line:
            line.sendall(b"no HTTP\r\n\r\n")
            line.recv(1000)
        controller.terminate()
        said = controller.stderr.read().decode()
    warned = [one for one in said.splitlines() if "Invalid HTTP request" in one]
    assert warned
    assert all(TIMED.match(one) for one in said.splitlines()), said
