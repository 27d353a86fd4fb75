"""Count the bytes that leave a node in one step, on two nodes with several workers each.

The nodes are namespaces of process ids of this machine: workers of different namespaces do not read each
other's memory, so they use TCP, as between machines. Only payloads count: partial sums, whole sums and new
values. Frames and votes are a few kB more. Every share of a worker is one node of the tree.

``--ratios`` starts nothing: it prints what the busiest node sends or receives by the plan of the product, for
other numbers of virtual ranks and nodes, as a multiple of 2 G (N-1)/N.
"""

import argparse
import json
import statistics
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path

from elastane.common.errors import ElastaneError
from elastane.integrations.recipes.traffic import count_node_traffic
from elastane.run.connections.coordinator_request import ask_coordinator
from elastane.run.nouns.control import AskStatus, AskStop
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.run_files import decode_ledger_line, read_lines
from elastane.run.protocol.layout import SMALLEST_BLOCK
from elastane.run.protocol.tree import expand_spans

from elastane_run import ELASTANE
from machine import HERE, describe_commit
from processes import Processes, exit_on_sigterm, wait_until
from text import format_table

HIDDEN = ("unshare", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child")
FIRST_NUMBER = 100
"""The workers of the second node have numbers from here on."""
GRADIENT_BYTES = 4 * (65 * 2048 + 2049 * 1024 + 1025 * 10)
"""G of `train_counted`."""
VIRTUAL_RANKS = 8
MEASURED_STEPS = 10
PLANNED_RANKS = (8, 12, 16, 24, 32, 48, 64, 96)
PLANNED_NODES = ((2, 2), (3, 1), (3, 2), (4, 2))
"""Numbers of nodes, and of workers of each."""
PLANNED_SECTIONS = ((SMALLEST_BLOCK, 4),) * 48
"""Gradients of 48 equal blocks, which all these numbers of workers divide."""


def count_left_bytes(folder: Path, run_dir: RunDir, workers: int) -> list[int]:
    """Return the bytes that left the first node in each step with all workers and even shares."""
    left: Counter[int] = Counter()
    for path in folder.glob("sent-*"):
        first = int(path.name.removeprefix("sent-")) < FIRST_NUMBER
        for key, size in json.loads(path.read_text()).items():
            round_, peer, _ = key.split()
            if first and int(peer) >= FIRST_NUMBER:
                left[int(round_)] += size
    even = VIRTUAL_RANKS // workers
    full = [
        line.step
        for line in read_lines(run_dir.ledger, decode_ledger_line, torn_tail=True)
        if [len(expand_spans(spans)) for spans in line.workers.values()] == [even] * workers
    ]
    # New values of a step, and its last frames, may be missing at the end.
    return [left[step] for step in full if step + 1 in left][:-1]


def measure(each: int, copies: str, folder: Path) -> float:
    """Return the bytes that leave the first of two nodes in a step, as a part of all gradients.

    Args:
        each: the workers of each node.
        copies: the number of copies of the optimizer state, or "all".
        folder: for the files of the run.
    """
    run_dir, home = RunDir((folder / "run").absolute()), str((folder / "home").absolute())
    script = [str(HERE / "train_counted.py"), f"--folder={folder.absolute()}"]
    options = ["--listen=127.0.0.2", f"--workers=1:{2 * each}", f"--start={each}", "--threads=1"]

    def count_members() -> int:
        with suppress(ElastaneError):
            rows = ask_coordinator(run_dir, AskStatus(), 2.0).processes
            return sum(row.role == "worker" and row.state == "member" for row in rows)
        return 0

    with Processes(folder / "logs") as processes:
        processes.start(
            [
                *(*ELASTANE, "run", *options, f"--copies={copies}", f"--run-dir={run_dir.root}"),
                *(f"--virtual-ranks={VIRTUAL_RANKS}", *script),
            ],
            ELASTANE_HOME=home,
        )
        wait_until(run_dir.endpoint.exists, "the run has begun")
        join = ["join", str(run_dir.root), f"--slots={each}", "--name=b"]
        processes.start([*HIDDEN, *ELASTANE, *join], ELASTANE_HOME=home)
        wait_until(lambda: count_members() == 2 * each, f"{2 * each} members")
        wait_until(
            lambda: len(count_left_bytes(folder, run_dir, 2 * each)) >= MEASURED_STEPS, "enough even steps"
        )
        ask_coordinator(run_dir, AskStop())
        # A stopped run ends with another code than 0.
        for process in processes.started:
            process.wait(60)
    return statistics.median(count_left_bytes(folder, run_dir, 2 * each)) / GRADIENT_BYTES


def compute_ratio(virtual_ranks: int, nodes: int, each: int) -> float:
    """Return what the busiest of ``nodes`` with ``each`` workers exchanges, as a multiple of 2 G (N-1)/N."""
    gradients = sum(elements * size for elements, size in PLANNED_SECTIONS)
    traffic = count_node_traffic(PLANNED_SECTIONS, virtual_ranks, [each] * nodes, None)
    return traffic.largest_bytes / (2 * gradients * (nodes - 1) / nodes)


def print_ratios() -> None:
    rows = [
        [str(ranks), *(f"{compute_ratio(ranks, nodes, each):.2f}" for nodes, each in PLANNED_NODES)]
        for ranks in PLANNED_RANKS
    ]
    print(format_table(["V", *(f"{nodes} x {each}" for nodes, each in PLANNED_NODES)], rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--each", type=int, nargs="+", default=[2, 4], help="workers of each node")
    parser.add_argument("--copies", nargs="+", default=["all", "2"])
    parser.add_argument("--ratios", action="store_true", help="print the planned multiples, and end")
    options = parser.parse_args()
    if options.ratios:
        print_ratios()
        return
    exit_on_sigterm()
    rows = []
    for each in options.each:
        for copies in options.copies:
            with tempfile.TemporaryDirectory() as folder:
                found = measure(each, copies, Path(folder))
            # Of two nodes: 2 G (N-1)/N is G.
            rows.append([f"2 nodes x {each} workers, --copies {copies}", f"{found:.3f} G", "1 G"])
    print(f"Commit {describe_commit()}; G is {GRADIENT_BYTES:,} bytes.\n")
    print(format_table(["run", "leaves a node in a step", "2 G (N-1)/N"], rows))


if __name__ == "__main__":
    main()
