"""The cost of ``--numerics portable``: steps of three models under each setting, in processes that alternate.

Run it with ``python benchmarks/numerics.py``. It prints the median of the ratios of neighbouring processes. A
probe's cost is the time to digest the gradients, as a share of the forward and backward pass.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median

import torch
import xxhash
from elastane.run.agent.environment import build_worker_environment
from torch import nn

ROUNDS, SECONDS = 5, 1.0
SETTINGS = ("native", "portable")
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "MLP": (lambda: nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512)), (64, 256)),
    "transformer": (lambda: nn.TransformerEncoderLayer(128, 4, 512, 0.0, batch_first=True), (8, 64, 128)),
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3)),
        (8, 3, 32, 32),
    ),
}


def measure_model(build: Callable[[], nn.Module], shape: tuple[int, ...]) -> dict[str, float | str]:
    """Return the seconds of a microbatch and of the digest of its gradients, and the digest."""
    torch.manual_seed(0)
    model, inputs = build(), torch.randn(shape)
    seconds, digests_s, digest = [], [], xxhash.xxh3_64()
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        model.zero_grad()
        began = time.perf_counter()
        model(inputs).pow(2).mean().backward()
        computed = time.perf_counter()
        digest = xxhash.xxh3_64()
        for parameter in model.parameters():
            assert parameter.grad is not None, "every parameter takes part"
            digest.update(parameter.grad.numpy().data)
        seconds.append(computed - began)
        digests_s.append(time.perf_counter() - computed)
    return {"pass_s": median(seconds), "digest_s": median(digests_s), "digest": digest.hexdigest()}


def run_child(setting: str) -> dict[str, dict[str, float]]:
    """Measure all models in a new process with this setting."""
    done = subprocess.run(
        [sys.executable, __file__, "--child"],
        env=build_worker_environment(os.environ, 1, setting),
        capture_output=True,
        check=True,
        text=True,
    )
    result: dict[str, dict[str, float]] = json.loads(done.stdout)
    return result


def main() -> None:
    if "--child" in sys.argv:
        torch.set_num_threads(1)
        print(json.dumps({name: measure_model(*model) for name, model in MODELS.items()}))
        return
    rounds = [{setting: run_child(setting) for setting in SETTINGS} for _ in range(ROUNDS)]
    for name in MODELS:
        ratios = [r["portable"][name]["pass_s"] / r["native"][name]["pass_s"] for r in rounds]
        shares = [r["native"][name]["digest_s"] / r["native"][name]["pass_s"] for r in rounds]
        same = len({r[setting][name]["digest"] for r in rounds for setting in SETTINGS}) == 1
        print(
            f"{name}: portable takes {median(ratios):.2f} times as long "
            f"({min(ratios):.2f} to {max(ratios):.2f}); {'the same' if same else 'other'} bits; "
            f"digest {median(shares):.1%} of a pass"
        )


if __name__ == "__main__":
    main()
