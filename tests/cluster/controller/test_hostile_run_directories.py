"""A job that writes invalid files into its run directory; engine, loop and store are the real ones."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time

import msgspec
import pytest

from elastane.cluster.controller.loop import Loop
from elastane.cluster.controller.planning import Scheduler
from elastane.cluster.controller.store import jobs
from elastane.cluster.engines.local.engine import EngineDirectories, LocalEngine
from elastane.cluster.nouns.rest import JobSummary
from elastane.cluster.scheduler.explanations import explain_decision
from elastane.cluster.scheduler.plan import plan
from elastane.common.bodies import Page
from elastane.run.agent.presence import list_present_processes
from tests.cluster.controller import job_rows
from tests.hostile import DEEP
from tests.waiting import WAIT_S, wait_until_async

from .conftest import Api, spec

AGENT = f"""
import json, os, pathlib, sys, time
root, attempt = pathlib.Path(sys.argv[1]), int(sys.argv[2].partition("=")[2])
started = pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
said = {{"number": attempt, "pid": os.getpid(), "started": int(started), "began_s": time.time()}}
hostile = root.name == "bad"
line = {{"step": 1, "generation": 1, "workers": {{"0": [[0, 1]]}}, "loss": 1.0, "loss_hex": "",
    "time": time.time(),
    "samples": {{"epoch": 0, "start": 0, "stop": 1, "count": 2**63 - 1 if hostile else 8, "checksum": ""}},
    "seconds": {{"step": 1e-300 if hostile else 0.5}}}}
(root / "ledger.jsonl").write_text(json.dumps(line) + "\\n")
if hostile:
    (root / "events.jsonl").write_text('{{"time": 1e18, "kind": "checkpoint.saved"}}\\n')
(root / "attempt.json").write_text({DEEP!r} if hostile else json.dumps(said))
time.sleep(600)
"""


@pytest.fixture
def engine(tmp_path, monkeypatch):
    monkeypatch.setenv("ELASTANE_HOME", str(tmp_path / "home"))
    (tmp_path / "agent.py").write_text(AGENT)
    engine = LocalEngine(tmp_path / "home", agent=(sys.executable, str(tmp_path / "agent.py")))
    yield engine
    for name in ("bad", "good"):
        for pid in set(list_present_processes(EngineDirectories(tmp_path / "home").get_run_dir(name))) - {
            os.getpid()
        }:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    for started in engine._started.values():
        started._process.wait(WAIT_S)


@pytest.mark.early
def test_no_file_of_a_job_stops_the_cluster(engine, store, tmp_path, caplog):
    script = tmp_path / "train.py"
    script.touch()
    api = Api(store, plan=plan, explain=explain_decision)
    operator, everybody = api.user("operator"), api.user(team="*")
    operator.put("/pools/local", {"name": "local", "device": "cpu", "devices": 8})

    def submit(name):
        document = msgspec.structs.replace(spec(name), script=str(script))
        assert everybody.post("/jobs", document).status_code == 201

    async def until(loop, true):
        async def look():
            if true():
                return True
            api.clock.now_s = time.time()
            loop._mark_stale()
            await loop.run_cycle()
            return False

        await wait_until_async(look, "the loop has come so far")

    def job(name):
        with store.begin_read() as tx:
            return jobs.find_job(tx, name)

    async def story():
        loop = Loop(store, engine, Scheduler(plan=plan, explain=explain_decision), api.clock)
        await until(
            loop, lambda: job("good").observed.step == 1 and bad.attempt.exists() and bad.events.exists()
        )
        cycles = iter([False] * 10 + [True])
        await until(loop, lambda: next(cycles))
        with store.begin_write() as tx:
            job_rows.cancel(tx, "bad", api.clock())
        # The attempt is unknown: its processes are killed after a while.
        await until(loop, lambda: job("bad").state == "cancelled")

    bad = EngineDirectories(tmp_path / "home").get_run_dir("bad")
    api.clock.now_s = time.time()
    submit("bad")
    submit("good")
    with caplog.at_level(logging.WARNING):
        asyncio.run(story())
    listed = msgspec.json.decode(operator.get("/jobs").content, type=Page[JobSummary]).items
    assert {one.name: one.state for one in listed} == {"bad": "cancelled", "good": "running"}
    assert (job("bad").observed.step, job("good").observed.step) == (0, 1)
    for file in ("ledger.jsonl", "events.jsonl", "attempt.json"):
        assert len([one for one in caplog.messages if f"bad/{file}" in one]) == 1, caplog.messages
    assert list_present_processes(bad) == ()
