"""Spot checks: how many flipped bits they find and place, and the time that they cost.

``--flips N`` flips one bit of one gradient on one of three workers, N times in one run that checks every
step; each must be found, with the right worker and parameter, and the run must have the bytes of an
undisturbed one. ``--cost`` trains with checks off, by default and in every step, in turns, and compares the
times.
"""

import argparse
import random
import tempfile
from functools import partial
from pathlib import Path
from statistics import mean, median

from elastane.run.nouns.records import SPOT_CHECK_FAILED

import workload
from elastane_run import ElastaneRun
from job import Job

SIZE, WORKERS, VIRTUAL_RANKS = "1m", 3, 6
RULES = ("off", "auto", "every")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flips", type=int, default=0, metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--size", default="10m", choices=list(workload.SIZES))
    parser.add_argument("--steps", type=int, default=220)
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        if options.flips:
            measure_flips(Path(work), options.flips, random.Random(options.seed))
        if options.cost:
            measure_cost(Path(work), options.size, options.steps, options.repetitions)


def measure_flips(work: Path, flips: int, dice: random.Random) -> None:
    folder = work / "flips"
    folder.mkdir()
    job = Job(SIZE, 1_000_000, VIRTUAL_RANKS, work)
    parameters = dict(workload.GPT(workload.SIZES[SIZE]).named_parameters())
    found = placed = 0
    with ElastaneRun(
        job,
        work / "run",
        start=WORKERS,
        most=WORKERS,
        script="flips",
        options=("--spot-checks=every", "--digest-every=1"),
        environment={"FLIPS": str(folder)},
    ) as run:
        for number in range(1, flips + 1):
            run.wait(partial(is_complete, run), f"{WORKERS} workers")
            worker = dice.choice(sorted(run.read_ledger()[-1].workers))
            name = dice.choice(sorted(parameters))
            element, bit = dice.randrange(parameters[name].numel()), dice.randrange(32)
            (folder / "new").write_text(f"{name} {element} {bit}")
            (folder / "new").rename(folder / f"{worker}")
            run.wait(partial(has_found, run, number), f"flip {number}")
            event = run.read_events(SPOT_CHECK_FAILED)[-1]
            found += 1
            is_placed = event.who == f"worker {worker}" and f"first in {name};" in event.why
            placed += is_placed
            if not is_placed:
                print(
                    f"flip {number}: {name}[{element}], bit {bit}, worker {worker}: {event.who}: {event.why}"
                )
            run.resize(WORKERS)
        steps = run.count_steps()
        digests = {line.step: line.digest for line in run.read_ledger() if line.digest is not None}
    last = max(step for step in digests if step <= steps)
    same = train_undisturbed(work, last) == digests[last]
    print(f"{flips} bits flipped, one at a time: {found} found, {placed} placed (worker and parameter)")
    print(f"state after step {last}: {'the bytes of' if same else 'OTHER BYTES THAN'} an undisturbed run")


def is_complete(run: ElastaneRun) -> bool:
    """Return whether the last step was made by all workers, none of which has ended."""
    ledger = run.read_ledger()
    ended = {worker for event in run.read_events("worker.died") for worker in event.workers}
    return bool(ledger) and len(set(ledger[-1].workers) - ended) == WORKERS


def has_found(run: ElastaneRun, flips: int) -> bool:
    """Return whether that number of flips is found, and the run has decided to replace no worker."""
    decided = [event for event in run.read_events("resize.requested") if event.who == "coordinator"]
    return min(len(run.read_events(SPOT_CHECK_FAILED)), len(decided)) >= flips


def train_undisturbed(work: Path, steps: int) -> object:
    """Return the digest of the state after some steps of the same job on one worker."""
    job = Job(SIZE, steps, VIRTUAL_RANKS, work)
    environment = {"FLIPS": str(work / "none")}
    with ElastaneRun(job, work / "alone", start=1, most=1, script="flips", environment=environment) as run:
        run.finish_undisturbed()
        return run.read_ledger()[-1].digest


def measure_cost(work: Path, size: str, steps: int, repetitions: int) -> None:
    seconds: dict[str, list[float]] = {rule: [] for rule in RULES}
    extra: list[float] = []
    for repetition in range(repetitions):
        # In turns, so that other load on the machine affects all alike.
        for rule in RULES:
            out = work / f"{rule}-{repetition}"
            job = Job(size, steps, VIRTUAL_RANKS - 2, out)
            with ElastaneRun(job, out / "run", start=2, most=2, options=(f"--spot-checks={rule}",)) as run:
                run.finish_undisturbed(3600)
                lines = [line for line in run.read_ledger() if line.step > steps // 10]
            seconds[rule].append(mean(line.seconds["step"] for line in lines))
            if rule == "auto":
                usual = median(line.seconds["step"] for line in lines if not line.agreed)
                checks = sum(line.agreed for line in lines)
                spent = sum(line.seconds["step"] - usual for line in lines if line.agreed)
                extra.append(spent / (usual * len(lines)))
                print(
                    f"auto: {checks} checks in {len(lines)} steps, {extra[-1]:.2%} of the time of all steps"
                )
    for rule in RULES:
        ratios = sorted(ours / theirs for ours, theirs in zip(seconds[rule], seconds["off"], strict=True))
        print(
            f"{rule}: {1000 * median(seconds[rule]):.1f} ms a step; over that without checks "
            f"{median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
        )


if __name__ == "__main__":
    main()
