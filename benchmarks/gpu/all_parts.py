"""Run all tests and measurements that need a GPU, on one GPU, in at most eight minutes: ``make gpu``.

The most valuable part comes first. Each part has a process and a limit of its own, and ends with a line of
JSON, also if it fails or reaches its limit. ``--part NAME`` runs one part again (``make gpu PART=NAME``).
Without a GPU nothing runs; ``--small`` runs the same programs on the CPU, where memory of the host stands for
that of the device, to try them.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SHOWN_LINES = 12
LAYERS_OF_85M = {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12}
LAYERS_OF_1B = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 20}

Figures = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """One part.

    Args:
        limit_s: its process is killed after this many seconds.
        build: returns the command, from whether it is small and from the file for its figures.
    """

    name: str
    limit_s: int
    build: Callable[[bool, Path], list[str]]


def build_program(script: str, *small: str) -> Callable[[bool, Path], list[str]]:
    """Return the builder of a command of a script of this folder, with arguments for a small run."""

    def build(is_small: bool, figures: Path) -> list[str]:
        return [sys.executable, str(HERE / script), "--json", str(figures), *(small if is_small else ())]

    return build


def build_tests(small: bool, figures: Path) -> list[str]:
    """Return the command of the tests on both memories of sums; a small run has a few of those on the CPU."""
    worker, runs = "tests/run/worker", "tests/run/processes/test_devices.py"
    if small:
        chosen = [
            f"{worker}/test_rooms.py",
            f"{runs}::test_workers_with_rooms_train_with_some_that_have_none",
        ]
    else:
        chosen = [f"{worker}/test_{name}.py" for name in ("device", "work_queue", "row_sums")] + [runs]
    selected = [] if small else ["-k", "gpu or cuda or test_device.py"]
    # Tests choose the memory themselves.
    pytest = ["env", "ELASTANE_ROOMS=0", sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    processes = ["-n", "1" if small else "4"]
    return [*pytest, *processes, *selected, "-m", "not long", f"--junitxml={figures}", *chosen]


def build_throughput(layers: dict[str, int], steps: int) -> Callable[[bool, Path], list[str]]:
    """Return the builder of the command that compares one worker with a plain loop."""

    def build(small: bool, figures: Path) -> list[str]:
        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2} if small else layers
        heads = {"num_attention_heads": 2, "num_key_value_heads": 2} if small else {}
        heads = heads or dict.fromkeys(
            ("num_attention_heads", "num_key_value_heads"), sizes["hidden_size"] // 64
        )
        length = 32 if small else 1024
        changes = {f"model.config.{name}": value for name, value in (sizes | heads).items()} | {
            "model.config.max_position_embeddings": length,
            "batch.context": length,
            "training.autocast": str(not small).lower(),
            "data.vocabulary": 512 if small else 4096,
        }
        return [
            *(sys.executable, str(HERE.parent / "recipe_throughput.py"), "--json", str(figures)),
            *(f"--steps={8 if small else steps}", f"--samples={1 if small else 8}", "--repetitions=1"),
            *("--kinds", "recipe", "loop"),
            *(word for name, value in changes.items() for word in ("--set", f"{name}={value}")),
        ]

    return build


def build_trainer(small: bool, figures: Path) -> list[str]:
    steps = ["--pairs=1", "--steps=8"] if small else ["--pairs=2"]
    return [sys.executable, str(HERE.parent / "transformers_trainer.py"), "--json", str(figures), *steps]


PARTS = (
    Part("facts", 30, build_program("facts.py")),
    Part("tests", 100, build_tests),
    Part("rooms", 30, build_program("rooms.py", "--mib=8")),
    Part("workers", 80, build_program("workers.py", "--small")),
    Part("85m", 60, build_throughput(LAYERS_OF_85M, 15)),
    Part("trainer", 45, build_trainer),
    Part("sums", 25, build_program("sums.py", "--mib=4")),
    Part("1b", 65, build_throughput(LAYERS_OF_1B, 9)),
    Part("gangs", 40, build_program("divided_workers.py", "--small")),
)
"""The sum of all limits is less than eight minutes."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=[part.name for part in PARTS], action="append")
    parser.add_argument("--small", action="store_true", help="on the CPU, to try the programs")
    options = parser.parse_args()
    if not options.small and not torch.cuda.is_available():
        print("no CUDA device: torch.cuda.is_available() is False, so nothing was run")
        return
    kept = ROOT / "build" / "gpu.jsonl"
    kept.parent.mkdir(exist_ok=True)
    failed = 0
    with kept.open("a") as file:
        for part in PARTS:
            if options.part is None or part.name in options.part:
                line = run_part(part, small=options.small)
                failed += not line["ok"]
                text = json.dumps(line)
                print(text, flush=True)
                file.write(text + "\n")
    sys.exit(bool(failed))


def run_part(part: Part, *, small: bool) -> Figures:
    """Run one part to its end or to its limit, and return its line."""
    device = "CPU" if small else torch.cuda.get_device_name()
    line: Figures = {"part": part.name, "device": device, "torch": torch.__version__}
    line["date"] = time.strftime("%Y-%m-%d")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        figures, log = Path(folder) / "figures.json", Path(folder) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                part.build(small, figures),
                cwd=ROOT,
                env=find_environment(folder, small=small),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = process.wait(part.limit_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                end_session(process)
        line |= {"ok": code == 0, "seconds": round(time.monotonic() - began, 1), "limit_s": part.limit_s}
        line |= read_figures(figures)
        if code != 0:
            line["why"] = f"its limit of {part.limit_s} s" if code is None else f"exit code {code}"
            line["log"] = log.read_text(errors="replace").splitlines()[-SHOWN_LINES:]
    return line


def end_session(process: subprocess.Popen[bytes]) -> None:
    """Kill the remaining processes of a part."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def find_environment(folder: str, *, small: bool) -> dict[str, str]:
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    found = os.environ | {
        "ELASTANE_HOME": str(Path(folder) / "home"),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "ELASTANE_ROOMS": "1",
        "OMP_NUM_THREADS": "1",
    }
    return found | ({"CUDA_VISIBLE_DEVICES": ""} if small else {})


def read_figures(file: Path) -> Figures:
    """Return what a part has written: JSON, or the counts of a report of tests."""
    if not file.exists():
        return {}
    text = file.read_text()
    if text.startswith("<"):
        suite = text[text.index("<testsuite ") :].split(">", 1)[0]
        counts = dict(word.split("=", 1) for word in suite.split() if "=" in word)
        return {name: int(counts[name].strip('"')) for name in ("tests", "failures", "errors", "skipped")}
    found = json.loads(text)
    return found if isinstance(found, dict) else {"rows": found}


if __name__ == "__main__":
    main()
