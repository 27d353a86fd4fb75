"""Draw the picture of README.md from a real run: `make picture` writes docs/picture.svg.

The script trains a small GPT while workers join, are killed and are drained, then again on one worker,
undisturbed. `elastane verify` compares the two runs. The picture shows the loss of both, the number of
workers, and each kill. `--runs HOME` draws the runs of an earlier call again.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from elastane.run.nouns.records import EventLine, LedgerLine
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.drawing import Axis, choose_ticks, draw_frame, draw_path
from elastane.run.observability.run_files import read_run
from elastane.run.observability.series import find_sizes, find_step

ROOT = Path(__file__).parent.parent
TARGET = ROOT / "docs" / "picture.svg"
STEPS = 240
TRAINING = [str(ROOT / "examples/lm/train.py"), f"--steps={STEPS}", f"--evaluate-every={STEPS}"]
DISTURBANCES = (
    (25, "resize", "2"),
    (55, "resize", "4"),
    (90, "kill", "worker"),
    (120, "kill", "coordinator"),
    (145, "drain", ""),
    (170, "resize", "2"),
    (195, "kill", "worker"),
    (215, "resize", "3"),
)
"""Each disturbance and its argument, after the step after which it happens."""

WIDTH, LEFT, RIGHT = 920, 62, 20
CHARACTER = 6.6
"""The width of a character of a label, in pixels, as an estimate from above."""
LEGEND, MARK, ROW = 24, 52, 19
LOSS_TOP, LOSS_BOTTOM = 118, 322
WORKERS_TOP, WORKERS_BOTTOM = 362, 434
HEIGHT = 474
MARKS = {"worker.died": ("bad", "worker killed"), "coordinator.died": ("core", "coordinator killed")}

STYLE = """
:root { color-scheme: light dark; }
svg { font: 13px ui-sans-serif, system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
.paper { fill: #fbfaf8; } .title { fill: #1b1d22; font-weight: 600; font-size: 14px; }
.tick, .step, .note { fill: #62666f; } .tick { text-anchor: end; } .step { text-anchor: middle; }
.grid { stroke: #e6e3dd; } .base { stroke: #b9b6b0; }
.note { paint-order: stroke; stroke: #fbfaf8; stroke-width: 4; } .note.end { text-anchor: end; }
.reference { fill: none; stroke: #f0a13a; stroke-width: 7; stroke-opacity: .55; stroke-linejoin: round; }
.curve { fill: none; stroke: #3d4fd1; stroke-width: 1.6; stroke-linejoin: round; }
.area { fill: #3d4fd1; fill-opacity: .13; } .edge { fill: none; stroke: #3d4fd1; stroke-width: 2; }
.rule { stroke-width: 1.2; stroke-dasharray: 3 3; } .bad { stroke: #c8323a; } .core { stroke: #7a3fc0; }
.mark { fill: none; stroke-width: 2.2; stroke-linecap: round; }
.word.bad, .word.core { stroke: none; } .word { font-size: 12px; }
.word.bad { fill: #c8323a; } .word.core { fill: #7a3fc0; }
@media (prefers-color-scheme: dark) {
  .paper { fill: #121317; } .note { stroke: #121317; }
  .title { fill: #e9e9ee; } .tick, .step, .note { fill: #9a9fac; }
  .grid { stroke: #2b2e37; } .base { stroke: #4a4e5a; } .reference { stroke: #c98326; }
  .curve, .edge { stroke: #8e9cff; } .area { fill: #8e9cff; fill-opacity: .16; }
  .rule.bad, .mark.bad { stroke: #ff6b6f; } .rule.core, .mark.core { stroke: #bd8cff; }
  .word.bad { fill: #ff6b6f; } .word.core { fill: #bd8cff; }
}
"""


def main() -> None:
    """Run both trainings, unless `--runs` names finished ones, and draw them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=Path, help="draw the finished runs of this home again")
    parser.add_argument("--seed", type=int, default=1, help="the seed of the choice of workers and instants")
    options = parser.parse_args()
    home = options.runs or Path(tempfile.mkdtemp(prefix="elastane-picture-"))
    os.environ["ELASTANE_HOME"] = str(home)
    if options.runs is None:
        train_disturbed(random.Random(options.seed), home / "runs" / "elastic")
        call("run", "--name=reference", "--workers=1:1", *TRAINING)
    print(call("verify", "elastic", "reference"))
    elastic, reference = (read_run(RunDir(home / "runs" / name)) for name in ("elastic", "reference"))
    TARGET.write_text(draw(elastic.ledger, reference.ledger, elastic.events))
    print(f"wrote {TARGET}; the runs are in {home}")


def train_disturbed(dice: random.Random, run_dir: Path) -> None:
    """Train and disturb the run.

    Raises:
        SystemExit: the run ended before the last disturbance, or failed.
    """
    command = [
        sys.executable,
        "-m",
        "elastane",
        "run",
        "--name=elastic",
        "--workers=1:4",
        "--start=1",
        *TRAINING,
    ]
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    for step, verb, argument in DISTURBANCES:
        while count_steps(run_dir) < step:
            if run.poll() is not None:
                sys.exit(f"the run ended before step {step}, with exit code {run.returncode}")
            time.sleep(0.05)
        print(f"after step {count_steps(run_dir)}: {verb} {argument}", flush=True)
        if verb == "kill":
            time.sleep(dice.random() * 0.3)
            os.kill(dice.choice(find_processes(argument))["pid"], signal.SIGKILL)
        elif verb == "drain":
            call("drain", "elastic", str(dice.choice(find_processes("worker"))["worker"]), "--wait")
        else:
            call("resize", "elastic", argument, "--wait")
    if run.wait() != 0:
        sys.exit(f"the run failed with exit code {run.returncode}")


def call(*arguments: str) -> str:
    """Run an `elastane` command and return what it prints."""
    command = [sys.executable, "-m", "elastane", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def count_steps(run_dir: Path) -> int:
    ledger = run_dir / "ledger.jsonl"
    return ledger.read_bytes().count(b"\n") if ledger.exists() else 0


def find_processes(role: str) -> list[dict[str, Any]]:
    rows = json.loads(call("ps", "elastic", "--json"))
    return [row for row in rows if row["role"] == role and row["state"] != "standby"]


def draw(elastic: Sequence[LedgerLine], reference: Sequence[LedgerLine], events: Sequence[EventLine]) -> str:
    """Return the picture as SVG that follows the reader's choice of light or dark.

    Args:
        elastic: the ledger of the disturbed run.
        reference: the ledger of the undisturbed run.
        events: of the disturbed run.
    """
    x = Axis(1, len(elastic), LEFT, WIDTH - RIGHT)
    is_equal = all(a.loss == b.loss for a, b in zip(elastic, reference, strict=True))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>Loss and number of workers over {len(elastic)} steps</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}" rx="10"/>',
        *draw_legend(len(elastic), is_equal=is_equal),
        *draw_losses(elastic, reference, x),
        *draw_workers(elastic, x),
        *draw_kills(events, elastic, x),
        *draw_steps(x),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def draw_legend(steps: int, *, is_equal: bool) -> Iterable[str]:
    """Draw the legend above all lines, so that no line crosses it."""
    comparison = f"all {steps} losses equal, bit for bit" if is_equal else "the losses differ"
    lines = {"reference": "one worker, undisturbed", "curve": f"the workers below; {comparison}"}
    left = LEFT
    for name, text in lines.items():
        yield f'<path class="{name}" d="M{left} {LEGEND}h28"/>'
        yield f'<text class="note" x="{left + 38}" y="{LEGEND + 4}">{text}</text>'
        left += 38 + CHARACTER * len(text) + 30


def draw_losses(elastic: Sequence[LedgerLine], reference: Sequence[LedgerLine], x: Axis) -> Iterable[str]:
    losses = [line.loss for line in elastic if line.loss is not None]
    y = Axis(min(losses) * 0.9, max(losses) * 1.04, LOSS_BOTTOM, LOSS_TOP)
    yield from draw_frame("training loss", y, x, LOSS_TOP, LOSS_BOTTOM)
    for name, ledger in (("reference", reference), ("curve", elastic)):
        drawn = draw_path((x(line.step), y(line.loss) if line.loss is not None else None) for line in ledger)
        yield f'<path class="{name}" d="{drawn}"/>'


def draw_workers(ledger: Sequence[LedgerLine], x: Axis) -> Iterable[str]:
    sizes = find_sizes(ledger)
    y = Axis(0, max(size for _, size in sizes) * 1.1, WORKERS_BOTTOM, WORKERS_TOP)
    yield from draw_frame("workers", y, x, WORKERS_TOP, WORKERS_BOTTOM, ticks=4, whole=True)
    first, size = sizes[0]
    line = f"M{x(first)} {y(size)}" + "".join(f"H{x(step)}V{y(size)}" for step, size in sizes[1:])
    line += f"H{x(x.high)}"
    yield f'<path class="area" d="{line}V{WORKERS_BOTTOM}H{x(first)}Z"/><path class="edge" d="{line}"/>'


def draw_kills(events: Sequence[EventLine], ledger: Sequence[LedgerLine], x: Axis) -> Iterable[str]:
    """Draw a mark, a label and a line for each kill; a label lies below the labels that it would overlap."""
    ends: list[float] = []
    for event in events:
        if event.kind in MARKS:
            colour, words = MARKS[event.kind]
            at = x(find_step(event, ledger))
            row = max((above + 1 for above, end in enumerate(ends) if end > at - 10), default=0)
            ends[row:] = [at + 12 + CHARACTER * len(words)]
            y = MARK + ROW * row
            yield f'<path class="rule {colour}" d="M{at} {y + 8}V{WORKERS_BOTTOM}"/>'
            yield f'<path class="mark {colour}" d="M{at - 5} {y - 5}l10 10m0-10l-10 10"/>'
            yield f'<text class="word {colour}" x="{at + 12}" y="{y + 4}">{escape(words)}</text>'


def draw_steps(x: Axis) -> Iterable[str]:
    for value in choose_ticks(x.low, x.high, 8, whole=True):
        if x.low <= value <= x.high:
            yield f'<text class="step" x="{x(value)}" y="{WORKERS_BOTTOM + 19}">{value:,.0f}</text>'
    yield f'<text class="note end" x="{WIDTH - RIGHT}" y="{HEIGHT - 6}">step</text>'


if __name__ == "__main__":
    main()
