"""The processes of a worker end together; the one that ended first is the cause."""

import asyncio
import signal
import subprocess
from contextlib import contextmanager

import pytest

from elastane.run.agent.further_processes import KILLED, FurtherProcesses
from tests.waiting import WAIT_S, wait_until_async


@contextmanager
def sleepers(count):
    """Yield processes that live until they are killed."""
    started = [subprocess.Popen(["sleep", str(10 * WAIT_S)]) for _ in range(count)]
    try:
        yield started
    finally:
        for one in started:
            one.kill()
            one.wait()


class Watched:
    """Further processes of worker 3, and what they have asked for."""

    def __init__(self, end_s=0.0):
        self.ended = []
        self.further = FurtherProcesses(lambda worker, why: self.ended.append((worker, why)), end_s)
        self.tasks = []

    async def watch(self, processes):
        for number, process in enumerate(processes, start=1):
            self.tasks.append(asyncio.create_task(self.further.watch(3, number, process.pid)))
        await wait_until_async(
            lambda: len(list(self.further.list_watched(3))) == len(processes), "all are watched"
        )

    async def wait(self):
        async with asyncio.timeout(WAIT_S):
            await asyncio.gather(*self.tasks)


@pytest.mark.parametrize(("code", "how"), [(KILLED, "killed by SIGKILL"), (7, "exit code 7")])
def test_the_end_of_one_process_ends_its_worker(code, how):
    async def main():
        watched = Watched()
        with sleepers(2) as processes:
            await watched.watch(processes)
            watched.further.take_code(3, 2, code)
            processes[1].kill()
            await wait_until_async(lambda: watched.ended, "the worker is to end")
            watched.further.note_end(3)
            await watched.further.end(3, asyncio.Event(), within_s=0.0)
            await watched.wait()
        assert watched.ended == [(3, f"its process 2 ended ({how})")]
        assert watched.further.causes == {3: code}

    asyncio.run(main())


def test_what_follows_the_end_of_process_0_is_no_cause():
    async def main():
        watched = Watched()
        with sleepers(2) as processes:
            await watched.watch(processes)
            watched.further.note_end(3)
            processes[0].kill()
            await watched.further.end(3, asyncio.Event(), within_s=0.0)
            await watched.wait()
            assert [process.wait(WAIT_S) for process in processes] == [-signal.SIGKILL] * 2
        assert (watched.ended, watched.further.causes) == ([], {})

    asyncio.run(main())


def test_processes_that_do_not_end_after_their_script_are_killed():
    async def main():
        watched, killed = Watched(), asyncio.Event()
        with sleepers(1) as processes:
            await watched.watch(processes)
            watched.further.note_end(3)
            ending = asyncio.create_task(watched.further.end(3, killed, within_s=WAIT_S))
            killed.set()
            async with asyncio.timeout(WAIT_S):
                await ending
            await watched.wait()
            assert processes[0].wait(WAIT_S) == -signal.SIGKILL

    asyncio.run(main())


def test_a_process_that_cannot_be_started_ends_its_worker_with_its_code():
    watched = Watched()
    watched.further.fail_start(3, 1, 75)
    assert watched.ended == [(3, "its process 1 could not be started")]
    assert watched.further.causes == {3: 75}
