"""A run on several machines, each with an agent of its own, gives the bytes of one worker.

Here the machines are addresses of this one: the run listens at 127.0.0.2.
"""

import asyncio
import contextlib
import os
import signal
import stat
import subprocess
import sys
from collections import Counter
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from elastane.integrations.recipes.traffic import count_node_traffic
from elastane.run.connections.endpoint import read_endpoint
from elastane.run.machines.agents.node_agent import NodeAgent
from elastane.run.machines.claims.records import GenerationClaim, OutcomeClaim, TermClaim
from elastane.run.machines.claims.urls import find_claims, open_claim_list
from elastane.run.machines.succession import silence
from elastane.run.nouns.control import AskDrainNode, AskResize
from elastane.run.nouns.machine_address import MachineAddress
from elastane.run.nouns.records import TRAFFIC
from elastane.run.nouns.rundir import CERTIFICATE, RunDir
from elastane.run.nouns.silence_limits import SILENCE_S
from elastane.run.observability.run_files import read_run
from elastane.run.protocol.tree import expand_spans
from tests.object_store import serve_object_store
from tests.waiting import wait_until_async

from .skipping import skip_except_in_ci
from .stage import SHORT_SILENCE_S, VIRTUAL_RANKS, find_members, get_state, is_alive, kill

pytestmark = pytest.mark.processes

