"""A machine with the ticket of a site takes part as this site, and leaves once the ticket is not valid."""

import msgspec
import pytest

from elastane.run.coordinator.actions import SendToAgent, TicketsRead
from elastane.run.machines.tickets.ticket_files import TicketStatus
from elastane.run.machines.tickets.tickets import create_ticket, present_ticket
from elastane.run.nouns.control import AgentReport, ProcessInfo, RunOver, SetTarget
from tests.run.unit.coordinator.conftest import PINNED

BOUND = msgspec.structs.replace(PINNED, rank_sites=("berlin",) * 4 + ("boston",) * 4)
FIRST_OF_B = 100


class Owners:
    """The tickets of the sites of a run, and a machine b that joins with one."""

    def __init__(self, stage) -> None:
        self.stage = stage
        self.tickets: dict[str, TicketStatus] = {}
        self.presented = ""
        self.workers: tuple[int, ...] = ()
        self.refused: list[RunOver] = []
        self.order = SetTarget(target=0)

    def issue(self, *sites: str, valid_s: float | None = None) -> str:
        ticket, record = create_ticket(bytes(32), (("10.0.0.5", 1),), sites=sites, valid_s=valid_s)
        # The clock of the stage is far behind.
        record = msgspec.structs.replace(record, expires=valid_s and self.stage.now + valid_s)
        self.tickets[ticket.id] = TicketStatus(ticket.id, record, 0, revoked=False)
        self.read()
        return present_ticket(ticket)

    def read(self) -> None:
        self.stage.receive(TicketsRead(tuple(self.tickets.values())))

    def revoke(self, presented: str) -> None:
        ticket_id = presented.partition(".")[0]
        self.tickets[ticket_id] = msgspec.structs.replace(self.tickets[ticket_id], revoked=True)
        self.read()

    def report(self, *sites: str, node: str = "b", leaving: bool = False) -> None:
        """Let the agent of machine b report, which starts no worker by itself."""
        actions = self.stage.receive(
            AgentReport(
                pid=7,
                target=self.order.target,
                term=0,
                node=node,
                joins=True,
                slots=1,
                numbers=((FIRST_OF_B, FIRST_OF_B + 100),),
                leaving=leaving,
                total=self.order.total,
                nodes=self.order.nodes,
                draining=self.order.drain,
                workers=tuple(ProcessInfo(role="worker", pid=w, worker=w) for w in self.workers),
                sites=sites or ("boston",),
                ticket=self.presented,
            )
        )
        for action in actions:
            if isinstance(action, SendToAgent) and action.node == "b":
                self.refused += [action.message] if isinstance(action.message, RunOver) else []
                self.order = action.message if isinstance(action.message, SetTarget) else self.order

    def pass_time(self, seconds: int) -> None:
        for _ in range(seconds):
            self.stage.now += 1
            self.stage.report_agent(sites=("berlin",))
            self.report()

    def join(self, *sites: str) -> None:
        """Let machine b take part with one worker, which is ready."""
        self.report()
        self.workers = (FIRST_OF_B,)
        self.report()
        self.stage.report_worker(
            FIRST_OF_B, state="ready", node="b", pinned=BOUND, sites=sites or ("boston",)
        )


@pytest.fixture
def without_tickets(open_stage):
    stage = open_stage(start=1)
    stage.alive, stage.target = {0}, 1
    stage.report_agent(sites=("berlin",))
    stage.report_worker(0, state="ready", pinned=BOUND, sites=("berlin",))
    return Owners(stage)


@pytest.fixture
def owners(without_tickets):
    without_tickets.presented = without_tickets.issue("boston")
    return without_tickets


def list_events(owners, kind):
    return [event for event in owners.stage.written if event.kind == kind]


def test_a_machine_with_the_ticket_of_its_site_takes_part(owners) -> None:
    owners.join()
    assert owners.stage.newest.workers == (0, FIRST_OF_B)
    (joined,) = list_events(owners, "node.joined")
    assert joined.detail == {"ticket": owners.presented.partition(".")[0]}
    assert owners.presented.partition(".")[2] not in str(owners.stage.written)


def test_a_machine_with_the_ticket_of_another_site_is_refused_in_words(owners) -> None:
    for _ in range(3):
        owners.report("berlin")
    assert owners.refused[0].code == 2
    assert "the ticket is one of site boston, and the machine names berlin" in owners.refused[0].why
    assert len(list_events(owners, "node.refused")) == 1
    assert "b" not in owners.stage.roster.nodes.reports
    owners.report("boston")
    assert "b" in owners.stage.roster.nodes.reports


def test_a_machine_without_a_ticket_of_the_site_is_refused(owners) -> None:
    owners.presented = ""
    owners.report()
    assert len(owners.refused) == 1
    assert owners.stage.roster.nodes.reports.keys() == {""}


@pytest.mark.parametrize("presented", ["00000000.00", "x", f"00000000.{'0' * 32}"])
def test_a_ticket_that_the_run_does_not_know_is_refused_after_a_while(owners, presented) -> None:
    known, owners.presented = owners.presented, presented
    owners.report()
    assert owners.refused == []
    owners.pass_time(6)
    assert {over.why for over in owners.refused} == {
        "the run does not admit this machine: the run has no such ticket"
    }
    assert len(list_events(owners, "node.refused")) == 1
    assert owners.stage.roster.nodes.reports.keys() == {""}
    # A new one may appear late.
    owners.presented = known
    owners.report()
    assert owners.stage.roster.nodes.reports.keys() == {"", "b"}


