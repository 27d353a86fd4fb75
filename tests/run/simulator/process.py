"""The process of a simulated worker, which acts, stops, continues and dies."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Protocol

from elastane.run.nouns.control import WorkerState
from elastane.run.nouns.membership import WorkerId
from elastane.run.protocol import events
from elastane.run.protocol.member_machine import MemberMachine
from tests.run.simulator.clock import Clock
from tests.run.simulator.faulty_network import FaultyNetwork
from tests.run.simulator.memory import Memory
from tests.run.simulator.network import Endpoint


class ProcessWorld(Protocol):
    """The parts of the simulation that the process of a worker can reach."""

    clock: Clock
    peer_network: FaultyNetwork

    def handle_end(
        self, worker: WorkerId, code: int, *, hung: bool = False, silent: bool = False
    ) -> None: ...

    def narrate(self, line: Callable[[], str]) -> None: ...


class WorkerProcess(Endpoint):
    """The process of a worker, as the other parts of the simulator see it.

    Args:
        worker: the number of the worker.
        world: the parts that its process can reach.
        slowness: the factor on the durations of its virtual ranks.
        memory: the state and the sums of the worker.
        member: the worker's side of the protocol.
    """

    def __init__(
        self, worker: WorkerId, world: ProcessWorld, slowness: float, memory: Memory, member: MemberMachine
    ) -> None:
        super().__init__(worker)
        self.slowness = slowness
        self.memory = memory
        self.member = member
        self.state: WorkerState = "starting"
        self._world = world
        self.paused = False
        # A fault of its machine spoils gradients of spot checks.
        self.spoils = False
        self._deferred: list[Callable[[], None]] = []

    def find_process(self, number: int) -> "WorkerProcess":
        """Return the process with this number, of a worker of several."""
        raise AssertionError(f"worker {self.worker} has no process {number}")

    @abstractmethod
    def handle(self, event: events.Event) -> None:
        """Pass an event to the member and perform its actions."""

    @abstractmethod
    def report(self) -> None:
        """Report to the coordinator if the state has changed."""

    def draw_duration(self, longest_s: float) -> float:
        """Draw a duration."""
        return self._world.clock.random.random() * longest_s

    def guard(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Wrap a callback: a dead process does not run it, a stopped one runs it when it continues."""

        def run() -> None:
            if not self.alive:
                return
            if self.paused:
                self._deferred.append(run)
            else:
                callback()

        return run

    def schedule(self, delay_s: float, callback: Callable[[], None]) -> None:
        self._world.clock.schedule_after(delay_s, self.guard(callback))

    def die(self, code: int = -9, *, hung: bool = False, silent: bool = False) -> None:
        """End the process.

        Args:
            code: its exit code.
            hung: the agent killed it because it was silent.
            silent: no connection closes, so that all others notice it late.
        """
        if not self.alive:
            return
        self.alive = False
        self._world.narrate(lambda: f"worker {self.worker} " + ("goes" if code == 0 else "dies"))
        if silent:
            self._world.peer_network.silence(self.worker)
        else:
            self._world.peer_network.cut(self.worker)
        self._world.handle_end(self.worker, code, hung=hung, silent=silent)

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        deferred, self._deferred = self._deferred, []
        for callback in deferred:
            callback()
