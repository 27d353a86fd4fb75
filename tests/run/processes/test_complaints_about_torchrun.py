"""What users of torchrun complain of in public threads does not happen here (docs/unmodified-scripts.md).

Each test is one complaint: a hang of half an hour, two ranks 0 at once, a scale-up that never succeeds, ports
that are still in use, exit codes that get lost, processes that outlive their run.
"""

import json
import os
import signal
import textwrap
from pathlib import Path

import pytest

from elastane.run.nouns.control import AskDrain, AskResize

from .stage import is_alive
from .worlds import LiveScript, play_script

pytestmark = pytest.mark.processes

HEAD = """
import json, os, signal, sys, time
from pathlib import Path
folder = Path(sys.argv[1])
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
count = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
def note(text):
    with (folder / "journal").open("a") as file:
        file.write(f"{text}\\n")
note(f"start {rank}/{size}")
"""


@pytest.fixture
def write_script(tmp_path):
    """Return a function that writes a script, with `HEAD` before it."""

    def write(text: str) -> Path:
        script = tmp_path / "script.py"
        script.write_text(HEAD + textwrap.dedent(text))
        return script

    return write


def test_survivors_that_wait_in_a_collective_do_not_wait_for_its_timeout(stage, tmp_path, write_script):
    script = write_script("""
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        if count == 0:
            if rank == 0:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                note("waits")
                dist.barrier()
            time.sleep(1000)
        dist.barrier()
        note("done")
    """)

    async def kill(run: LiveScript) -> None:
        await run.wait_for_note("waits")
        pid = await run.kill(1, signal.SIGSTOP)
        os.kill(pid, signal.SIGKILL)

    ended = play_script(stage, tmp_path, script, disturb=kill, start=2)
    assert ended.outcome.code == 0, ended.describe()
    assert ended.notes.count("done") == 2


def test_no_process_of_the_old_world_is_left_when_the_new_one_starts(stage, tmp_path, write_script):
    script = write_script("""
        import subprocess
        pids = folder / f"pids-{count}"
        if rank == 0 and count:
            old = (folder / f"pids-{count - 1}").read_text().split()
            alive = [pid for pid in old if Path(f"/proc/{pid}").exists()]
            note(f"alive {alive}")
        # A child in the same session, one in its own, and one that has lost its parent.
        child = subprocess.Popen(["sleep", "1000"])
        other = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        shell = "sleep 1000 >/dev/null 2>&1 & echo $!"
        lost = subprocess.run(shell, shell=True, capture_output=True, text=True)
        with pids.open("a") as file:
            file.write(f"{os.getpid()} {child.pid} {other.pid} {lost.stdout.strip()}\\n")
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        note("ready")
        while not (folder / "end").exists():
            time.sleep(0.01)
        for one in (child, other):
            one.kill()
    """)

    async def disturb(run: LiveScript) -> None:
        await run.wait_for_note("ready", 2)
        await run.resize(1)
        await run.wait_for_note("ready", 3)
        await run.kill(0)
        await run.wait_for_note("ready", 4)
        (run.folder / "end").touch()

    ended = play_script(stage, tmp_path, script, disturb=disturb, start=2, grace_s=0.3)
    assert ended.outcome.code == 0, ended.describe()
    assert [note for note in ended.notes if note.startswith("alive")] == ["alive []", "alive []"]
    written = " ".join(path.read_text() for path in ended.folder.glob("pids-*")).split()
    assert len(written) == 4 * 4
    assert not [pid for pid in map(int, written) if is_alive(pid)]