def test_a_worker_that_names_another_site_than_the_ticket_is_refused_alone(owners) -> None:
    owners.join("berlin")
    (refused,) = list_events(owners, "worker.refused")
    assert "the ticket is one of site boston, and the machine names berlin" in refused.why
    assert owners.stage.roster.over is None
    assert owners.stage.roster.newest is None


@pytest.mark.parametrize("node", ["", "c"])
def test_a_worker_that_names_another_machine_than_its_own_joins_nothing(owners, node) -> None:
    owners.report()
    owners.workers = (FIRST_OF_B,)
    owners.report()
    owners.stage.report_worker(FIRST_OF_B, state="ready", node=node, pinned=BOUND, sites=("boston",))
    owners.stage.wait(1.0)
    assert owners.stage.roster.newest is None


def train_with_both(owners) -> None:
    owners.join()
    owners.stage.adopt(step=1)
    assert owners.stage.roster.whole


def leave(owners) -> None:
    """Play the end of the worker of b, and of its agent."""
    owners.stage.adopt(0, step=2)
    owners.stage.report_worker(FIRST_OF_B, state="leaving", step=2)
    owners.workers = ()
    owners.report(leaving=True)


def test_the_machines_of_a_revoked_ticket_leave_in_order(owners) -> None:
    train_with_both(owners)
    owners.revoke(owners.presented)
    owners.report()
    assert owners.order.leave
    why = [event.why for event in list_events(owners, "drain.requested")]
    assert why[0] == "node b must leave, because the ticket was revoked"
    newest = owners.stage.newest
    assert (newest.workers, [one.worker for one in newest.leaving]) == ((0,), [FIRST_OF_B])
    leave(owners)
    assert [event.who for event in list_events(owners, "node.left")] == ["node b"]
    assert owners.refused == []
    owners.report()
    assert owners.refused[-1].why == "the run does not admit this machine: the ticket was revoked"


def test_a_machine_that_does_not_obey_is_in_no_generation_of_the_run(owners) -> None:
    train_with_both(owners)
    owners.revoke(owners.presented)
    for _ in range(3):
        owners.report()
        # It starts another worker instead of leaving.
        owners.workers = (*owners.workers, FIRST_OF_B + len(owners.workers))
        owners.stage.report_worker(
            owners.workers[-1], state="ready", node="b", pinned=BOUND, sites=("boston",)
        )
    assert owners.stage.newest.workers == (0,)
    assert owners.stage.roster.wanted.target == 1


def test_a_ticket_that_expires_ends_the_part_of_its_machines(owners) -> None:
    owners.presented = owners.issue("boston", valid_s=60)
    train_with_both(owners)
    owners.pass_time(50)
    assert not owners.order.leave
    owners.pass_time(20)
    assert owners.order.leave


def test_other_machines_of_the_run_stay(owners) -> None:
    train_with_both(owners)
    owners.revoke(owners.issue("boston"))
    owners.report()
    assert not owners.order.leave
    assert owners.stage.newest.workers == (0, FIRST_OF_B)


def test_a_machine_of_the_site_that_came_before_its_first_ticket_stays(without_tickets) -> None:
    owners = without_tickets
    train_with_both(owners)
    owners.issue("boston")
    owners.report()
    assert owners.refused == []
    assert owners.stage.newest.workers == (0, FIRST_OF_B)


def test_one_machine_stays_if_the_tickets_of_all_are_revoked(owners) -> None:
    train_with_both(owners)
    first = {"sites": ("berlin",), "leaving": True, "joins": True, "slots": 1}
    owners.stage.report_agent(**first)
    owners.stage.adopt(FIRST_OF_B, step=2)
    owners.stage.report_worker(0, state="leaving", step=2)
    owners.stage.alive.clear()
    owners.stage.report_agent(**first)
    # The last two machines have the same ticket.
    for workers in ((), (300,)):
        processes = tuple(ProcessInfo(role="worker", pid=w, worker=w) for w in workers)
        owners.stage.receive(
            AgentReport(
                pid=8,
                node="c",
                joins=True,
                slots=1,
                target=1,
                numbers=((300, 400),),
                workers=processes,
                sites=("boston",),
                ticket=owners.presented,
                term=0,
            )
        )
    owners.stage.report_worker(300, state="ready", node="c", pinned=BOUND, sites=("boston",))
    owners.stage.adopt(step=3)
    owners.revoke(owners.presented)
    assert owners.stage.roster.nodes.drained == {"b"}
    assert list_events(owners, "stop.requested") == []
    assert owners.stage.newest.workers == (300,)


def test_a_new_coordinator_that_sees_no_ticket_yet_lets_no_machine_leave(owners) -> None:
    train_with_both(owners)
    seen, owners.tickets = owners.tickets, {}
    owners.read()
    owners.pass_time(4)
    assert not owners.order.leave
    owners.tickets = seen
    owners.read()
    owners.pass_time(10)
    assert not owners.order.leave
    owners.tickets = {}
    owners.read()
    owners.pass_time(6)
    assert owners.order.leave
