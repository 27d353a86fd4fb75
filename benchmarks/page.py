"""The page ``docs/benchmarks.md``, rendered from a results file alone."""

from collections.abc import Callable
from statistics import median
from typing import Any

import verdict
from spread import format_spread
from text import format_table, join_lines

Results = dict[str, Any]


def render_page(results: Results, source: str) -> str:
    """Return the page for the results in the file ``source``."""
    machine = results["machine"]
    found, taken = results["measurements"], results["taken"]
    minutes = sum(each["minutes"] for each in taken.values())
    parts = [
        "# Benchmarks",
        join_lines(
            f"""
            `make bench` renders this page from `{source}`; do not edit it. Every number is the median
            of its repetitions on one machine, with the lowest and the highest in brackets.
            """
        ),
        join_lines(
            f"""
            **Machine**: {machine["cpu"]}, {machine["cores"]} cores, {machine["memory_gb"]} GB,
            {machine["system"]}, Python {machine["python"]}, torch {machine["torch"]}. One thread
            per worker. All measurements took {minutes:.0f} minutes; each section gives its own date.
            """
        ),
        join_lines(
            """
            **Work**: the same GPT, the same number of microbatches and fused AdamW for all
            contestants. They take turns, so other load on the machine affects all alike, and a ratio
            compares two measurements that were made one after the other.
            """
        ),
    ]
    parts += verdict.render_verdicts(found)
    for name, (title, draw) in SECTIONS.items():
        if name in found:
            parts += [f"## {title}", *(draw(found[name]))]
            parts.append(f"`benchmarks/{name}.py`, {describe_time(taken.get(name))}.")
    return "\n\n".join(parts) + "\n"


def describe_time(taken: Results | None) -> str:
    if taken is None:
        return "measured at an unknown time"
    return f"measured {taken['date']} UTC at `{taken['elastane']}` in {taken['minutes']:.1f} minutes"


BASELINES = {
    "plain_1": "plain loop, workers: 1",
    "tree_1": "plain loop that adds in a tree, workers: 1",
    "ddp_2": "DDP, workers: 2",
}


def describe_usual_step(found: Results) -> list[str]:
    rows = []
    for size, at in found.items():
        seconds = at["step_s"]
        for theirs, ours in (("plain_1", "elastane_1"), ("tree_1", "elastane_1"), ("ddp_2", "elastane_2")):
            if theirs not in seconds:
                continue
            rows.append(
                [
                    size.upper().replace("M", " M"),
                    BASELINES[theirs],
                    format_spread(seconds[theirs], "s", digits=3),
                    format_spread(seconds[ours], "s", digits=3),
                    format_spread(at[f"{ours}_over_{theirs}"], digits=3),
                ]
            )
    return [
        join_lines(
            """
            The time of a step with a fixed number of workers and no change: the overhead of an elastic
            run. The second plain loop is the simplest program that adds gradients in a fixed tree, so
            that any number of workers could share the sum. The difference between the two loops is the
            cost of the tree in memory traffic alone.
            """
        ),
        format_table(["parameters", "baseline", "its step", "Elastane's step", "ratio"], rows),
    ]


def describe_join(found: Results) -> list[str]:
    rows = []
    for case, at in found["cases"].items():
        controls = [each["took_s"] for each in at["control"]]
        rows += [
            [
                case,
                "a worker joins",
                format_spread(at["join_slowest_over_usual"]),
                format_spread(at["join_s"], "s"),
            ],
            [
                "",
                "a bystander starts",
                format_spread(at["control_slowest_over_usual"]),
                format_spread(controls, "s"),
            ],
        ]
    return [
        join_lines(
            """
            One more worker joins a run. The control is a process outside the run that imports torch,
            builds the model and computes one batch. Its effect is the cost of sharing the machine with
            a new process.
            """
        ),
        format_table(
            ["model, workers", "", "slowest step of the present workers / their usual step", "duration"], rows
        ),
    ]


def describe_leave(found: Results) -> list[str]:
    again = sum(found["recomputed_virtual_ranks"])
    return [
        "One of two workers is drained.",
        format_table(
            [
                "slowest step of the remaining worker, beyond its usual step",
                "in usual steps",
                "microbatches computed again",
            ],
            [
                [
                    format_spread(found["pause_s"], "ms", 1e3, 0),
                    format_spread(found["pause_over_usual"]),
                    f"{again:.0f}",
                ]
            ],
        ),
    ]


def describe_death(found: Results) -> list[str]:
    return [
        join_lines(
            """
            `kill -9` of one of three workers in the middle of a step. The run does not go back: the
            survivors compute the missing virtual ranks and commit the same step.
            """
        ),
        format_table(
            ["", "seconds"],
            [
                ["usual step of three workers", format_spread(found["usual_step_s"], "s")],
                ["from the death to the commit of its step", format_spread(found["to_commit_s"], "s")],
                [
                    "of this, beyond computing (the rest of their own ranks and the missing ones)",
                    format_spread(found["beyond_work_s"], "s"),
                ],
                [
                    "from the death to its line in the event log",
                    format_spread(found["noticed_s"], "ms", 1e3, 0),
                ],
                [
                    "microbatches computed again, of " + str(found["virtual_ranks"]),
                    format_spread(found["recomputed"], "", 1, 0),
                ],
            ],
        ),
    ]


