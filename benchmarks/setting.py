"""The extent of the measurements."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Usual:
    """The length of one repetition of the usual step.

    Args:
        warmup: the number of first steps that do not count.
        steps: the number of steps that count.
    """

    warmup: int
    steps: int


@dataclass(frozen=True)
class Setting:
    """The settings of every measurement.

    Args:
        work: the folder of all files of a measurement; removed afterwards.
        repetitions: the number of repetitions of each measurement.
        size: the workload of every measurement of a change (join, leave, death).
        usual: the sizes for the usual step, with their lengths.
        memory: the size for the measurement of memory.
        state: the size for saving and restoring state.
        calm_steps: the undisturbed steps between two changes, which give the usual step.
    """

    work: Path
    repetitions: int
    size: str
    usual: dict[str, Usual]
    memory: str
    state: str
    calm_steps: int


def make_full(work: Path) -> Setting:
    return Setting(
        work=work,
        repetitions=5,
        size="10m",
        usual={"10m": Usual(warmup=4, steps=15), "100m": Usual(warmup=1, steps=5)},
        memory="100m",
        state="100m",
        calm_steps=10,
    )


def make_quick(work: Path) -> Setting:
    """Return a setting that tries the harness; its numbers mean little."""
    return Setting(
        work=work,
        repetitions=2,
        size="1m",
        usual={"1m": Usual(warmup=3, steps=10)},
        memory="1m",
        state="1m",
        calm_steps=10,
    )
