"""A controller in a process of its own, which can be stopped and started again at the same address."""

import subprocess
import sys
from pathlib import Path
from typing import Self

import msgspec

from elastane.cluster.nouns.controller import ControllerReady, ControllerSettings
from tests.waiting import WAIT_S

WITH_AGENT = (
    "import sys; from functools import partial\n"
    "from elastane.cluster.controller import __main__, server\n"
    "server.LocalEngine = partial(server.LocalEngine, agent=tuple(sys.argv[2:]))\n"
    "sys.argv[2:] = []; __main__.main()"
)
"""A controller like that of ``elastane up``, but with another command for the agents of jobs."""


class RealController:
    """A controller with a store in a directory.

    Args:
        root: the directory.
        agent: the command of the agents of its jobs; empty: the usual one.
        devices: of its pool ``local``.

    Attributes:
        url: where it listens.
        token: of an operator.
    """

    def __init__(self, root: Path, agent: tuple[str, ...] = (), devices: int = 1) -> None:
        self._root, self._agent, self._devices = root, agent, devices
        self.url = self.token = ""
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        port = int(self.url.rpartition(":")[2] or 0)
        settings = ControllerSettings(
            home=str(self.home),
            store=f"sqlite:///{self._root}/store.db",
            port=port,
            devices=self._devices,
        )
        program = ("-c", WITH_AGENT) if self._agent else ("-m", "elastane.cluster.controller")
        with (self._root / "controller.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", *program, "--ready-fd=1", *self._agent],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self._process.stdin.write(msgspec.json.encode(settings))
        self._process.stdin.close()
        ready = msgspec.json.decode(self._process.stdout.readline(), type=ControllerReady)
        self.url, self.token = ready.url, ready.token or self.token

    @property
    def home(self) -> Path:
        """The directory of the controller, with those of the runs of its jobs."""
        return self._root / "controller"

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(WAIT_S)
            self._process.stdout.close()
            self._process = None

    def kill(self) -> None:
        """Kill it in the midst of what it does."""
        self._process.kill()
        self._process.wait(WAIT_S)
        self._process.stdout.close()
        self._process = None

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