def describe_restart(found: Results) -> list[str]:
    if "skipped" in found:
        return [f"Not measured: {found['skipped']}."]
    return [
        join_lines(
            """
            The same model under `torchrun --nnodes=1:2` with a snapshot every ten steps. A stall is a
            time in which the training finished no new step.
            """
        ),
        format_table(
            ["", "stall", "repeated steps", "usual step"],
            [
                [
                    what,
                    format_spread(found[f"{key}_stall_s"], "s"),
                    format_spread(found[f"{key}_lost_steps"], "", 1, 0),
                    usual,
                ]
                for what, key, usual in (
                    ("a second worker joins", "join", format_spread(found["usual_s"], "s")),
                    ("`kill -9` of one of two", "death", ""),
                )
            ],
        ),
    ]


def describe_loading(found: Results) -> list[str]:
    rows = []
    for kind, by_loaders in found.items():
        for loaders, at in by_loaders.items():
            rates = at["samples_per_s"]
            rows.append(
                [
                    f"{kind}, loaders: {loaders}",
                    format_spread(rates["pytorch"], "", 1, 0),
                    format_spread(rates["elastane"], "", 1, 0),
                    format_spread(at["elastane_over_pytorch"]),
                ]
            )
    return [
        join_lines(
            """
            Samples per second that loader processes deliver to a worker that does nothing else:
            Elastane's loaders, entries of the ledger included, and PyTorch's `DataLoader` with a
            `DistributedSampler`. A window of tokens takes microseconds, a picture about a millisecond.
            """
        ),
        format_table(["", "PyTorch", "Elastane", "ratio"], rows),
    ]


def describe_coordinator_death(found: Results) -> list[str]:
    return [
        join_lines(
            """
            `kill -9` of the coordinator of a run with two workers. The control is a process outside
            the run that imports the modules of a coordinator.
            """
        ),
        format_table(
            [
                "",
                "slowest step around the event / usual step",
                "until the successor answered",
                "until the next resize was complete",
            ],
            [
                [
                    "the coordinator dies",
                    format_spread(found["slowest_over_usual"]),
                    format_spread(found["successor_s"], "s"),
                    format_spread(found["resize_after_s"], "s"),
                ],
                ["a bystander starts", format_spread(found["control_slowest_over_usual"]), "", ""],
            ],
        ),
    ]


def describe_checkpoint_cost(found: Results) -> list[str]:
    rows = []
    for workers in ("1", "2"):
        at = found[workers]
        lost = at["lost_s"]
        for name, what in (
            ("elastane", "Elastane"),
            ("dcp.save", "`dcp.save`"),
            ("dcp.async_save", "`dcp.async_save`"),
            ("bystander", "a bystander writes the same bytes"),
        ):
            rows.append(
                [
                    workers if name == "elastane" else "",
                    what,
                    format_spread(lost[name]["first_step"], "s", digits=3),
                    format_spread(lost[name]["all_steps"], "s", digits=3),
                    format_spread(lost[name]["usual_step"], "s"),
                ]
            )
        rows.append(["", "a copy in memory", format_spread(at["floors"]["copy_s"], "s", digits=3), "", ""])
        fresh = format_spread(at["floors"]["copy_to_fresh_s"], "s", digits=3)
        rows.append(["", "a copy into unused memory", fresh, "", ""])
    gigabytes = found["1"]["bytes"] / 1e9
    return [
        join_lines(
            f"""
            Seconds that a checkpoint of {gigabytes:.2f} GB costs the training: in the step in which it
            begins, and in all steps until it is written, each compared with as many usual steps.
            Elastane copies the state during the step and writes it during the following ones. The
            bystander is a process outside the training that writes the same bytes through the page
            cache at the same priority. `async_save` reuses the memory of its copy, as Elastane does.
            """
        ),
        format_table(["workers", "", "first step", "all steps", "usual step"], rows),
        "The write in the background took "
        + " and ".join(f"{format_spread(found[w]['write_s'], 's')} (workers: {w})" for w in ("1", "2"))
        + ".",
    ]