def test_a_worker_is_added_with_the_default_store_and_a_new_port(stage, tmp_path, write_script):
    script = write_script("""
        import torch.distributed as dist
        dist.init_process_group("gloo")
        dist.barrier()
        note(f"port {os.environ['MASTER_PORT']} store {os.environ['TORCHELASTIC_USE_AGENT_STORE']}")
        while size < 3:
            time.sleep(0.01)
    """)

    async def grow(run: LiveScript) -> None:
        for size in (2, 3):
            await run.wait_for_note(f"start 0/{size - 1}")
            await run.wait_for_note("port", size * (size - 1) // 2)
            await run.resize(size)

    ended = play_script(stage, tmp_path, script, disturb=grow)
    assert ended.outcome.code == 0, ended.describe()
    ports = [note.split()[1] for note in ended.notes if note.startswith("port")]
    assert len(ports) == 6
    assert len(set(ports)) == 3
    assert all(note.endswith("store True") for note in ended.notes if note.startswith("port"))


def test_no_other_program_can_take_the_port_before_the_script_uses_it(stage, tmp_path, write_script):
    script = write_script("""
        import socket
        port = int(os.environ["MASTER_PORT"])
        for host in ("127.0.0.1", ""):
            for option in (0, socket.SO_REUSEADDR, socket.SO_REUSEPORT):
                thief = socket.socket()
                if option:
                    thief.setsockopt(socket.SOL_SOCKET, option, 1)
                try:
                    thief.bind((host, port))
                except OSError as error:
                    note(f"refused {error.errno}")
                else:
                    note("stolen")
        import torch.distributed as dist
        dist.init_process_group("gloo")
        dist.barrier()
        if rank == 0:
            lines = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
            found = [line.split()[1] for line in lines.splitlines() if line.split()[3] == "0A"]
            note(f"listens {[place for place in found if place.endswith(f':{port:04X}')]}")
    """)
    ended = play_script(stage, tmp_path, script, start=2)
    assert ended.outcome.code == 0, ended.describe()
    assert ended.notes.count("refused 98") == 12
    assert "stolen" not in ended.notes
    [listens] = [note for note in ended.notes if note.startswith("listens")]
    # On the loopback address only: the store accepts every command of every client.
    assert listens.startswith("listens ['0100007F:")
    assert listens.count(":") == 1


def test_the_death_of_the_store_is_no_failure_of_the_script(stage, tmp_path, write_script):
    script = write_script("""
        import torch.distributed as dist
        dist.init_process_group("gloo")
        if count == 0 and rank == 0:
            own = os.getppid()
            children = Path(f"/proc/{own}/task/{own}/children").read_text().split()
            # The store is the oldest process of its world.
            os.kill(min(map(int, children)), signal.SIGKILL)
            time.sleep(1000)
        dist.barrier()
        note("done")
    """)
    ended = play_script(stage, tmp_path, script, start=2)
    assert ended.outcome.code == 0, ended.describe()
    assert ended.notes.count("done") == 2
    assert not ended.find_events("worker.failed")


@pytest.mark.parametrize("how", ["without a handler", "with a handler that ends with 143"])
def test_a_rank_that_gets_sigterm_from_outside_has_not_failed(stage, tmp_path, write_script, how):
    script = write_script(f"""
        import torch.distributed as dist
        if {how != "without a handler"}:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        dist.init_process_group("gloo")
        note("runs")
        if count == 0:
            time.sleep(1000)
        dist.barrier()
    """)

    async def preempt(run: LiveScript) -> None:
        await run.wait_for_note("runs", 2)
        await run.kill(1, signal.SIGTERM)

    ended = play_script(stage, tmp_path, script, disturb=preempt, start=2)
    assert ended.outcome.code == 0, ended.describe()
    assert "SIGTERM" in ended.find_events("worker.died")[0].why
    assert not ended.find_events("worker.failed")


def test_a_script_that_stalls_is_restarted_with_a_limit_for_its_silence(stage, tmp_path, write_script):
    script = write_script("""
        import torch.distributed as dist
        dist.init_process_group("gloo")
        if count == 0:
            if rank == 1:
                for number in range(24):
                    print("works", flush=True)
                    time.sleep(0.1)
                note("stalls")
                time.sleep(1000)
        dist.barrier()
        note("done")
    """)
    ended = play_script(stage, tmp_path, script, start=2, stall_s=2.0, max_restarts=1)
    assert ended.outcome.code == 0, ended.describe()
    # While one process prints, the others may be silent.
    assert ended.notes.index("stalls") < ended.notes.index("done")
    [hung] = ended.find_events("worker.hung")
    assert hung.why == "no process has printed anything for 2 s (--stall-timeout)"
    assert hung.workers == (0, 1)


def test_a_planned_change_announces_the_stop_and_leaves_time_to_save(stage, tmp_path, write_script):
    script = write_script("""
        def save(*_):
            note(f"saved {rank} within {os.environ['ELASTANE_GRACE_S']}")
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        note("ready")
        while size > 1:
            time.sleep(0.01)
    """)

    async def shrink(run: LiveScript) -> None:
        await run.wait_for_note("ready", 2)
        await run.drain(0)

    ended = play_script(stage, tmp_path, script, disturb=shrink, start=2)
    assert ended.outcome.code == 0, ended.describe()
    assert sorted(note for note in ended.notes if note.startswith("saved")) == [
        "saved 0 within 20",
        "saved 1 within 20",
    ]
    assert ended.find_events("generation.started")[-1].workers == (1,)
    assert not ended.find_events("warning")


def test_a_process_that_ignores_the_stop_is_killed_at_its_deadline(stage, tmp_path, write_script):
    script = write_script("""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        note("ready")
        while size > 1:
            time.sleep(0.01)
    """)

    async def shrink(run: LiveScript) -> None:
        await run.wait_for_note("ready", 2)
        await run.resize(1)

    ended = play_script(stage, tmp_path, script, disturb=shrink, start=2, grace_s=0.5)
    assert ended.outcome.code == 0, ended.describe()
    (warning,) = ended.find_events("warning")
    assert warning.why == "2 of 2 processes did not end within 0.5 s and were killed"


def test_a_rank_that_hangs_at_its_exit_is_reported_and_ends_with_the_run(stage, tmp_path, write_script):
    script = write_script("""
        if rank == 1:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(1000)
    """)

    async def stop(run: LiveScript) -> None:
        await run.wait_for_event("warning")
        await run.stop()

    ended = play_script(stage, tmp_path, script, disturb=stop, start=2, grace_s=0.5)
    assert ended.outcome.code == 130, ended.describe()
    assert ended.find_events("warning")[0].why.startswith("worker 1: not ended 0.5 s after another process")


def test_one_rank_that_ends_early_does_not_end_the_others(stage, tmp_path, write_script):
    script = write_script("""
        while rank == 0 and not (folder / "end").exists():
            time.sleep(0.01)
        note(f"end {rank}")
    """)

    async def end(run: LiveScript) -> None:
        await run.wait_for_note("end 1")
        (run.folder / "end").touch()

    ended = play_script(stage, tmp_path, script, disturb=end, start=2)
    assert ended.outcome.code == 0, ended.describe()
    assert ended.notes[-1] == "end 0"
    assert len(ended.find_events("generation.started")) == 1


def test_a_failure_ends_the_run_with_the_traceback_of_the_rank_that_failed(stage, tmp_path, write_script):
    script = write_script("""
        if rank == 1:
            raise ValueError("the loss is not finite")
        time.sleep(1000)
    """)
    ended = play_script(stage, tmp_path, script, start=2)
    assert ended.outcome.code == 1
    assert ended.outcome.why == "worker 1 failed: exit code 1"
    lines = ended.outcome.traceback.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1].strip().startswith(f'File "{script}"')
    assert lines[-1] == "ValueError: the loss is not finite"


