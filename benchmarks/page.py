"""``docs/benchmarks.md``, drawn from a results file alone."""

from collections.abc import Callable
from statistics import median
from typing import Any

import verdict
from spread import said
from text import prose, table

Results = dict[str, Any]


def page(results: Results, source: str) -> str:
    """Return the page for the results in the file ``source``."""
    machine = results["machine"]
    found, taken = results["measurements"], results["taken"]
    minutes = sum(each["minutes"] for each in taken.values())
    parts = [
        "# Benchmarks",
        prose(
            f"""
            Drawn by `make bench` from `{source}`; do not edit. Every number is the median of its
            repetitions on one machine, with the lowest and the highest in brackets.
            """
        ),
        prose(
            f"""
            **Machine**: {machine["cpu"]}, {machine["cores"]} cores, {machine["memory_gb"]} GB,
            {machine["system"]}, Python {machine["python"]}, torch {machine["torch"]}. One thread
            per worker. All together took {minutes:.0f} minutes; each part says when it was measured.
            """
        ),
        prose(
            """
            **Work**: the same GPT, the same number of microbatches and fused AdamW for all.
            Contestants take turns, so that whatever else the machine did burdens all alike; a
            ratio compares neighbours in time.
            """
        ),
    ]
    parts += verdict.drawn(found)
    for name, (title, draw) in SECTIONS.items():
        if name in found:
            parts += [f"## {title}", *(draw(found[name]))]
            parts.append(f"`benchmarks/{name}.py`, {when(taken.get(name))}.")
    return "\n\n".join(parts) + "\n"


def when(taken: Results | None) -> str:
    if taken is None:
        return "measured before this page said when"
    return f"measured {taken['date']} UTC at `{taken['elastane']}` in {taken['minutes']:.1f} minutes"


BESIDE = {
    "plain_1": "plain loop, workers: 1",
    "tree_1": "plain loop that adds in a tree, workers: 1",
    "ddp_2": "DDP, workers: 2",
}


def usual_step(found: Results) -> list[str]:
    rows = []
    for size, at in found.items():
        seconds = at["step_s"]
        for theirs, ours in (("plain_1", "elastane_1"), ("tree_1", "elastane_1"), ("ddp_2", "elastane_2")):
            if theirs not in seconds:
                continue
            rows.append(
                [
                    size.upper().replace("M", " M"),
                    BESIDE[theirs],
                    said(seconds[theirs], "s", digits=3),
                    said(seconds[ours], "s", digits=3),
                    said(at[f"{ours}_over_{theirs}"], digits=3),
                ]
            )
    return [
        prose(
            """
            A step at a fixed number of workers, nothing happening: the price of being elastic at all.
            The second plain loop is the simplest program that adds gradients as a fixed tree has them,
            so that any number of workers could share the sum; what it takes longer than the first is
            what that costs in memory traffic alone.
            """
        ),
        table(["parameters", "beside", "step", "Elastane's step", "ratio"], rows),
    ]


def join(found: Results) -> list[str]:
    rows = []
    for case, at in found["cases"].items():
        controls = [each["took_s"] for each in at["control"]]
        rows += [
            [case, "a worker joins", said(at["join_slowest_over_usual"]), said(at["join_s"], "s")],
            ["", "a bystander starts", said(at["control_slowest_over_usual"]), said(controls, "s")],
        ]
    return [
        prose(
            """
            One more worker joins a run. The control is a process that has nothing to do with the
            run and only imports torch, builds the model and computes one batch: sharing the
            machine with a newcomer costs that.
            """
        ),
        table(["model, workers", "", "slowest step of those already there / their usual step", "took"], rows),
    ]


def leave(found: Results) -> list[str]:
    again = sum(found["recomputed_virtual_ranks"])
    return [
        "One worker of two is drained.",
        table(
            [
                "the stayer's slowest step beyond its usual one",
                "in usual steps",
                "microbatches computed again",
            ],
            [[said(found["pause_s"], "ms", 1e3, 0), said(found["pause_over_usual"]), f"{again:.0f}"]],
        ),
    ]


def death(found: Results) -> list[str]:
    return [
        prose(
            """
            `kill -9` of one worker of three in the middle of a step. Nobody goes back: the
            survivors compute the missing virtual ranks and commit that very step.
            """
        ),
        table(
            ["", "seconds"],
            [
                ["usual step of three", said(found["usual_step_s"], "s")],
                ["from the death to the commit of its step", said(found["to_commit_s"], "s")],
                ["of it beyond computing (own rest and missing ranks)", said(found["beyond_work_s"], "s")],
                ["until the death was written down", said(found["noticed_s"], "ms", 1e3, 0)],
                [
                    "microbatches computed again, of " + str(found["virtual_ranks"]),
                    said(found["recomputed"], "", 1, 0),
                ],
            ],
        ),
    ]


