"""``metrics.json``: the results of a run and the costs of its changes, in numbers."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from elastane.run.nouns.records import TRAFFIC, EventLine, LedgerLine
from elastane.run.observability.attempts import AttemptCost, compute_attempt_costs
from elastane.run.observability.evaluations import KIND, read_evaluation_count, read_evaluation_means
from elastane.run.observability.facts import Facts, collect_facts
from elastane.run.observability.run_files import Recorded
from elastane.run.observability.series import find_sizes, find_step


class Score(msgspec.Struct, frozen=True):
    """The totals of one evaluation after ``step``; None for a total that was not finite.

    ``samples`` is the number of evaluated samples. ``means`` are the totals divided by ``count``; ``counted``
    is the name of the count: samples, or another total of the script.
    """

    step: int
    sums: Mapping[str, float | int | str | None]
    samples: int | None = None
    means: Mapping[str, float | None] = {}
    counted: str = "samples"
    count: float = 0.0


class Pause(msgspec.Struct, frozen=True):
    """The cost of a new generation: the longest wait of a healthy worker, in ms and in its usual steps."""

    step: int
    why: str
    workers: int
    longest_ms: float
    longest_steps: float | None


class Checkpoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """A checkpoint that was written or, if ``used``, one from which the run continued.

    ``copy_s`` is the duration of the copy, for which a step may have waited; ``write_s`` is the duration of
    the writing in the background. Both are those of the slowest worker, None if unknown.
    """

    name: str
    step: int | None
    used: bool
    bytes: int = 0
    copy_s: float | None = None
    write_s: float | None = None


class Traffic(msgspec.Struct, frozen=True):
    """What a machine exchanges with the others in a usual step of a generation; see `TrafficBytes`.

    Args:
        generation: its steps were measured.
        node: the name of the machine, empty for the first one.
        workers: how many are on it.
        sent_bytes: by all of them together, in one step.
        received_bytes: likewise.
    """

    step: int
    generation: int
    node: str
    workers: int
    sent_bytes: int
    received_bytes: int


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of a run.

    Args:
        facts: the most important ones.
        epochs: samples trained on, divided by the size of the dataset.
        samples_per_s: speed during steps; None without steps.
        goodput: share of the wall time that advanced the training: the time in steps, less the time that
            healthy workers waited for changes, divided by the time from the first record to the last. None
            without steps.
        workers: ``[first step, workers]`` for each number of workers.
        evaluations: all evaluations, in order.
        logged: the latest value of each name that the script has logged; None: it was not finite.
        pauses: the pause of every generation that followed another.
        events: number of events of each kind.
        checkpoints: those written or used, in order.
        attempts: costs of all attempts after the first.
        traffic: the bytes between machines in each generation of several machines that lasted long enough.
    """

    facts: Facts
    epochs: float | None
    samples_per_s: float | None
    goodput: float | None
    workers: tuple[tuple[int, int], ...]
    evaluations: tuple[Score, ...]
    logged: dict[str, float | None]
    pauses: tuple[Pause, ...]
    events: dict[str, int]
    checkpoints: tuple[Checkpoint, ...]
    attempts: tuple[AttemptCost, ...] = ()
    traffic: tuple[Traffic, ...] = ()


def compute_metrics(run: Recorded) -> Metrics:
    facts, pinned = collect_facts(run), run.record.pinned
    pauses = tuple(collect_pauses(run.events))
    stepping_s = sum(line.seconds.get("step", 0.0) for line in run.ledger)
    return Metrics(
        facts=facts,
        epochs=facts.samples / pinned.dataset_length if pinned and pinned.dataset_length else None,
        samples_per_s=facts.samples / stepping_s if stepping_s else None,
        goodput=compute_goodput(stepping_s, pauses, facts.wall_s),
        workers=tuple(find_sizes(run.ledger)),
        evaluations=tuple(collect_scores(run.events, run.ledger)),
        logged=collect_latest_values(run.ledger),
        pauses=pauses,
        events=dict(sorted(Counter(event.kind for event in run.events).items())),
        checkpoints=tuple(collect_checkpoints(run.events)),
        attempts=compute_attempt_costs(run.events, run.ledger),
        traffic=tuple(collect_traffic(run.events)),
    )


def compute_goodput(stepping_s: float, pauses: Sequence[Pause], wall_s: float) -> float | None:
    """Compute `Metrics.goodput`.

    A step's time is that of its slowest worker, so steps may overlap a little.
    """
    if not stepping_s or not wall_s:
        return None
    waited_s = sum(pause.longest_ms for pause in pauses) / 1000
    return min(1.0, max(0.0, stepping_s - waited_s) / wall_s)


def collect_scores(events: Sequence[EventLine], ledger: Sequence[LedgerLine]) -> list[Score]:
    return [
        Score(
            find_step(event, ledger),
            event.detail,
            event.samples,
            read_evaluation_means(event),
            *read_evaluation_count(event),
        )
        for event in events
        if event.kind == KIND
    ]


def collect_pauses(events: Sequence[EventLine]) -> list[Pause]:
    pauses = []
    for event in events:
        if event.kind == "generation.started" and event.pause_ms:
            worker = max(event.pause_ms, key=event.pause_ms.__getitem__)
            ms, steps = event.pause_ms[worker], event.pause_steps.get(worker)
            pauses.append(Pause(event.step or 0, event.why, len(event.workers), ms, steps))
    return pauses


def collect_traffic(events: Sequence[EventLine]) -> list[Traffic]:
    return [
        Traffic(
            event.step or 0,
            event.generation or 0,
            str(event.detail.get("node") or ""),
            len(event.workers),
            read_bytes_detail(event, "sent_bytes"),
            read_bytes_detail(event, "received_bytes"),
        )
        for event in events
        if event.kind == TRAFFIC
    ]


def read_bytes_detail(event: EventLine, name: str) -> int:
    size_bytes = event.detail.get(name)
    return size_bytes if isinstance(size_bytes, int) else 0


USED = {"checkpoint.saved": False, "run.resumed": True}


def collect_checkpoints(events: Sequence[EventLine]) -> list[Checkpoint]:
    found = []
    for event in events:
        if event.kind in USED:
            step = event.detail.get("step", event.step)
            name = str(event.detail.get("name") or event.why)
            found.append(
                Checkpoint(
                    name,
                    step if isinstance(step, int) else None,
                    USED[event.kind],
                    read_bytes_detail(event, "bytes"),
                    read_seconds(event, "copy_s"),
                    read_seconds(event, "seconds"),
                )
            )
    return found


def read_seconds(event: EventLine, name: str) -> float | None:
    seconds = event.detail.get(name)
    return float(seconds) if isinstance(seconds, int | float) else None


# -- the latest values that a script has logged; `elastane.run.observability.curves` draws all of them ---


def collect_latest_values(ledger: Iterable[LedgerLine]) -> dict[str, float | None]:
    """Return the newest value of each name, in order of appearance; None: it was not finite."""
    latest: dict[str, float | None] = {}
    for line in ledger:
        latest.update(line.logged)
    return latest