def test_the_error_file_of_a_recorded_failure_is_read(stage, tmp_path, write_script):
    script = write_script("""
        from torch.distributed.elastic.multiprocessing.errors import record
        @record
        def main():
            raise ValueError("recorded")
        main()
    """)
    ended = play_script(stage, tmp_path, script)
    assert ended.outcome.traceback.rstrip().endswith("ValueError: recorded")
    (file,) = ended.run_dir.logs.glob("*.error-1.json")
    assert json.loads(file.read_text())["message"]["message"] == "ValueError: recorded"


def test_failures_restart_all_ranks_as_often_as_allowed(stage, tmp_path, write_script):
    script = write_script("""
        note(f"count {count} of {os.environ['TORCHELASTIC_MAX_RESTARTS']}")
        if rank == 1 and count < 2:
            os._exit(7)
    """)
    ended = play_script(stage, tmp_path, script, start=2, max_restarts=2)
    assert ended.outcome.code == 0, ended.describe()
    assert [event.why for event in ended.find_events("worker.failed")] == ["exit code 7"] * 2
    ended_early = [note for note in ended.notes if note.startswith("count")]
    assert set(ended_early) == {"count 0 of 2", "count 1 of 2", "count 2 of 2"}


def test_a_size_below_the_minimum_is_refused_instead_of_a_deadlock(stage, tmp_path, write_script):
    script = write_script("""
        while not (folder / "end").exists():
            time.sleep(0.01)
    """)
    answers = []

    async def ask(run: LiveScript) -> None:
        await run.wait_for_note("start")
        answers.extend([await run.ask(AskResize(workers=9)), await run.ask(AskDrain(worker=0))])
        (run.folder / "end").touch()

    ended = play_script(stage, tmp_path, script, disturb=ask, most=2)
    assert ended.outcome.code == 0, ended.describe()
    assert [answer.ok for answer in answers] == [False, False]
    assert answers[0].why == "9 workers are outside this run's limits: choose 1 to 2"
    assert answers[1].why.startswith("worker 0 cannot leave: a run needs one worker")


def test_a_killed_fork_server_takes_its_processes_along_and_is_replaced(stage, tmp_path, write_script):
    script = write_script("""
        note(f"pid {os.getpid()}")
        while count == 0:
            time.sleep(0.01)
    """)
    pids = []

    async def kill_server(run: LiveScript) -> None:
        await run.wait_for_note("pid", 2)
        pids.extend(int(note.split()[1]) for note in run.notes if note.startswith("pid"))
        status = await run.read_status()
        assert status is not None
        # In tests the handle is a client, which ends with the server.
        os.kill(find_parent(pids[0]), signal.SIGKILL)
        await run.wait_for_note("pid", 4)

    ended = play_script(stage, tmp_path, script, disturb=kill_server, start=2)
    assert ended.outcome.code == 0, ended.describe()
    assert not [pid for pid in pids if is_alive(pid)]


def find_parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
