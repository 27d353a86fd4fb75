"""The process of the driver of Ray: in each case the engine gets an answer, or learns why there is none."""

import asyncio
import inspect
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from elastane.cluster.client.cluster import Cluster
from elastane.cluster.engines.ray import doctor, driver_process
from elastane.cluster.engines.ray.doctor import examine_ray, judge_version
from elastane.cluster.engines.ray.driver_process import RayDriver
from elastane.cluster.engines.ray.engine import RayEngine
from elastane.cluster.engines.ray.options import RayOptions
from elastane.cluster.nouns.agents import AgentAsk, AgentEnd, Away
from elastane.common.process_identity import read_start_time
from tests.waiting import WAIT_S, wait_until, wait_until_async

HELLO = 'say(number=0, ok={"ray": "2.60.0"})\n'
ECHO = HELLO + "for r in requests():\n    say(number=r['number'], ok=[os.getpid(), r['with']])\n"
PRELUDE = """\
import json, os, sys, time

def say(**what):
    sys.stdout.write(json.dumps(what) + "\\n")
    sys.stdout.flush()

def requests():
    for line in sys.stdin:
        yield json.loads(line)

"""
HASTY_S = 0.5


class Drivers:
    """Makes programs that are started in place of the driver's Python."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, program: str) -> str:
        """Return the path of a program in Python; its standard library is all that it has."""
        script = self.folder / "driver.py"
        script.write_text(PRELUDE + program)
        path = self.folder / "python"
        path.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {script} "$@"\n')
        path.chmod(0o755)
        return str(path)

    def make(self, program: str, answer_s: float = WAIT_S) -> RayDriver:
        return RayDriver(self.write(program), "auto", "elastane-c1", answer_s)


@pytest.fixture
def drivers(tmp_path):
    return Drivers(tmp_path)


def ask(driver, *requests):
    """Ask one thing after the other, and end the driver."""

    async def run():
        try:
            return [await driver.ask("look", number=number) for number in requests]
        finally:
            await driver.close()

    return asyncio.run(run())


def test_one_driver_answers_one_request_after_the_other(drivers):
    first, second = ask(drivers.make(ECHO), 1, 2)
    assert (first[1], second[1]) == ({"number": 1}, {"number": 2})
    assert first[0] == second[0]
    assert read_start_time(first[0]) is None


def test_requests_at_the_same_time_get_their_own_answers(drivers):
    driver = drivers.make(ECHO)

    async def run():
        answers = await asyncio.gather(*(driver.ask("look", number=number) for number in range(9)))
        await driver.close()
        return [answer[1]["number"] for answer in answers]

    assert asyncio.run(run()) == list(range(9))


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("say(number=0, away='no\\nRay here')", "no Ray here"),
        ("sys.exit('Segmentation fault')", "the driver has ended with code 1: Segmentation fault"),
        ("os._exit(3)", "the driver has ended with code 3: it said nothing"),
        ("print('Hello, I am Ray', flush=True); time.sleep(1000)", "the driver wrote no answer"),
        ("print('[' * 100000, flush=True); time.sleep(1000)", "the driver wrote no answer"),
        ("say(number='x'); time.sleep(1000)", "the driver wrote no answer"),
        (HELLO + "next(requests()); os._exit(4)", "the driver has ended with code 4"),
        (
            HELLO + "r = next(requests()); say(number=r['number'], away='the head is gone')",
            "the head is gone",
        ),
    ],
)
def test_a_driver_that_dies_or_does_not_answer_is_no_answer(drivers, program, why):
    (answer,) = ask(drivers.make(program), 1)
    assert isinstance(answer, Away)
    assert why in answer.why


def test_an_answer_without_end_is_no_answer_and_is_not_kept(drivers, monkeypatch):
    monkeypatch.setattr(driver_process, "MOST_ANSWER_BYTES", 10_000)
    program = HELLO + "next(requests())\nwhile True: sys.stdout.write('x' * 1000)"
    (answer,) = ask(drivers.make(program), 1)
    assert "the driver wrote no answer" in answer.why


def test_a_python_that_is_missing_is_named(tmp_path):
    (answer,) = ask(RayDriver(f"{tmp_path}/python", "auto", "elastane-c1", WAIT_S), 1)
    assert answer == Away(f"cannot start the driver with {tmp_path}/python: No such file or directory")


def test_a_late_answer_is_none_and_not_taken_for_the_next_one(drivers):
    program = HELLO + (
        "for r in requests():\n"
        "    while r['with']['number'] == 1 and not os.path.exists(sys.path[-1] + '/go'): time.sleep(0.01)\n"
        "    say(number=r['number'], ok=r['with'])\n"
    )
    program = program.replace("sys.path[-1]", repr(str(drivers.folder)))
    driver = drivers.make(program)

    async def run():
        driver._answer_s = HASTY_S
        late = await driver.ask("look", number=1)
        (drivers.folder / "go").touch()
        driver._answer_s = WAIT_S
        in_time = await driver.ask("look", number=2)
        await driver.close()
        return late, in_time

    assert asyncio.run(run()) == (Away("Ray did not answer within 0.5 s"), {"number": 2})


def test_a_driver_that_was_killed_is_started_again_at_once(drivers):
    driver = drivers.make(ECHO)

    async def run():
        pid, _ = await driver.ask("look")
        os.kill(pid, signal.SIGKILL)
        while isinstance(answer := await driver.ask("look"), Away):
            assert "ended with code -9" in answer.why
        await driver.close()
        return pid, answer[0]

    first, second = asyncio.run(run())
    assert first != second


def test_a_driver_that_hangs_is_killed_and_started_again(drivers, monkeypatch):
    monkeypatch.setattr(driver_process, "HANG_S", 0.1)
    monkeypatch.setattr(driver_process, "AGAIN_S", 0.1)
    note = drivers.folder / "pid"
    program = HELLO + (
        f"note = {str(note)!r}\n"
        "r = next(requests())\n"
        "if not os.path.exists(note):\n"
        "    open(note, 'w').write(str(os.getpid()))\n"
        "    time.sleep(1000)\n"
        "say(number=r['number'], ok='yes')\n"
        "sys.stdin.read()\n"
    )
    driver = drivers.make(program, HASTY_S)

    async def run():
        while isinstance(answer := await driver.ask("look"), Away):
            pass
        await driver.close()
        return answer

    assert asyncio.run(run()) == "yes"
    wait_until(lambda: read_start_time(int(note.read_text())) is None, "the first one has ended")


def test_a_driver_that_has_lost_its_connection_is_started_again(drivers, monkeypatch):
    monkeypatch.setattr(driver_process, "HANG_S", 0.1)
    note = drivers.folder / "starts"
    program = HELLO + (
        f"open({str(note)!r}, 'a').write('x')\n"
        f"lost = os.path.getsize({str(note)!r}) == 1\n"
        "for r in requests():\n"
        "    say(number=r['number'], **({'away': 'no raylet'} if lost else {'ok': 'yes'}))\n"
    )
    driver = drivers.make(program)

    async def run():
        assert await driver.ask("look") == Away("no raylet")

        async def has_recovered() -> bool:
            return await driver.ask("look") == "yes"

        await wait_until_async(has_recovered, "it answers again")
        await driver.close()

    asyncio.run(run())
    assert note.read_text() == "xx"


def test_a_driver_that_cannot_connect_is_not_started_again_at_once(drivers):
    note = drivers.folder / "starts"
    program = f"open({str(note)!r}, 'a').write('x')\nsay(number=0, away='no Ray')"
    driver = drivers.make(program)

    async def run():
        async def is_refused() -> bool:
            return "starts again in" in (await driver.ask("look")).why

        assert (await driver.ask("look")).why == "no Ray"
        await wait_until_async(is_refused, "it has ended")
        for _ in range(5):
            assert (await driver.ask("look")).why.startswith("no Ray (the driver starts again in")
        await driver.close()

    asyncio.run(run())
    assert note.read_text() == "x"


def test_a_driver_gets_the_variables_of_ray_and_no_secrets(drivers, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("SECRET", "x")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    program = HELLO + "for r in requests():\n    say(number=r['number'], ok=dict(os.environ))\n"
    (found,) = ask(drivers.make(program), 1)
    assert found["RAY_AUTH_MODE"] == "token"
    assert not {"SECRET", "PYTHONPATH"} & found.keys()


def test_its_words_name_the_cluster_and_no_ticket(drivers):
    program = HELLO + "for r in requests():\n    say(number=r['number'], ok=sys.argv[1:])\n"
    (words,) = ask(drivers.make(program), 1)
    assert (words[0], words[2:]) == ("-I", ["auto", "elastane-c1"])
    assert Path(words[1]).name == "driver.py"


@pytest.mark.parametrize("answer", ["[]", "{'actors': 3, 'nodes': []}", "'x'", "{'c1-1': 5}"])
def test_an_answer_of_another_form_is_no_answer(drivers, answer):
    program = HELLO + f"for r in requests():\n    say(number=r['number'], ok={answer})\n"
    engine = RayEngine("c1", RayOptions(python=drivers.write(program), answer_s=WAIT_S))
    ask_ = AgentAsk(id="c1-1", job="demo", pool={}, devices=1, grace_s=1.0, ticket="t")

    async def run():
        found = [
            await engine.list_agents(),
            await engine.list_nodes({"a": {}}),
            await engine.start_agents([ask_]),
            await engine.end_agents([AgentEnd("c1-1", 0.0)]),
        ]
        await engine.close()
        return found

    agents, nodes, refusals, failures = asyncio.run(run())
    assert isinstance(agents, Away)
    assert isinstance(nodes, Away)
    assert not refusals["c1-1"].for_ever
    assert failures["c1-1"]


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_agents_that_are_lost_while_ray_does_not_answer_name_its_setting(drivers):
    """Ray ends all agents some time after its head, and a new head does not know them."""
    state = drivers.folder / "state"
    state.write_text(json.dumps(["c1-1", "c1-2"]))
    program = HELLO + (
        "for r in requests():\n"
        f"    names = json.load(open({str(state)!r}))\n"
        "    actors = [{'name': name, 'node': 'n'} for name in names]\n"
        "    what = {'ok': {'actors': actors, 'nodes': []}} if names else {'away': 'no head'}\n"
        "    say(number=r['number'], **(what if r['do'] == 'look' else {'ok': {'c1-1': 'started again'}}))\n"
    )
    clock = Clock()
    engine = RayEngine("c1", RayOptions(python=drivers.write(program), answer_s=WAIT_S), now=clock)
    ask_ = AgentAsk(id="c1-1", job="demo", pool={}, devices=1, grace_s=1.0, ticket="t")

    async def run():
        assert len(await engine.list_agents()) == 2
        state.write_text("[]")
        clock.now_s += 90
        assert isinstance(await engine.list_agents(), Away)
        state.write_text(json.dumps(["c1-2"]))
        found = {agent.id: agent for agent in await engine.list_agents()}
        assert await engine.start_agents([ask_]) == {}
        await engine.close()
        return found

    found = asyncio.run(run())
    assert (found["c1-2"].state, found["c1-1"].state) == ("running", "gone")
    assert "gcs_rpc_server_reconnect_timeout_s" in found["c1-1"].why


def test_the_doctor_names_a_python_without_ray(drivers):
    options = RayOptions(python=drivers.write("import ray"), answer_s=WAIT_S)
    findings = asyncio.run(examine_ray(options, {}))
    assert [finding.ok for finding in findings] == [True, False]
    findings = asyncio.run(examine_ray(RayOptions(python="/nowhere/python"), {}))
    assert [finding.ok for finding in findings] == [False, True]
    assert "/nowhere/python" in findings[0].what
    missing = Away("the driver has ended: No module named 'ray'")
    assert "has no ray" in judge_version(missing, RayOptions())[0].what


def test_the_doctor_says_what_a_driver_says_that_does_not_connect(drivers, monkeypatch):
    patience_s = inspect.signature(Cluster).parameters["timeout_s"].default
    assert patience_s >= doctor.CONNECT_S + 5, "the command line gives up before the doctor does"
    monkeypatch.setattr(doctor, "CONNECT_S", HASTY_S)
    says = "sys.stderr.write('no route to 10.0.0.9\\n')\nsys.stderr.flush()\ntime.sleep(100)"
    options = RayOptions(python=drivers.write(says), address="10.0.0.9:6379")
    _, finding = asyncio.run(examine_ray(options, {}))
    assert not finding.ok
    assert finding.what.startswith("no connection to Ray at 10.0.0.9:6379: the driver did not connect")
    assert finding.what.endswith("no route to 10.0.0.9")


@pytest.mark.parametrize(
    ("version", "ok"),
    [("2.60.0", True), ("3.0.0.dev0", True), ("", True), ("2.9.3", False), ("1.13.0", False)],
)
def test_the_doctor_judges_the_version_of_ray(version, ok):
    (finding,) = judge_version(version, RayOptions())
    assert finding.ok == ok
