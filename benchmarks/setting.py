"""How much to measure."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Usual:
    """How long one repetition of the usual step lasts.

    Args:
        warmup: steps not counted.
        steps: steps counted.
    """

    warmup: int
    steps: int


@dataclass(frozen=True)
class Setting:
    """What every measurement is given.

    Args:
        work: folder for everything a measurement leaves behind; removed afterwards.
        repetitions: of each measurement.
        size: the workload of every measurement of a change (join, leave, death).
        usual: the sizes whose usual step is measured, and for how long.
        memory: the size whose memory is measured.
        state: the size whose state is kept and read back.
        calm_steps: between two changes, to learn what is usual.
    """

    work: Path
    repetitions: int
    size: str
    usual: dict[str, Usual]
    memory: str
    state: str
    calm_steps: int


def full(work: Path) -> Setting:
    return Setting(
        work=work,
        repetitions=5,
        size="10m",
        usual={"10m": Usual(warmup=4, steps=15), "100m": Usual(warmup=1, steps=5)},
        memory="100m",
        state="100m",
        calm_steps=10,
    )


def quick(work: Path) -> Setting:
    """To try the harness: the numbers mean little."""
    return Setting(
        work=work,
        repetitions=2,
        size="1m",
        usual={"1m": Usual(warmup=3, steps=10)},
        memory="1m",
        state="1m",
        calm_steps=10,
    )
