"""The targets, the measured figures, and the reasons of missed targets."""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

from text import format_table

Results = dict[str, Any]

BUSY = (
    "every core is busy, so a copy, a checksum or a write takes its time from the training; "
    "see the row of the bystander"
)


@dataclass(frozen=True)
class Verdict:
    """One target.

    Args:
        what: the measured quantity.
        target: in words.
        figure: the measured median.
        reached: whether the figure meets the target.
        why: the reason of a missed target, as far as it is known.
    """

    what: str
    target: str
    figure: str
    reached: bool
    why: str = ""


def render_verdicts(found: Results) -> list[str]:
    """Return the tables of all measured targets."""
    parts = ["## Targets"]
    for title, rules in (("The runtime", RUNTIME), ("Checkpoints and data", STATE)):
        rows = [
            [v.what, v.target, v.figure, "reached" if v.reached else f"**missed**: {v.why or 'see below'}"]
            for name, rule in rules.items()
            if name in found
            for v in rule(found[name])
        ]
        if rows:
            parts += [f"**{title}**", format_table(["", "target", "median", "result"], rows)]
    return parts


def require_at_most(what: str, limit: float, value: float, unit: str = "", why: str = "") -> Verdict:
    return Verdict(what, f"at most {limit:.3g}{unit}", f"{value:.3g}{unit}", value <= limit, why)


def require_at_least(what: str, limit: float, value: float, why: str = "") -> Verdict:
    return Verdict(what, f"at least {limit:.3g}", f"{value:.3g}", value >= limit, why)


def judge_usual_step(found: Results) -> Iterator[Verdict]:
    for size, at in found.items():
        for ours, theirs, beside in (
            ("elastane_1", "plain_1", "a plain loop, 1 worker"),
            ("elastane_2", "ddp_2", "DDP, 2 workers"),
        ):
            what = f"usual step / {beside}, {size}"
            yield require_at_most(
                what, 1.01, median(at[f"{ours}_over_{theirs}"]), why=_explain_by_tree(at, theirs)
            )


def _explain_by_tree(at: Results, theirs: str) -> str:
    """Explain a missed target by the cost of a plain loop that adds in the same tree."""
    if theirs != "plain_1" or "tree_1_over_plain_1" not in at:
        return ""
    tree, ours = median(at["tree_1_over_plain_1"]), median(at["elastane_1_over_tree_1"])
    return f"a plain loop with the same tree takes {tree:.3g} x its time, and Elastane {ours:.3g} x that"


def judge_join(found: Results) -> Iterator[Verdict]:
    for case, at in found["cases"].items():
        limit = 1.1 * max(1.0, median(at["control_slowest_over_usual"]))
        yield require_at_most(
            f"slowest step during a join / usual, {case}; 1.1 x that of a bystander",
            limit,
            median(at["join_slowest_over_usual"]),
        )


def judge_leave(found: Results) -> Iterator[Verdict]:
    yield require_at_most("pause of a planned leave, in usual steps", 1.0, median(found["pause_over_usual"]))
    yield require_at_most("microbatches computed again at a leave", 0, sum(found["recomputed_virtual_ranks"]))


def judge_death(found: Results) -> Iterator[Verdict]:
    yield require_at_most("death to commit, beyond computing", 0.3, median(found["beyond_work_s"]), " s")


def judge_coordinator_death(found: Results) -> Iterator[Verdict]:
    control = median(found["control_slowest_over_usual"])
    yield require_at_most(
        "slowest step around the coordinator's death / usual; 1.1 x that of a bystander",
        1.1 * max(1.0, control),
        median(found["slowest_over_usual"]),
    )


def judge_memory(found: Results) -> Iterator[Verdict]:
    peaks = found["peak_mb_per_worker"]
    for what, limit, ours, theirs in (
        ("memory of a worker / DDP's, whole copies", 1.1, "elastane_2_copies_all", "ddp_2"),
        ("memory of a worker / DDP's, 4 workers and 2 copies", 1.0, "elastane_4_copies_2", "ddp_4"),
    ):
        yield require_at_most(what, limit, median(peaks[ours]) / median(peaks[theirs]))


def judge_checkpoint_cost(found: Results) -> Iterator[Verdict]:
    for workers in ("1", "2"):
        at = found[workers]
        lost = {name: median(times["all_steps"]) for name, times in at["lost_s"].items()}
        beside = min(lost["dcp.save"], lost["dcp.async_save"])
        size = f"{workers} worker" + ("s" if workers != "1" else "")
        what = f"training time of a checkpoint, all steps, {size}"
        ours = lost["elastane"]
        yield Verdict(what, f"less than `dcp`, {beside:.3g} s", f"{ours:.3g} s", ours < beside, "see below")
        copy_s = median(at["floors"]["copy_s"])
        why = BUSY if workers != "1" else ""
        yield require_at_most(f"{what}; a copy in memory + 10 %", 1.1 * copy_s, ours, " s", why)


def judge_auto(found: Results) -> Iterator[Verdict]:
    yield require_at_most("share of the time that `auto` takes", 1.0, 100 * median(found["share"]), " %")


def judge_checkpoint_files(found: Results) -> Iterator[Verdict]:
    yield require_at_least("write / raw write with fsync", 0.8, median(found["write / raw"]))
    yield require_at_least("restore / raw read, from the disk", 0.7, median(found["restore / raw"]))
    yield require_at_least("restore / `dcp.load`, from the disk", 1.0, median(found["restore / dcp.load"]))
    yield require_at_most(
        "bytes on disk / bytes of state", 1.01, median(found["bytes on disk / bytes of state"])
    )


def judge_restore(found: Results) -> Iterator[Verdict]:
    for workers, at in found["workers"].items():
        what = f"restore, workers: {workers}, saved by {found['saved_by']}"
        checked = at.get("checked_over_elastane")
        why = f"a raw read with the same checksum takes {median(checked):.2f} of it" if checked else ""
        yield require_at_least(f"{what} / raw read", 0.7, median(at["raw_over_elastane"]), why)
        yield require_at_least(f"{what} / `dcp.load`", 1.0, median(at["dcp_over_elastane"]))


def judge_loading(found: Results) -> Iterator[Verdict]:
    for kind, by_loaders in found.items():
        for loaders, at in by_loaders.items():
            ratio = median(at["elastane_over_pytorch"])
            yield require_at_least(f"loading {kind}, loaders: {loaders} / PyTorch", 0.98, ratio)


RUNTIME = {
    "usual_step": judge_usual_step,
    "join": judge_join,
    "leave": judge_leave,
    "death": judge_death,
    "coordinator_death": judge_coordinator_death,
    "memory": judge_memory,
}
STATE = {
    "checkpoint_cost": judge_checkpoint_cost,
    "auto": judge_auto,
    "checkpoint_files": judge_checkpoint_files,
    "restore": judge_restore,
    "loading": judge_loading,
}
