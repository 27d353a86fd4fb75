"""A small stand-in for the fork server: its workers take part in the protocol and do not train.

A worker reports ready once its agent has reported its start, adopts what is proposed, finishes when told to
stop, and leaves when dismissed. A file ``hang-N`` in the run directory makes worker N stop its heartbeats
within a step.
"""

import argparse
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from elastane.run.nouns.control import (
    Dismiss,
    ModelWritten,
    Propose,
    StopTraining,
    WorkerReport,
    WriteModel,
    decode_to_worker,
    encode,
)
from elastane.run.nouns.heartbeat_file import SLOT, Phase, compute_slot_offset
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import Pinned
from elastane.run.observability.run_files import read_events

PINNED = Pinned(
    script_digest="",
    virtual_ranks=8,
    global_batch=8,
    microbatch=1,
    dataset_length=8,
    steps=10,
    seed=0,
    threads=1,
    convergence="exact",
    copies=None,
    parameters=1,
    blocks=1,
    layout_digest="",
    optimizer="",
    versions={},
)


def beat(run_dir: RunDir, worker: int) -> None:
    with run_dir.node_files.beats.open("r+b", buffering=0) as file:
        for count in range(1, 1 << 30):
            if not (run_dir.root / f"hang-{worker}").exists():
                file.seek(compute_slot_offset(worker))
                file.write(SLOT.pack(count, Phase.STEP, 0.05))
            time.sleep(0.02)  # not a wait: paces the heartbeats


def is_reported(run_dir: RunDir, worker: int) -> bool:
    """Return whether the agent has reported that this worker started, and so the end of the one it replaces.

    A real worker imports and rehearses meanwhile. The first report of a faster one would overtake that of the
    agent, and the run would dismiss the worker because it still counts the one that has ended.
    """
    events = read_events(run_dir, torn_tail=True) if run_dir.events.exists() else ()
    return any((event.kind, event.who) == ("worker.started", f"worker {worker}") for event in events)


def take_part(run_dir: RunDir, worker: int) -> int:
    threading.Thread(target=beat, args=(run_dir, worker), daemon=True).start()
    while not is_reported(run_dir, worker):
        time.sleep(0.01)  # not a wait: this program imports nothing from tests
    said = {"worker": worker, "pid": os.getpid(), "host": "127.0.0.1", "port": 1, "pinned": PINNED}
    said |= {"state": "ready"}
    while True:
        endpoint = json.loads(run_dir.endpoint.read_text())
        headers = {"Authorization": f"Bearer {run_dir.secret.read_text()}"}
        try:
            with connect(
                f"ws://127.0.0.1:{endpoint['port']}", additional_headers=headers, proxy=None
            ) as line:
                while True:
                    line.send(encode(WorkerReport(**said)))
                    try:
                        message = decode_to_worker(line.recv(timeout=0.1))
                    except TimeoutError:
                        continue
                    match message:
                        case Propose(generation=generation):
                            inside = worker in generation
                            said |= {"state": "member" if inside else "leaving", "newest": generation}
                            said |= {"generation": generation.number, "complete": True}
                        case StopTraining():
                            said |= {"state": "finished", "stopped": True}
                        case WriteModel():
                            line.send(encode(ModelWritten(worker=worker)))
                        case Dismiss(code=code):
                            return code
        except (OSError, EOFError, WebSocketException):
            time.sleep(0.01)  # not a wait: paces the attempts to connect


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", type=Path)
    parser.add_argument("--lifeline", type=int)
    parser.add_argument("--attempt", type=int)
    options = parser.parse_args()
    workers: dict[int, int] = {}

    def say(**message: int | str) -> None:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()

    def reap(*_: object) -> None:
        for pid in list(workers):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                say(event="exited", worker=workers.pop(pid), pid=pid, code=code)

    signal.signal(signal.SIGCHLD, reap)
    say(event="ready")
    for line in sys.stdin:
        for start in json.loads(line)["start"]:
            pid = os.fork()
            if pid == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os._exit(take_part(RunDir(options.run_dir), start["worker"]))
            workers[pid] = start["worker"]
            say(event="started", worker=start["worker"], pid=pid)


main()
