"""Worlds of unmodified scripts: no two are ever alive at once, and none is waited for forever."""

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from elastane.run.nouns.control import AskDrain, AskEvict, AskResize, AskStop
from elastane.run.scripts.worlds.decisions import (
    DEATH_GRACE_S,
    MOST_QUICK_DEATHS,
    advance,
    choose_workers,
    find_next_time,
)
from elastane.run.scripts.worlds.environment import WorldAddress, build_rank_environment
from elastane.run.scripts.worlds.messages import (
    AnnounceStop,
    EndRun,
    KillWorld,
    OutputSeen,
    RankExited,
    ServerLost,
    ServerReady,
    StartWorld,
    WorldGone,
)
from elastane.run.scripts.worlds.state import LocalRank, Over, Running, World, WorldRules

GRACE_S = 20.0


@dataclass
class Machine:
    """A machine that carries out the actions: its processes die of SIGKILL, and of SIGTERM if they like."""

    world: World
    now_s: float = 0.0
    living: dict[LocalRank, int] = field(default_factory=dict)
    announced_s: float | None = None
    over: Over | None = None
    starts: list[tuple[int, ...]] = field(default_factory=list)

    def feed(self, *inputs) -> None:
        self.world, actions = advance(self.world, inputs, self.now_s)
        for action in actions:
            match action:
                case StartWorld(generation=generation, workers=workers):
                    assert not self.living, "two worlds at once"
                    assert self.over is None
                    assert 0 < len(workers) == len(set(workers))
                    self.starts.append(workers)
                    self.living = dict.fromkeys(self.world.ranks, generation)
                    self.announced_s = None
                case AnnounceStop():
                    self.announced_s = self.now_s
                case KillWorld():
                    self.kill_all()
                case EndRun(over=over):
                    assert not self.living, "processes outlive the run"
                    self.over = over

    def kill_all(self) -> None:
        for rank in sorted(self.living):
            self.exit(rank, -9)

    def exit(self, rank: LocalRank, code: int) -> None:
        generation = self.living.pop(rank, None)
        if generation is None:
            return
        self.feed(RankExited(generation, rank, code))
        if not self.living:
            self.feed(WorldGone(generation))

    def pass_time(self, seconds: float) -> None:
        """Let time pass; decisions are made when they are due."""
        end = self.now_s + seconds
        while (due := find_next_time(self.world)) is not None and due <= end and self.over is None:
            self.now_s = max(self.now_s, due)
            before = self.world
            self.feed()
            assert self.world != before, "a decision that is due must change something"
        self.now_s = end
        if self.over is None:
            self.feed()


steps = st.lists(
    st.one_of(
        st.tuples(st.just("resize"), st.integers(1, 5)),
        st.tuples(st.just("drain"), st.integers(0, 6)),
        st.tuples(st.just("kill"), st.integers(0, 9)),
        st.tuples(st.just("fail"), st.integers(0, 9)),
        st.tuples(st.just("finish"), st.integers(0, 9)),
        st.tuples(st.just("save"), st.integers(0, 9)),
        st.tuples(st.just("server"), st.just(0)),
        st.tuples(st.just("evict"), st.just(0)),
        st.tuples(st.just("wait"), st.integers(0, 30)),
    ),
    max_size=40,
)


def start_machine(
    *,
    workers: int = 1,
    processes: int = 1,
    restarts: int = 0,
    ready: bool = True,
    stall_s: float | None = None,
) -> Machine:
    machine = Machine(World(WorldRules(processes, GRACE_S, restarts, stall_s), target=workers))
    if ready:
        machine.feed(ServerReady())
    return machine


def disturb(machine: Machine, kind: str, number: int) -> None:
    ranks = sorted(machine.living)
    rank = ranks[number % len(ranks)] if ranks else None
    match kind:
        case "resize":
            machine.feed(AskResize(workers=number))
        case "drain":
            machine.feed(AskDrain(worker=number))
        case "kill" if rank is not None:
            machine.exit(rank, -9)
        case "fail" if rank is not None:
            machine.exit(rank, 1)
        case "finish" if rank is not None:
            machine.exit(rank, 0)
        case "save" if machine.announced_s is not None and rank is not None:
            machine.exit(rank, 0)
        case "server":
            machine.living.clear()
            machine.feed(ServerLost())
            machine.feed(ServerReady())
        case "evict":
            machine.feed(AskEvict())
        case "wait":
            machine.pass_time(number)


@settings(max_examples=400)
@given(steps, st.integers(1, 3), st.integers(1, 2), st.integers(0, 2))
def test_two_worlds_are_never_alive_at_once_and_every_stop_ends(history, workers, processes, restarts):
    machine = start_machine(workers=workers, processes=processes, restarts=restarts)
    for kind, number in history:
        if machine.over is None:
            disturb(machine, kind, number)
    # Nothing else happens: the processes that were asked to stop ignore it.
    machine.pass_time(10 * GRACE_S)
    if machine.over is not None:
        return
    assert isinstance(machine.world.phase, Running)
    if machine.world.phase.finishing_s is None:
        assert machine.world.workers == choose_workers(machine.world)[0]
    machine.feed(AskStop())
    machine.pass_time(GRACE_S)
    assert machine.over is not None
    assert machine.over.kind == "run.stopped"


@given(st.lists(st.integers(1, 6), max_size=20), st.integers(1, 6))
def test_the_oldest_worker_keeps_rank_0_and_the_newest_leave_first(sizes, first):
    machine = start_machine(workers=first)
    for size in sizes:
        before = machine.world.workers
        machine.feed(AskResize(workers=size))
        machine.pass_time(GRACE_S)
        after = machine.world.workers
        assert after[: min(len(before), size)] == before[:size]
        assert len(after) == size