def describe_checkpoint_files(found: Results) -> list[str]:
    gigabytes = found["bytes"] / 1e9
    names = (
        ("raw write + fsync", "a raw write with fsync"),
        ("write", "Elastane's write and publication"),
        ("dcp.save", "`dcp.save`"),
        ("raw read", "a raw read"),
        ("restore", "Elastane's read, with checksums"),
        ("dcp.load", "`dcp.load`"),
        ("verify", "`checkpoint verify`"),
    )
    return [
        join_lines(
            f"""
            One process writes the same {gigabytes:.2f} GB to the same disk and reads them back. The page
            cache is emptied before each read. Elastane's files have
            {format_spread(found["bytes on disk / bytes of state"], digits=4)} bytes for each byte of state.
            """
        ),
        format_table(
            ["", "seconds", "GB/s"],
            [
                [what, format_spread(found[n], "s"), format_spread([gigabytes / s for s in found[n]])]
                for n, what in names
            ],
        ),
    ]


def describe_restore(found: Results) -> list[str]:
    rows = []
    for workers, at in found["workers"].items():
        seconds = at["seconds"]
        rows.append(
            [
                workers,
                *(
                    format_spread(seconds.get(name, ()), "s")
                    for name in ("raw", "checked", "dcp", "elastane")
                ),
                format_spread(at["raw_over_elastane"]),
                format_spread(at.get("checked_over_elastane", ())),
                format_spread(at["dcp_over_elastane"]),
            ]
        )
    return [
        join_lines(
            f"""
            A checkpoint of {found["bytes"] / 1e9:.2f} GB, written by {found["saved_by"]} workers. After
            `elastane run --resume` each worker reads all of it at once with the others; the time is
            that of the slowest worker. With two workers no core is idle that could compute checksums.
            """
        ),
        format_table(
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


def describe_auto(found: Results) -> list[str]:
    return [
        join_lines(
            f"""
            `--checkpoint-every auto`, two workers, {found["bytes"] / 1e6:.0f} MB of state. The first
            checkpoint comes after a minute; its cost and the number of deaths decide when the next does.
            """
        ),
        format_table(
            ["training time per checkpoint", "since the previous checkpoint", "share of the time"],
            [
                [
                    format_spread(found["lost_s"], "ms", 1e3, 0),
                    format_spread(found["between_s"], "s", digits=0),
                    format_spread(found["share"], "%", 100),
                ]
            ],
        ),
    ]


def describe_memory(found: Results) -> list[str]:
    peaks = found["peak_mb_per_worker"]
    rows = []
    for label, ours, theirs in (
        ("2 workers, whole copies", "elastane_2_copies_all", "ddp_2"),
        ("4 workers, optimizer state in 2 copies", "elastane_4_copies_2", "ddp_4"),
    ):
        workers = int(theirs.removeprefix("ddp_"))
        others = peaks[f"{ours}_other_processes"]
        ratio = median(peaks[ours]) / median(peaks[theirs])
        with_others = (median(peaks[ours]) + median(others) / workers) / median(peaks[theirs])
        cells = [format_spread(peaks[name], "MB", digits=0) for name in (theirs, ours)]
        ratios = [f"{ratio:.2f}", format_spread(others, "MB", digits=0), f"{with_others:.2f}"]
        rows.append([label, *cells, *ratios])
    return [
        join_lines(
            f"""
            Peak memory per worker with {found["size"].upper().replace("M", " M")} parameters, as
            proportional set size (pages shared by several processes count in equal parts to
            each), sampled while training. Two repetitions.
            """
        ),
        format_table(
            ["", "DDP", "Elastane", "ratio", "agent, coordinator, fork server", "ratio with these processes"],
            rows,
        ),
    ]


def describe_floors(found: Results) -> list[str]:
    return [
        "The costs of single parts on this machine.",
        format_table(
            ["", ""],
            [
                ["importing torch, processor time", format_spread(found["import_torch_cpu_s"], "s")],
                ["a new process until it computes", format_spread(found["cold_process_s"], "s")],
                [
                    "a fork of a prepared process until it computes",
                    format_spread(found["fork_from_warm_s"], "ms", 1e3, 1),
                ],
                [
                    "a new Gloo group of two existing processes",
                    format_spread(found["new_gloo_group_s"], "ms", 1e3, 1),
                ],
                [
                    f"copying parameters and both AdamW moments ({found['copy_gb']:.2f} GB) in memory",
                    format_spread(found["copy_state_s"], "ms", 1e3, 1),
                ],
            ],
        ),
    ]


SECTIONS: dict[str, tuple[str, Callable[[Results], list[str]]]] = {
    "usual_step": ("The usual step", describe_usual_step),
    "join": ("A worker joins", describe_join),
    "leave": ("A worker leaves", describe_leave),
    "death": ("A worker dies", describe_death),
    "coordinator_death": ("The coordinator dies", describe_coordinator_death),
    "restart": ("A join and a death under torchrun", describe_restart),
    "checkpoint_cost": ("The cost of a checkpoint to the training", describe_checkpoint_cost),
    "auto": ("Automatic checkpoints", describe_auto),
    "checkpoint_files": ("Writes and reads of the files", describe_checkpoint_files),
    "restore": ("Restores in workers", describe_restore),
    "loading": ("Loading of samples", describe_loading),
    "memory": ("Memory", describe_memory),
    "floors": ("Floors", describe_floors),
}
