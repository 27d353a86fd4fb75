"""An `EngineSite` of Ray, for the contract of engines and other tests."""

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Client
from pathlib import Path
from signal import SIGCONT, SIGSTOP

from elastane.cluster.engines.ray.engine import RayEngine
from elastane.cluster.engines.ray.options import RayOptions
from tests.cluster.engines.agent_desk import COMMAND, AgentDesk
from tests.waiting import WAIT_S

PROGRAM = (sys.executable, "-I", "-S", str(Path(__file__).with_name("small_ray.py")))


class SmallRayHead:
    """A small Ray that runs until it is closed.

    Attributes:
        python: the Python of this Ray, for the option of an engine.
    """

    def __init__(self) -> None:
        # Not below pytest's folders: the path of a socket has at most 107 characters.
        self._folder = tempfile.TemporaryDirectory(prefix="elastane-ray-")
        self._socket = f"{self._folder.name}/head"
        self.process = subprocess.Popen(
            (*PROGRAM, "head", self._socket), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.process.stdout.readline() == b"ready\n"
        self.python = Path(self._folder.name) / "python"
        self.python.write_text(f'#!/bin/sh\nexec {" ".join(PROGRAM)} driver {self._socket} "$@"\n')
        self.python.chmod(0o700)

    def tell(self, what: str, *arguments: object) -> object:
        """Let the head do something."""
        with Client(self._socket, "AF_UNIX") as line:
            line.send((what, arguments))
            return line.recv()

    def close(self) -> None:
        self.process.communicate(timeout=WAIT_S)
        self._folder.cleanup()


class SmallRaySite:
    """A site with the small Ray."""

    pool: Mapping[str, str] = {}

    def __init__(self, runner: asyncio.Runner) -> None:
        self.head = SmallRayHead()
        self.python, self.tell = self.head.python, self.head.tell
        self.desk = AgentDesk()
        self.run = runner.run
        self.engines: list[RayEngine] = []

    def build_options(self, **changes) -> RayOptions:
        return RayOptions(**{"python": str(self.python), "command": COMMAND, "answer_s": WAIT_S} | changes)

    def build_engine(self, cluster: str, *, answer_s: float = WAIT_S, **changes) -> RayEngine:
        engine = RayEngine(cluster, self.build_options(answer_s=answer_s, **changes))
        self.engines.append(engine)
        return engine

    @contextmanager
    def silence(self) -> Iterator[None]:
        self.head.process.send_signal(SIGSTOP)
        try:
            yield
        finally:
            self.head.process.send_signal(SIGCONT)

    def close(self) -> None:
        for engine in self.engines:
            self.run(engine.close())
        self.desk.close()
        self.head.close()