@given(st.integers(1, 4), st.integers(1, 4))
def test_the_environment_numbers_all_processes_once(workers, processes):
    world = start_machine(workers=workers, processes=processes).world
    address = WorldAddress("run", restarts=0)
    found = [build_rank_environment(world, rank, address, {}) for rank in world.ranks]
    assert [int(one["RANK"]) for one in found] == list(range(workers * processes))
    assert {one["WORLD_SIZE"] for one in found} == {str(workers * processes)}
    places = [(int(one["GROUP_RANK"]), int(one["LOCAL_RANK"])) for one in found]
    assert places == [(group, local) for group in range(workers) for local in range(processes)]


def test_a_world_that_prints_nothing_has_failed_and_one_that_prints_has_not():
    machine = start_machine(workers=2, restarts=1, stall_s=60)
    for _ in range(3):
        machine.pass_time(50)
        machine.feed(OutputSeen(machine.world.generation))
    assert machine.starts == [(0, 1)]
    machine.pass_time(59)
    assert machine.announced_s is None
    machine.pass_time(5)
    assert machine.starts == [(0, 1)] * 2
    # Output of the earlier world is none of this one.
    machine.feed(OutputSeen(1))
    machine.pass_time(64)
    assert machine.over is not None
    assert machine.over.kind == "run.failed"
    assert machine.over.why == (
        "no process has printed anything for 60 s (--stall-timeout), after 1 restart (--max-restarts)"
    )


def test_without_a_limit_a_world_may_be_silent_for_ever():
    machine = start_machine()
    machine.pass_time(1e7)
    assert machine.starts == [(0,)]


def test_several_changes_within_one_stop_are_one_restart():
    machine = start_machine()
    machine.feed(AskResize(workers=2))
    machine.feed(AskResize(workers=4))
    machine.feed(AskResize(workers=3))
    machine.exit(LocalRank(0, 0), 0)
    assert machine.starts == [(0,), (0, 1, 2)]


def test_the_survivors_of_a_death_get_a_shorter_time_than_others():
    machine = start_machine(workers=3)
    machine.exit(LocalRank(1, 0), -9)
    machine.pass_time(DEATH_GRACE_S - 0.1)
    assert machine.starts == [(0, 1, 2)]
    machine.pass_time(0.2)
    assert machine.starts == [(0, 1, 2)] * 2


def test_a_death_while_others_save_shortens_their_time_too():
    machine = start_machine(workers=3)
    machine.feed(AskResize(workers=2))
    machine.exit(LocalRank(1, 0), -9)
    machine.pass_time(DEATH_GRACE_S)
    assert machine.starts[-1] == (0, 1)


def test_a_process_that_ends_early_with_exit_code_0_stops_no_other():
    machine = start_machine(workers=2)
    machine.exit(LocalRank(1, 0), 0)
    machine.feed(AskResize(workers=4))
    machine.pass_time(10 * GRACE_S)
    assert machine.starts == [(0, 1)]
    machine.exit(LocalRank(0, 0), 0)
    assert machine.over is not None
    assert machine.over.kind == "run.finished"


def test_a_failure_restarts_all_as_often_as_allowed_and_a_death_does_not_count():
    machine = start_machine(workers=2, restarts=1)
    for code in (-9, 1, -9):
        machine.exit(LocalRank(1, 0), code)
        machine.pass_time(GRACE_S)
        assert machine.over is None
    machine.exit(LocalRank(0, 0), 3)
    machine.pass_time(GRACE_S)
    assert machine.over is not None
    assert machine.over.kind == "run.failed"
    assert machine.over.failure is not None
    assert (machine.over.failure.rank, machine.over.failure.code) == (LocalRank(0, 0), 3)


def test_a_script_that_is_killed_again_and_again_at_its_start_ends():
    machine = start_machine()
    for _ in range(MOST_QUICK_DEATHS):
        assert machine.over is None
        machine.exit(LocalRank(0, 0), -9)
        while not machine.living and machine.over is None:
            machine.pass_time(1.0)
    assert machine.over is not None
    assert "10 times in a row" in machine.over.why


def test_a_run_without_a_fork_server_waits():
    machine = start_machine(ready=False)
    machine.pass_time(1000.0)
    assert machine.starts == []
    machine.feed(ServerReady())
    assert machine.starts == [(0,)]


def test_messages_about_an_earlier_world_change_nothing():
    machine = start_machine(workers=2)
    machine.exit(LocalRank(0, 0), -9)
    machine.pass_time(DEATH_GRACE_S)
    world = machine.world
    machine.feed(RankExited(1, LocalRank(1, 0), 1), WorldGone(1))
    assert machine.world == replace(world)


def test_a_survivor_that_fails_before_the_killed_process_has_ended_is_no_failure():
    machine = start_machine(workers=2)
    # The connections of a killed process close before it has ended.
    machine.exit(LocalRank(0, 0), 1)
    machine.exit(LocalRank(1, 0), -9)
    assert machine.starts == [(0, 1)] * 2
    assert machine.world.failures == 0


def test_the_process_that_crashed_explains_a_failure_that_followed_from_it():
    machine = start_machine(workers=2)
    machine.exit(LocalRank(0, 0), 1)
    machine.exit(LocalRank(1, 0), -11)
    assert machine.over is not None
    assert machine.over.why == "worker 1 failed: killed by SIGSEGV"