HIDDEN = ("unshare", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child")
"""Begins a program that sees no processes from before, and that others know by other process ids."""

EVALUATED_STEP = 7
"""In the script."""
GRADIENT_BYTES = 4 * (12 * 256 + 2 * 256 + 257 * 500 + 501 * 4)
"""The bytes of all gradients of the script's model."""

ADDRESS = "127.0.0.2"
HERE = MachineAddress(ADDRESS)
NODES = {"listen": ADDRESS, "start": 2, "silence_s": SHORT_SILENCE_S}


@asynccontextmanager
async def join(stage, run, name, slots=2, *, address=HERE, say=print):
    """Let another machine take part; leaving the context ends its agent."""
    run_dir = RunDir(run.run_dir.root, name)
    agent = NodeAgent(
        run_dir, run.agent.spec, address, slots=slots, begins=False, commands=stage.commands, say=say
    )
    task = asyncio.create_task(agent.run())
    try:
        yield agent
    finally:
        if not task.done():
            agent.kill()
        await task


def has_a_copy_on_each_machine(answer):
    """Return whether the workers 0 and 1 hold as many blocks together as the workers 100 and 101."""
    blocks = {row.worker: row.blocks for row in answer.processes if row.role == "worker"}
    return 0 < blocks[0] + blocks[1] == blocks[100] + blocks[101]


def list_states(answer, node):
    """Return the states of the workers of a machine."""
    return [row.state for row in answer.processes if row.role == "worker" and row.node == node]


def step_until_members(run, *members):
    return run.step_until(lambda answer: find_members(answer) == set(members))


def test_a_machine_joins_and_leaves(stage, assert_equals_reference):
    async def disturb(run):
        await run.wait_for_step(4)
        async with join(stage, run, "b") as agent:
            answer = await step_until_members(run, 0, 1, 100, 101)
            nodes = {row.worker: row.node for row in answer.processes if row.role == "worker"}
            assert nodes == {0: "", 1: "", 100: "b", 101: "b"}
            agent.leave()
            await run.step_until(lambda answer: get_state(answer, 100) == get_state(answer, 101) == "")
            await run.wait_for_event("node.left", "node b")
        run.stop_pacing()

    ended = stage.play("--paced-from=5", disturb=disturb, **NODES)
    assert_equals_reference(ended)
    assert ended.find_subjects("node.joined") == ["node b"]
    assert ended.find_events("worker.died") == []
    assert sorted(ended.find_subjects("worker.left")[:2]) == ["worker 100", "worker 101"]


def test_a_machine_on_which_no_worker_starts_takes_no_place_from_the_others(stage, assert_equals_reference):
    said = []

    async def disturb(run):
        await run.wait_for_step(4)
        async with join(stage, run, "b", say=said.append) as unfit, join(stage, run, "c"):
            await run.wait_for_event("node.closed", "node b")
            # Either machine may have joined first, and has the lower numbers then.
            await run.wait_until(lambda answer: list_states(answer, "c") == ["ready", "ready"])
            await run.step_until(lambda answer: list_states(answer, "c") == ["member", "member"])
            await run.wait_for_event("node.left", "node b")
            # The agent ends once it knows that this is recorded.
            answer = await run.wait_until(lambda _: unfit.left)
            assert {row.node for row in answer.processes if row.role == "worker"} == {"", "c"}
            run.stop_pacing()
            await run.wait_for_event("run.finished")

    ended = stage.play("--paced-from=5", "--unfit=b", disturb=disturb, **NODES)
    assert_equals_reference(ended, unfit="b")
    (closed,) = ended.find_events("node.closed")
    assert "3 in a row ended before they joined" in closed.why
    assert said == [closed.why]
    assert ended.find_events("resize.requested") == []


@pytest.mark.parametrize(
    ("own", "others"),
    [
        ({"listen": "::1"}, MachineAddress("::1")),
        # All addresses of this machine stand behind the one at which it listens, as behind a translation.
        (
            {"listen": "0.0.0.0", "advertised": "127.0.0.7", "ports": (28500, 28539)},  # noqa: S104
            MachineAddress("0.0.0.0", "127.0.0.8", (28540, 28579)),  # noqa: S104
        ),
    ],
    ids=["ipv6", "translated"],
)
def test_machines_reach_each_other_at_the_addresses_that_they_say(
    stage, assert_equals_reference, own, others
):
    addresses = []

    async def disturb(run):
        await run.wait_for_step(4)
        async with join(stage, run, "b", address=others):
            answer = await step_until_members(run, 0, 1, 100, 101)
            addresses.extend(answer.nodes)
            kill(answer, "worker", 100)
            await step_until_members(run, 0, 1, 101, 102)
            run.stop_pacing()
            await run.wait_for_event("run.finished")

    ended = stage.play("--paced-from=5", disturb=disturb, **NODES | own)
    assert_equals_reference(ended)
    first, second = addresses
    assert first.host == (own.get("advertised") or own["listen"])
    assert second.host == others.reached_at
    for address, ports in (first, own.get("ports")), (second, others.ports):
        assert ports is None or ports[0] <= address.port <= ports[1]


def test_a_user_drains_a_machine(stage, assert_equals_reference):
    async def disturb(run):
        await run.wait_for_step(4)
        async with join(stage, run, "b") as agent:
            await step_until_members(run, 0, 1, 100, 101)
            assert (await run.ask(AskDrainNode(node="b"))).ok
            await run.step_until(lambda answer: get_state(answer, 100) == get_state(answer, 101) == "")
            await run.wait_for_event("node.left", "node b")
        assert agent.left
        run.stop_pacing()

    ended = stage.play("--paced-from=5", disturb=disturb, **NODES)
    assert_equals_reference(ended)
    assert ended.find_events("worker.died") == ended.find_events("node.lost") == []


def test_workers_and_the_coordinator_die_in_a_run_on_three_machines(stage, assert_equals_reference):
    def step_until_four(run, *, without):
        return run.step_until(
            lambda answer: len(find_members(answer)) == 4 and not find_members(answer) & without
        )

    async def disturb(run):
        await run.wait_for_step(4)
        async with join(stage, run, "b", 1), join(stage, run, "c", 1):
            kill(await step_until_four(run, without=set()), "worker", 100)
            kill(await step_until_four(run, without={100}), "coordinator")
            # The successor may know the last joiner as a member only after another step.
            await run.step_until(
                lambda answer: answer.term == 2 and len(find_members(answer)) == 4, patience_s=0.3
            )
            kill(await step_until_four(run, without={100}), "worker", 1)
            await step_until_four(run, without={1, 100})
            run.stop_pacing()
            await run.wait_for_event("run.finished")

    ended = stage.play("--paced-from=5", disturb=disturb, **NODES)
    assert_equals_reference(ended)
    started = ended.find_subjects("worker.started")
    assert len(started) == len(set(started)) == 6
    assert sorted(ended.find_subjects("node.joined")) == ["node b", "node c"]
    assert ended.find_events("node.lost") == []


def test_the_workers_of_a_silent_machine_are_lost_at_once(stage, assert_equals_reference):
    async def disturb(run):
        await run.wait_for_step(1)
        command = [sys.executable, "-P", "-m", "elastane", "join", str(run.run_dir.root), "--name", "b"]
        agent = await asyncio.create_subprocess_exec(*command, "--slots", "2")
        there = [agent.pid]
        try:
            answer = await run.wait_until(lambda answer: find_members(answer) == {0, 1, 100, 101})
            there = [row.pid for row in answer.processes if row.node == "b"]
            for pid in there:
                os.kill(pid, signal.SIGSTOP)
            await run.wait_for_event("node.lost", "node b")
            for pid in there:
                # The agent goes on first, and may have ended its workers already.
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            # It takes part again, with new workers; the old ones end.
            await run.wait_for_event("worker.joined", "worker 102")
            assert not any(is_alive(row.pid) for row in answer.processes if row.worker in {100, 101})
            run.touch("hurry")
            await agent.wait()
        finally:
            for pid in filter(is_alive, there):
                os.kill(pid, signal.SIGKILL)
            await agent.wait()

    ended = stage.play("--seconds=0.12", disturb=disturb, **NODES)
    assert_equals_reference(ended)
    (lost,) = ended.find_events("node.lost")
    assert lost.workers == (100, 101)
    assert {"worker 100", "worker 101"} <= set(ended.find_subjects("worker.died"))


def test_two_copies_survive_the_death_of_a_whole_machine(stage, assert_equals_reference):
    async def disturb(run):
        await run.wait_for_step(4)
        command = [sys.executable, "-P", "-m", "elastane", "join", str(run.run_dir.root), "--name", "b"]
        agent = await asyncio.create_subprocess_exec(*command, "--slots", "2")
        there = [agent.pid]
        try:
            await run.wait_until(lambda answer: get_state(answer, 100) == get_state(answer, 101) == "ready")
            await step_until_members(run, 0, 1, 100, 101)
            answer = await run.step_until(has_a_copy_on_each_machine)
            there = [row.pid for row in answer.processes if row.node == "b"]
            assert {agent.pid} < set(there)
            for pid in there:
                os.kill(pid, signal.SIGKILL)
            await step_until_members(run, 0, 1)
        finally:
            for pid in filter(is_alive, there):
                os.kill(pid, signal.SIGKILL)
            await agent.wait()
        run.stop_pacing()

    ended = stage.play("--paced-from=5", disturb=disturb, copies=2, **NODES)
    assert_equals_reference(ended)
    assert {"worker 100", "worker 101"} <= set(ended.find_subjects("worker.died"))
    assert ended.find_events("run.resumed") == []


@pytest.fixture(scope="module")
def process_namespaces():
    """Check that this system lets a user begin a namespace of process ids."""
    with contextlib.suppress(FileNotFoundError):
        if not subprocess.run([*HIDDEN, "true"], check=False, capture_output=True).returncode:
            return
    skip_except_in_ci("this system allows no namespaces of process ids to users")


def count_mapped_sums(pid):
    """Return the number of workers that have their sums in the memory of a process."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return len({line.split()[4] for line in lines if "memfd:elastane-slot-0" in line})


@pytest.mark.usefixtures("process_namespaces")
def test_workers_share_memory_within_a_machine_and_use_tcp_between_machines(stage, assert_equals_reference):
    async def disturb(run):
        await run.wait_for_step(1)
        command = [sys.executable, "-P", "-m", "elastane", "join", str(run.run_dir.root), "--name", "b"]
        agent = await asyncio.create_subprocess_exec(*HIDDEN, *command, "--slots", "2")
        try:
            await run.wait_until(lambda answer: get_state(answer, 100) == get_state(answer, 101) == "ready")
            answer = await step_until_members(run, 0, 1, 100, 101)
            step = answer.step + 1
            answer = await run.step_until(lambda answer: answer.step > step)
            pids = {row.worker: row.pid for row in answer.processes if row.role == "worker"}
            # Its own, and those of the other worker of this machine.
            assert count_mapped_sums(pids[0]) == 2
        finally:
            # All processes of the machine end with the first one.
            agent.kill()
            await agent.wait()
        await step_until_members(run, 0, 1)
        run.stop_pacing()

    ended = stage.play("--paced-from=5", disturb=disturb, **NODES)
    assert_equals_reference(ended)


def count_wire_bytes(ended, nodes):
    """Return the bytes of sums that all nodes together send to others, for each evenly divided step."""
    sent = Counter()
    for path in ended.run.run_dir.root.glob("sent-*"):
        worker = int(path.name.removeprefix("sent-"))
        for line in path.read_text().splitlines():
            round_, peer, size = map(int, line.split())
            if nodes[worker] != nodes[peer]:
                # An evaluation takes a round too.
                sent[round_ if round_ <= EVALUATED_STEP else round_ - 1] += size
    return {line.step: sent[line.step] for line in list_halved_steps(ended.run, nodes)}


def list_halved_steps(recorded, nodes):
    """Return the lines of the steps that two machines divided evenly: an uneven step sends other bytes."""
    halved = []
    for line in recorded.ledger:
        shares = {worker: expand_spans(spans) for worker, spans in line.workers.items()}
        first = frozenset().union(*(some for worker, some in shares.items() if nodes.get(worker) == ""))
        if shares.keys() == nodes.keys() and first == frozenset(range(VIRTUAL_RANKS // 2)):
            halved.append(line)
    return halved


def find_halved_traffic(recorded, nodes):
    """Return the bytes that the run recorded for machines while they divided its steps evenly."""
    halved = {line.generation for line in list_halved_steps(recorded, nodes)}
    return [event.detail for event in recorded.events if event.kind == TRAFFIC and event.generation in halved]


@pytest.mark.usefixtures("process_namespaces")
@pytest.mark.parametrize("workers", [2, 4])
def test_sums_cross_the_wire_once_per_node(stage, assert_equals_reference, workers):
    members = (*range(workers), *range(100, 100 + workers))
    nodes = {worker: "b" if worker >= 100 else "" for worker in members}

    async def disturb(run):
        await run.wait_for_step(1)
        command = [sys.executable, "-P", "-m", "elastane", "join", str(run.run_dir.root), "--name", "b"]
        agent = await asyncio.create_subprocess_exec(*HIDDEN, *command, "--slots", str(workers))
        try:
            await run.wait_until(
                lambda answer: all(get_state(answer, w) == "ready" for w in members[workers:])
            )
            await step_until_members(run, *members)
            await run.step_until(lambda _: find_halved_traffic(read_run(run.run_dir), nodes))
        finally:
            agent.kill()
            await agent.wait()
        await step_until_members(run, *members[:workers])
        run.stop_pacing()

    # Workers that mostly sleep measure equal speeds, also on a busy machine.
    arguments = ("--seconds=0.02", "--paced-from=5", "--record-sent-sums")
    ended = stage.play(*arguments, disturb=disturb, **NODES | {"start": workers})
    assert_equals_reference(ended)
    wire = count_wire_bytes(ended, nodes)
    assert wire
    # A flat mesh would send as many times more as a node has workers.
    assert all(2 * GRADIENT_BYTES <= size <= 1.1 * 2 * GRADIENT_BYTES for size in wire.values()), wire
    # What the workers count and tell their user: with frames, votes and confirmations.
    measured = find_halved_traffic(ended.run, nodes)
    assert {detail["node"] for detail in measured} == {"", "b"}
    # As planned before the run; blocks of different sizes are not spread quite evenly.
    planned = count_node_traffic(((GRADIENT_BYTES // 4, 4),), VIRTUAL_RANKS, (workers, workers), None)
    for detail in measured:
        assert planned.largest_bytes <= detail["sent_bytes"] <= 1.1 * planned.largest_bytes
        assert planned.largest_bytes <= detail["received_bytes"] <= 1.1 * planned.largest_bytes


def test_control_connections_between_machines_are_encrypted(stage):
    async def disturb(run):
        endpoint = read_endpoint(run.run_dir)
        assert endpoint.url.startswith("wss://127.0.0.2:")
        assert stat.S_IMODE((run.run_dir.root / CERTIFICATE).stat().st_mode) == 0o600
        # What is not TLS gets no answer, also with the secret.
        reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
        secret = run.run_dir.secret.read_text()
        writer.write(f"GET / HTTP/1.1\r\nAuthorization: Bearer {secret}\r\n\r\n".encode())
        answer = await reader.read(100)
        assert b"HTTP" not in answer
        writer.close()
        await run.wait_until(lambda answer: answer.target > 0)
        assert (await run.ask(AskResize(workers=1))).ok

    assert stage.play(disturb=disturb, **NODES).outcome.code == 0


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
def test_terms_and_deaths_are_claimed_in_an_object_store(stage, assert_equals_reference, monkeypatch):
    with serve_object_store(monkeypatch, "claims"):

        async def disturb(run):
            await run.wait_for_step(4)
            async with join(stage, run, "b"):
                before = await step_until_members(run, 0, 1, 100, 101)
                kill(before, "coordinator")
                answer = await run.wait_until(lambda answer: answer.term > before.term)
                kill(answer, "worker", 100)
                await step_until_members(run, 0, 1, 101, 102)
                run.stop_pacing()
                await run.wait_for_event("run.finished")

        # A coordinator loads the client of the store, for more than a second, before it is first heard.
        nodes = NODES | {"silence_s": SILENCE_S}
        ended = stage.play("--paced-from=5", disturb=disturb, claims="s3://claims/runs", **nodes)
        assert_equals_reference(ended)
        held = open_claim_list(find_claims(ended.run.run_dir, ended.run.record.spec)).read()
        kinds = [type(one.record) for one in held]
        assert kinds.count(TermClaim) == len(ended.find_events("coordinator.started")) >= 2
        assert kinds.count(GenerationClaim) >= 1
        assert kinds[-1] is OutcomeClaim
        assert list((ended.run.run_dir.root / "claims").iterdir()) == []


def count_applied(run, step):
    """Return how many workers have applied a step."""
    return len(list(run.run_dir.root.glob(f"applied-{step}-*")))


def test_training_goes_on_without_a_coordinator_while_the_claim_list_is_away(
    stage, assert_equals_reference, tmp_path, monkeypatch
):
    monkeypatch.setattr(silence, "LONGEST_SILENCE_S", 4 / 3 * SHORT_SILENCE_S)

    async def disturb(run):
        claims, away = run.run_dir.root / "claims", tmp_path / "away"
        await run.wait_for_step(4)
        async with join(stage, run, "b") as other:
            answer = await step_until_members(run, 0, 1, 100, 101)
            workers = [dict(agent.workers.living) for agent in (run.agent, other)]
            claims.rename(away)
            kill(answer, "coordinator")
            for step in range(answer.step + 1, answer.step + 6):
                run.touch(f"gate-{step}")
                await wait_until_async(
                    lambda step=step: count_applied(run, step) == 4, f"all have made step {step}"
                )
                await asyncio.sleep(SHORT_SILENCE_S / 2)  # not a wait: the steps outlast the longest silence
            assert [dict(agent.workers.living) for agent in (run.agent, other)] == workers
            away.rename(claims)
            run.stop_pacing()
            await run.wait_for_event("run.finished")

    ended = stage.play("--paced-from=5", disturb=disturb, **NODES)
    assert_equals_reference(ended)
    assert ended.find_events("worker.died") == []
    held = open_claim_list(find_claims(ended.run.run_dir, ended.run.record.spec)).read()
    assert [type(one.record) for one in held if type(one.record) is not GenerationClaim] == [
        *(TermClaim, TermClaim),
        OutcomeClaim,
    ]