def restart(found: Results) -> list[str]:
    if "skipped" in found:
        return [f"Not measured: {found['skipped']}."]
    return [
        prose(
            """
            The same model under `torchrun --nnodes=1:2` with a snapshot every ten steps. A stall
            is a time in which no step was finished for the first time.
            """
        ),
        table(
            ["", "stall", "steps done again", "usual step"],
            [
                [what, said(found[f"{key}_stall_s"], "s"), said(found[f"{key}_lost_steps"], "", 1, 0), usual]
                for what, key, usual in (
                    ("a second worker joins", "join", said(found["usual_s"], "s")),
                    ("`kill -9` of one of two", "death", ""),
                )
            ],
        ),
    ]


def loading(found: Results) -> list[str]:
    rows = []
    for kind, by_loaders in found.items():
        for loaders, at in by_loaders.items():
            rates = at["samples_per_s"]
            rows.append(
                [
                    f"{kind}, {loaders} loaders",
                    said(rates["pytorch"], "", 1, 0),
                    said(rates["elastane"], "", 1, 0),
                    said(at["elastane_over_pytorch"]),
                ]
            )
    return [
        prose(
            """
            Samples per second that loader processes bring to a worker that does nothing else: Elastane's
            with its ledger's entries beside PyTorch's `DataLoader` with a `DistributedSampler`. A window
            of tokens costs microseconds, a picture about a millisecond.
            """
        ),
        table(["", "PyTorch", "Elastane", "ratio"], rows),
    ]


def coordinator_death(found: Results) -> list[str]:
    return [
        prose(
            """
            `kill -9` of the coordinator, with two workers. The control is a process that has
            nothing to do with the run and imports what a coordinator imports.
            """
        ),
        table(
            [
                "",
                "slowest step around it / usual",
                "until its successor answered",
                "until the next resize was done",
            ],
            [
                [
                    "the coordinator dies",
                    said(found["slowest_over_usual"]),
                    said(found["successor_s"], "s"),
                    said(found["resize_after_s"], "s"),
                ],
                ["a bystander starts", said(found["control_slowest_over_usual"]), "", ""],
            ],
        ),
    ]


def checkpoint_cost(found: Results) -> list[str]:
    rows = []
    for workers in ("1", "2"):
        at = found[workers]
        lost = at["lost_s"]
        for name, what in (
            ("elastane", "Elastane"),
            ("dcp.save", "`dcp.save`"),
            ("dcp.async_save", "`dcp.async_save`"),
            ("bystander", "a bystander writes as much"),
        ):
            rows.append(
                [
                    workers if name == "elastane" else "",
                    what,
                    said(lost[name]["first_step"], "s", digits=3),
                    said(lost[name]["all_steps"], "s", digits=3),
                    said(lost[name]["usual_step"], "s"),
                ]
            )
        rows.append(["", "a copy in memory", said(at["floors"]["copy_s"], "s", digits=3), "", ""])
        fresh = said(at["floors"]["copy_to_fresh_s"], "s", digits=3)
        rows.append(["", "a copy to memory not used before", fresh, "", ""])
    gigabytes = found["1"]["bytes"] / 1e9
    return [
        prose(
            f"""
            Seconds that a checkpoint of {gigabytes:.2f} GB takes from the training: of the step
            it falls into, and of all steps it touches, those under which it is written too, beyond
            as many usual steps. Elastane copies under the step and writes behind the following
            ones. The bystander is no part of the training and writes the same bytes beside it, by
            way of the page cache, at the same priority. `async_save` keeps the memory it copies
            to, as Elastane does.
            """
        ),
        table(["workers", "", "that step", "all steps", "usual step"], rows),
        "Background writing took "
        + " and ".join(f"{said(found[w]['write_s'], 's')} with {w}" for w in ("1", "2"))
        + " workers.",
    ]


def checkpoint_files(found: Results) -> list[str]:
    gigabytes = found["bytes"] / 1e9
    names = (
        ("raw write + fsync", "a raw write with fsync"),
        ("write", "Elastane's write, published"),
        ("dcp.save", "`dcp.save`"),
        ("raw read", "a raw read"),
        ("restore", "Elastane's read, checked"),
        ("dcp.load", "`dcp.load`"),
        ("verify", "`checkpoint verify`"),
    )
    return [
        prose(
            f"""
            The same {gigabytes:.2f} GB to and from the same disk by one process, the page cache
            emptied before each read. {said(found["bytes on disk / bytes of state"], digits=4)} bytes
            on the disk for each of state.
            """
        ),
        table(
            ["", "seconds", "GB/s"],
            [[what, said(found[n], "s"), said([gigabytes / s for s in found[n]])] for n, what in names],
        ),
    ]


