"""Measure what the settings of an exact run cost a plain loop on a GPU, and where the host spends its time.

Each setting has a process of its own: none; ``CUBLAS_WORKSPACE_CONFIG`` alone; and deterministic algorithms,
too. RECIPE is a folder from ``elastane recipe eject``.

    python benchmarks/gpu/determinism.py RECIPE
"""

import os
import subprocess
import sys
from pathlib import Path

import torch
from elastane.integrations.recipes.data.open_data import load_tokenizer, open_data
from elastane.integrations.recipes.recipe_files import read_recipe
from elastane.run.worker.state.devices import WORKSPACE, pin_kernels, pin_libraries
from torch.profiler import ProfilerActivity, profile

sys.path.insert(0, str(Path(__file__).parents[1]))

from paired_steps import PlainLoop, read_clock

SETTINGS = ("none", "workspace", "workspace and deterministic algorithms")
WARMUP_STEPS, STEPS = 4, 10


def main() -> None:
    folder, *setting = sys.argv[1:]
    if setting:
        measure(folder, setting[0])
        return
    for name in SETTINGS:
        subprocess.run([sys.executable, __file__, folder, name], check=True)


def measure(folder: str, setting: str) -> None:
    """Print the time of a step, and the host's time in matrix products."""
    os.environ.pop(WORKSPACE, None)
    if setting != SETTINGS[0]:
        pin_libraries()
    if setting == SETTINGS[2]:
        pin_kernels(torch.device("cuda"))
    torch.manual_seed(0)
    torch.set_num_threads(1)
    recipe = read_recipe(str(Path(folder) / "recipe.yaml"))
    tokenizer = load_tokenizer(recipe.data, recipe.task)
    loop = PlainLoop(recipe, open_data(recipe.data, tokenizer, recipe.task, recipe.batch.context), tokenizer)
    for _ in range(WARMUP_STEPS):
        loop.step()
    began = read_clock()
    for _ in range(STEPS):
        loop.step()
    step_s = (read_clock() - began) / STEPS
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        loop.step()
    rows = profiled.key_averages()
    products = next(row for row in rows if row.key == "aten::mm")
    kernels_ms = sum(row.self_device_time_total for row in rows if row.device_type.name == "CUDA") / 1e3
    print(
        f"{setting}: a step takes {1e3 * step_s:.0f} ms; its kernels {kernels_ms:.0f} ms; the host is "
        f"{products.self_cpu_time_total / products.count:.0f} us in each of {products.count} matrix products",
        flush=True,
    )


if __name__ == "__main__":
    main()
