"""Carries out the network faults of a history."""

from typing import NamedTuple, Protocol

from elastane.run.nouns.membership import WorkerId
from tests.run.simulator.clock import Clock
from tests.run.simulator.faulty_network import FaultyNetwork, NumberPartition
from tests.run.simulator.needless_kills import KillCheck
from tests.run.simulator.network_faults import (
    BreakLink,
    CutControl,
    NetworkFault,
    PartMesh,
    SilentDeath,
    WallOff,
)
from tests.run.simulator.worker import SimWorker

BEFORE_MEMBERS_S = 0.2
"""A fault before the first generation works is postponed by this time."""


class FaultyWorld(Protocol):
    """The parts of the simulation that network faults concern."""

    clock: Clock
    peer_network: FaultyNetwork
    kill_check: KillCheck
    workers: dict[WorkerId, SimWorker]

    @property
    def is_over(self) -> bool: ...

    def choose_victim(self, which: int) -> SimWorker | None: ...

    def allow_failed_join(self) -> bool: ...

    def record_fault(self) -> None: ...

    def disconnect(self, worker: WorkerId) -> None: ...


class _Wall(NamedTuple):
    until_s: float
    behind: tuple[WorkerId, ...]


class NetworkInjector:
    """Carries out network faults.

    Args:
        world: the parts that it changes.
    """

    def __init__(self, world: FaultyWorld) -> None:
        self._world = world
        self._walls: list[_Wall] = []
        self._cut: dict[WorkerId, float] = {}

    def inject(self, fault: NetworkFault) -> None:
        """Carry out a fault, once a generation works."""
        world = self._world
        if world.is_over:
            return
        world.record_fault()
        if not any(worker.alive and worker.member.works_in for worker in world.workers.values()):
            world.clock.schedule_after(BEFORE_MEMBERS_S, lambda: self.inject(fault))
            return
        before = set(world.peer_network.broken)
        match fault:
            case BreakLink():
                self._break_link(fault)
            case PartMesh():
                self._part(fault)
            case WallOff():
                self._wall_off(fault)
            case CutControl():
                self._cut_control(fault)
            case SilentDeath(which=which):
                if (victim := world.choose_victim(which)) is not None:
                    victim.die(silent=True)
        world.kill_check.record_broken(world.peer_network.broken - before)

    def handle_start(self, worker: WorkerId) -> None:
        """Put a new worker behind the present walls, and on a side of the present partitions."""
        for wall in self._walls:
            if self._world.clock.now < wall.until_s and self._world.allow_failed_join():
                for other in wall.behind:
                    self._world.peer_network.sever(worker, other)
        self._spare_joiner(worker)

    def is_cut_off(self, worker: WorkerId) -> bool:
        """Return whether the worker and the coordinator cannot reach each other now."""
        return self._cut.get(worker, 0.0) > self._world.clock.now

    # -- the faults --------------------------------------------------------------------------------------

    def _list_living(self) -> list[SimWorker]:
        return [worker for worker in self._world.workers.values() if worker.alive]

    def _break_link(self, fault: BreakLink) -> None:
        living = self._list_living()
        if len(living) < 2:
            return
        a = living.pop(fault.a % len(living))
        b = living[fault.b % len(living)]
        joins = a.member.works_in == 0 or b.member.works_in == 0
        if joins and not self._world.allow_failed_join():
            return
        self._world.peer_network.sever(a.worker, b.worker)
        self._world.peer_network.break_link(a.worker, b.worker, one_way=fault.one_way)

    def _part(self, fault: PartMesh) -> None:
        partition = NumberPartition(fault.side)
        network = self._world.peer_network
        network.begin_partition(partition)
        for worker in self._list_living():
            if worker.member.works_in == 0:
                self._spare_joiner(worker.worker)
        network.break_links(partition, one_way=fault.one_way)

        def heal() -> None:
            network.heal(partition)
            self._world.record_fault()

        self._world.clock.schedule_after(fault.for_s, heal)

    def _spare_joiner(self, worker: WorkerId) -> None:
        """Let no partition concern a joiner if too many joins would fail."""
        network = self._world.peer_network
        apart = any(network.are_apart(worker, other.worker) for other in self._list_living())
        if apart and not self._world.allow_failed_join():
            network.spared.add(worker)

    def _wall_off(self, fault: WallOff) -> None:
        living = [worker.worker for worker in self._list_living()]
        chosen = tuple({living[which % len(living)] for which in fault.from_})
        self._walls.append(_Wall(self._world.clock.now + fault.for_s, chosen or tuple(living)))
        self._world.clock.schedule_after(fault.for_s, self._world.record_fault)

    def _cut_control(self, fault: CutControl) -> None:
        living = self._list_living()
        worker = living[fault.which % len(living)]
        self._cut[worker.worker] = self._world.clock.now + fault.for_s
        self._world.disconnect(worker.worker)

        def reconnect() -> None:
            self._world.record_fault()
            if not self.is_cut_off(worker.worker):
                worker.reconnect()

        self._world.clock.schedule_after(fault.for_s, reconnect)