def restore(found: Results) -> list[str]:
    rows = []
    for workers, at in found["workers"].items():
        seconds = at["seconds"]
        rows.append(
            [
                workers,
                *(said(seconds.get(name, ()), "s") for name in ("raw", "checked", "dcp", "elastane")),
                said(at["raw_over_elastane"]),
                said(at.get("checked_over_elastane", ())),
                said(at["dcp_over_elastane"]),
            ]
        )
    return [
        prose(
            f"""
            A checkpoint of {found["bytes"] / 1e9:.2f} GB, written by {found["saved_by"]}
            workers, is read back by each of others at once, as `elastane run --resume` does it,
            until the slowest has all. With two workers no core is idle that could compute checksums.
            """
        ),
        table(
            [
                "workers",
                "raw read",
                "raw, with a checksum",
                "`dcp.load`",
                "Elastane",
                "raw / Elastane",
                "with a checksum / Elastane",
                "`dcp.load` / Elastane",
            ],
            rows,
        ),
    ]


def auto(found: Results) -> list[str]:
    return [
        prose(
            f"""
            `--checkpoint-every auto`, two workers, {found["bytes"] / 1e6:.0f} MB of state: the first
            checkpoint after a minute, the second when its cost and the record of deaths say so.
            """
        ),
        table(
            ["taken from the training by one", "since the one before", "share of the time"],
            [
                [
                    said(found["lost_s"], "ms", 1e3, 0),
                    said(found["between_s"], "s", digits=0),
                    said(found["share"], "%", 100),
                ]
            ],
        ),
    ]


def memory(found: Results) -> list[str]:
    peaks = found["peak_mb_per_worker"]
    rows = []
    for label, ours, theirs in (
        ("2 workers, everything on each", "elastane_2_copies_all", "ddp_2"),
        ("4 workers, optimizer state in 2 copies", "elastane_4_copies_2", "ddp_4"),
    ):
        workers = int(theirs.removeprefix("ddp_"))
        others = peaks[f"{ours}_other_processes"]
        ratio = median(peaks[ours]) / median(peaks[theirs])
        with_others = (median(peaks[ours]) + median(others) / workers) / median(peaks[theirs])
        cells = [said(peaks[name], "MB", digits=0) for name in (theirs, ours)]
        ratios = [f"{ratio:.2f}", said(others, "MB", digits=0), f"{with_others:.2f}"]
        rows.append([label, *cells, *ratios])
    return [
        prose(
            f"""
            Peak memory per worker with {found["size"].upper().replace("M", " M")} parameters, as
            proportional set size (pages shared by several processes count in equal parts to
            each), sampled while training. Two repetitions.
            """
        ),
        table(["", "DDP", "Elastane", "ratio", "agent, coordinator, fork server", "ratio with them"], rows),
    ]


def floors(found: Results) -> list[str]:
    return [
        "What the parts cost by themselves on this machine.",
        table(
            ["", ""],
            [
                ["importing torch, processor time", said(found["import_torch_cpu_s"], "s")],
                ["a cold process until it computes", said(found["cold_process_s"], "s")],
                ["a fork of a warm one until it computes", said(found["fork_from_warm_s"], "ms", 1e3, 1)],
                ["a new Gloo group of two living processes", said(found["new_gloo_group_s"], "ms", 1e3, 1)],
                [
                    f"copying parameters and both AdamW moments ({found['copy_gb']:.2f} GB) in memory",
                    said(found["copy_state_s"], "ms", 1e3, 1),
                ],
            ],
        ),
    ]


SECTIONS: dict[str, tuple[str, Callable[[Results], list[str]]]] = {
    "usual_step": ("The usual step", usual_step),
    "join": ("A worker joins", join),
    "leave": ("A worker leaves", leave),
    "death": ("A worker dies", death),
    "coordinator_death": ("The coordinator dies", coordinator_death),
    "restart": ("Joining and dying under torchrun", restart),
    "checkpoint_cost": ("What a checkpoint takes from the training", checkpoint_cost),
    "auto": ("Checkpoints at their own pace", auto),
    "checkpoint_files": ("Writing and reading the files", checkpoint_files),
    "restore": ("Restoring in workers", restore),
    "loading": ("Loading samples", loading),
    "memory": ("Memory", memory),
    "floors": ("Floors", floors),
}
