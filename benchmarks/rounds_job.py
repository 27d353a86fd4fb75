"""The job of a contestant that trains in rounds, as a value and as a command line."""

import argparse
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

import workload
from job import HERE, Job

UNKNOWN = 0
"""In place of the number of a round, in the ticks of inner steps."""
WIRES = ("full", "bf16", "int8", "int4")
SCRIPTS = {"elastane": "train_rounds.py", "torchft": "train_torchft_rounds.py"}


@dataclass(frozen=True)
class RoundsJob(Job):
    """A job in rounds; its steps are rounds, and its virtual ranks are those of a round.

    Args:
        inner_steps: the steps of each virtual rank in a round.
        microbatch: the sequences of an inner step of a virtual rank.
        wire: the format of what crosses the link.
        group: the virtual ranks that are rounded together.
        delay: the rounds after which differences are exchanged.
    """

    inner_steps: int
    microbatch: int
    wire: Literal["full", "bf16", "int8", "int4"] = "full"
    group: int = 1
    delay: Literal[0, 1] = 0

    def build_script_command(self, contestant: str) -> list[str]:
        options = {each.name.replace("_", "-"): getattr(self, each.name) for each in fields(self)}
        return [str(HERE / SCRIPTS[contestant]), *(f"--{name}={value}" for name, value in options.items())]

    @property
    def tokens(self) -> int:
        """The tokens of a round."""
        context = workload.SIZES[self.size].context
        return self.inner_steps * self.virtual_ranks * self.microbatch * context


def parse_job() -> RoundsJob:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", required=True)
    parser.add_argument("--out", type=Path, required=True)
    for name in ("steps", "virtual-ranks", "inner-steps", "microbatch", "group", "delay"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--wire", choices=WIRES, required=True)
    return RoundsJob(**vars(parser.parse_args()))
