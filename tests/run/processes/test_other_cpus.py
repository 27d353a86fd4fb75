"""Portable numerics give equal bits on this machine's CPU and on other models, which qemu-user emulates.

qemu computes IEEE 754 arithmetic exactly, reports the maker and the instructions of the model, and has its
own approximations for RCPPS and RSQRTPS, as each maker has. It emulates no AVX-512.
"""

import asyncio
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from elastane.run.agent.environment import build_worker_environment
from elastane.run.agent.processes import Commands
from elastane.run.machines.agents.node_agent import NodeAgent
from elastane.run.nouns.machine_address import MachineAddress
from elastane.run.nouns.rundir import RunDir

from .stage import SCRIPTS, EndedRun, LiveRun

EMULATOR = shutil.which("qemu-x86_64")
MODELS = ("Haswell", "Skylake-Client", "EPYC")
"""Two models of Intel and one of AMD, all with AVX2."""
PATIENCE_S = 400
STEPS = 60
HERE = MachineAddress("127.0.0.2")

pytestmark = [
    pytest.mark.processes,
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="emulates models of x86-64 only"),
    pytest.mark.skipif(EMULATOR is None, reason="qemu-x86_64 is not installed (package qemu-user)"),
]


def compute_digests(numerics: str, model: str) -> dict[str, str]:
    """Return the digests that ``kernels.py`` prints on a model of CPU; empty: this machine's own."""
    emulator = [str(EMULATOR), "-cpu", model] if model else []
    done = subprocess.run(
        [*emulator, sys.executable, str(SCRIPTS / "kernels.py"), "--numerics", numerics],
        env=build_worker_environment(os.environ, 1, numerics),
        capture_output=True,
        check=False,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    digests: dict[str, str] = json.loads(done.stdout)
    return digests


def find_differing(numerics: str) -> list[str]:
    """Return the names of what the models compute with different bits."""
    own = ("",) if "avx2" in Path("/proc/cpuinfo").read_text() else ()
    with ThreadPoolExecutor(2) as threads:
        all_digests = list(threads.map(lambda model: compute_digests(numerics, model), (*MODELS, *own)))
    return [name for name in all_digests[0] if len({digests[name] for digests in all_digests}) > 1]


def test_portable_numerics_compute_the_same_bits_on_several_models() -> None:
    assert find_differing("portable") == []


def test_native_numerics_compute_other_bits_on_other_models() -> None:
    """Otherwise the test above would show nothing."""
    assert {"linear", "transformer", "Adam"} <= set(find_differing("native"))


@asynccontextmanager
async def join(run: LiveRun, model: str) -> AsyncIterator[None]:
    """Let a machine with another model of CPU take part: all of its computation is emulated."""
    own = Commands()
    commands = Commands(own.coordinator, (str(EMULATOR), "-cpu", model, *own.fork_server))
    run_dir = RunDir(run.run_dir.root, "b")
    agent = NodeAgent(run_dir, run.agent.spec, HERE, slots=1, begins=False, commands=commands)
    task = asyncio.create_task(agent.run())
    try:
        yield
    finally:
        if not task.done():
            agent.kill()
        await task


async def step_until_event(run: LiveRun, kind: str) -> None:
    """Make a step every ten seconds until worker 100 has this event: a run that rests counts as hung."""
    answer = await run.wait_for_step(8)
    while not any((event.kind, event.who) == (kind, "worker 100") for event in run.read_events()):
        run.touch(f"gate-{answer.step + 1}")
        answer = await run.wait_for_step(answer.step + 1)
        await asyncio.sleep(10)  # not a wait: paces the steps


@pytest.fixture
def two_models(stage, monkeypatch):
    """Return a run that begins on this machine's CPU and that a machine with an AMD EPYC joins."""
    monkeypatch.setattr("tests.waiting.WAIT_S", PATIENCE_S)
    # Otherwise a joiner without AVX-512 would be refused before its bits are compared.
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")

    def play(numerics: str, event: str) -> EndedRun:
        async def disturb(run):
            await run.wait_for_step(8)
            async with join(run, "EPYC"):
                await step_until_event(run, event)
                run.stop_pacing()
                await run.wait_for_event("run.finished")

        options = {"listen": HERE.host, "start": 1, "numerics": numerics, "commands": Commands()}
        return stage.play("--paced-from=9", f"--steps={STEPS}", disturb=disturb, **options)

    return play


def test_machines_with_different_models_train_the_bytes_of_one_worker(stage, two_models) -> None:
    ended = two_models("portable", "worker.joined")
    assert 100 in ended.get_shares(STEPS)
    alone = stage.play(f"--steps={STEPS}", numerics="portable", commands=Commands())
    assert (ended.model_digest, ended.losses) == (alone.model_digest, alone.losses)
    shared = ended.digests.keys() & alone.digests.keys()
    assert {step: ended.digests[step] for step in shared} == {step: alone.digests[step] for step in shared}


def test_a_machine_with_another_model_is_refused_with_native_numerics(two_models) -> None:
    ended = two_models("native", "worker.refused")
    assert ended.outcome.code == 0, ended.describe()
    (why,) = {event.why.partition(": ")[2] for event in ended.find_events("worker.refused")}
    assert why.startswith("its machine computes other bits from the same microbatch")
    assert "--numerics portable" in why
    assert set(ended.get_shares(STEPS)) == {0}
