"""``CARD.md``: a page that describes how a model was trained."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import isfinite
from typing import Any

import msgspec

from elastane.common.durations import format_duration
from elastane.run.nouns.records import EventLine
from elastane.run.nouns.training_environment import TrainingEnvironment
from elastane.run.observability.attempts import AttemptCost, is_beginning
from elastane.run.observability.drawing import format_number
from elastane.run.observability.evaluations import format_mean, format_means
from elastane.run.observability.facts import Facts
from elastane.run.observability.metrics import Metrics
from elastane.run.observability.quantities import format_copies, format_ms, format_size, format_transfer_speed
from elastane.run.observability.run_events import RUN_EVENTS
from elastane.run.observability.run_files import Recorded
from elastane.run.observability.series import find_step

BARS = "▁▂▃▄▅▆▇█"
COLUMNS = 64
MOST_VALUES = 20
"""The most logged values on one line; the run's metrics.json has all."""
MOST_ROWS = 20
"""The most changes in the table; the run's events.jsonl has all."""
MOST_NAMES = 3
MOST_GROUPS = 20
PARAMETERS = "params"


# -- the groups of an optimizer at the end of a run, for the card ----------------------------------------


class OptimizerGroups(msgspec.Struct, frozen=True):
    """``optimizer.json``: the class and the groups of an optimizer.

    Args:
        optimizer: name of its class.
        groups: the hyperparameters of each group, and the names of its ``params``.
    """

    optimizer: str
    groups: tuple[dict[str, Any], ...]


def find_shared_values(groups: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the hyperparameters that are the same in all groups."""
    first = groups[0] if groups else {}
    return {
        key: value
        for key, value in first.items()
        if key != PARAMETERS and all(key in group and group[key] == value for group in groups)
    }


def list_group_rows(groups: Sequence[dict[str, Any]]) -> Iterable[tuple[str, ...]]:
    """Yield a header, then one row per group: its parameters, and the hyperparameters that differ."""
    shared = find_shared_values(groups)
    keys = list(dict.fromkeys(key for group in groups for key in group if key not in shared))
    differing = [key for key in keys if key != PARAMETERS]
    yield ("group", "parameters", *differing)
    for number, group in enumerate(groups[:MOST_GROUPS]):
        cells = (format_optimizer_value(group[key]) if key in group else "" for key in differing)
        yield (f"{number}", format_parameter_names(group.get(PARAMETERS)), *cells)


def format_parameter_names(names: object) -> str:
    """Return how many parameters a group has, and the first of their names."""
    if not isinstance(names, list):
        return ""
    shown = ", ".join(str(name) for name in names[:MOST_NAMES])
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f"{len(names)}: {shown}{more}" if names else "0"


def format_optimizer_value(value: object) -> str:
    """Return a hyperparameter in readable form."""
    if isinstance(value, list | tuple):
        return f"({', '.join(format_optimizer_value(part) for part in value)})"
    return f"{value:.6g}" if isinstance(value, float) else f"{value}"


TASKS = {
    "CAUSAL_LM": "AutoModelForCausalLM",
    "SEQ_CLS": "AutoModelForSequenceClassification",
    "SEQ_2_SEQ_LM": "AutoModelForSeq2SeqLM",
    "TOKEN_CLS": "AutoModelForTokenClassification",
    "QUESTION_ANS": "AutoModelForQuestionAnswering",
}
"""The class in ``transformers`` of a base model, by the task of an adapter."""


class AdapterConfig(msgspec.Struct, frozen=True):
    """The used part of an ``adapter_config.json``; the model may be one without a task or a name."""

    base_model_name_or_path: str | None = None
    task_type: str | None = None


class FinishedModel(msgspec.Struct, frozen=True, kw_only=True):
    """The files of the finished model, for the card beside them.

    Args:
        files: names and sizes in bytes; the file that marks the model as complete comes first.
        architecture: class in ``transformers`` that loads it; None for any other model.
        adapter: what ``peft`` needs to load the directory as an adapter; None: it is not one.
        optimizer: the optimizer's groups at the end, if known.
        environment: the environment of the training, if known.
    """

    files: tuple[tuple[str, int], ...]
    architecture: str | None = None
    adapter: AdapterConfig | None = None
    optimizer: OptimizerGroups | None = None
    environment: TrainingEnvironment | None = None


def write_card_text(run: Recorded, metrics: Metrics, model: FinishedModel) -> str:
    """Return the card as Markdown; equal inputs give equal text."""
    name = escape_word(run.record.spec.name)
    sections = [
        write_card_heading(run, metrics),
        "## Training\n\n" + format_markdown_table(list_training_rows(run, metrics, model.optimizer)),
        *write_optimizer_section(model.optimizer),
        "## Workers over time\n\n" + "\n".join(write_workers_section(run, metrics)),
        "## Events\n\n" + "\n".join(write_events_section(run, metrics)),
        "## Checkpoints\n\n" + "\n".join(write_checkpoints_section(metrics)),
        "## Environment\n\n" + format_markdown_table(list_environment_rows(run, model.environment)),
        "## Files\n\n"
        + format_markdown_table((f"`{name}`", format_size(size_bytes)) for name, size_bytes in model.files),
        "## Loading\n\n```python\n" + "\n".join(write_loading_section(model, run.record.spec.name)) + "\n```",
        f"`elastane verify {name}` verifies with the ledger that every sample was trained on exactly once.",
    ]
    return "\n\n".join(sections) + "\n"


def write_card_heading(run: Recorded, metrics: Metrics) -> str:
    facts, pinned = metrics.facts, run.record.pinned
    parameters = f"{pinned.parameters:,} trained parameters" if pinned else "A model"
    few, most = facts.workers or (0, 0)
    workers = f"{few} worker{choose_plural(few)}" if few == most else f"{few} to {most} workers"
    return (
        f"# {escape_word(run.record.spec.name)}\n\n"
        f"{parameters}, trained for {facts.steps:,} steps on {workers} by Elastane: {describe_ending(facts)}."
    )


def describe_ending(facts: Facts) -> str:
    if facts.outcome == "finished" or facts.planned_steps == facts.steps:
        return facts.outcome
    planned = f" of {facts.planned_steps:,}" if facts.planned_steps else ""
    return f"{facts.outcome} after step {facts.steps:,}{planned}"


def list_training_rows(
    run: Recorded, metrics: Metrics, optimizer: OptimizerGroups | None = None
) -> Iterable[tuple[str, str]]:
    spec, pinned, facts = run.record.spec, run.record.pinned, metrics.facts
    program = spec.program if spec.module else (re.split(r"[/\\]", spec.script)[-1], *spec.args)
    yield "script", format_code(" ".join(program))
    if pinned:
        yield "script SHA-256", format_code(pinned.script_digest)
        if facts.origin:
            yield "began from", escape_word(facts.origin)
        planned = f" of {facts.planned_steps:,}" if facts.planned_steps else ""
        parts = f"in {pinned.virtual_ranks:,} virtual ranks of {pinned.samples_per_rank:,}"
        yield "steps", f"{facts.steps:,}{planned}, {pinned.global_batch:,} samples each, {parts}"
        epochs = (
            "" if metrics.epochs is None else f", {metrics.epochs:.3g} epochs of {pinned.dataset_length:,}"
        )
        yield "samples", f"{facts.samples:,}{epochs}"
    yield "final loss", "not finite" if facts.loss is None else format_number(facts.loss)
    if metrics.evaluations:
        last = metrics.evaluations[-1]
        yield (
            "last evaluation",
            escape_word(f"{format_means(last.means, last.counted, last.count)} after step {last.step:,}"),
        )
    if metrics.logged:
        latest = [f"{name} {format_mean(value)}" for name, value in metrics.logged.items()]
        more = f" and {len(latest) - MOST_VALUES} more" if len(latest) > MOST_VALUES else ""
        yield "last logged values", escape_word(", ".join(latest[:MOST_VALUES]) + more)
    if pinned:
        yield "optimizer", format_code(optimizer.optimizer if optimizer else pinned.optimizer)
        yield "copies of the optimizer state", format_copies(pinned.copies)
        yield "seed", f"{pinned.seed}"
        yield "convergence", pinned.convergence
    if facts.digest:
        yield "digest of the parameters", f"{format_code(facts.digest[0])} after step {facts.digest[1]:,}"
    yield "started", escape_word(run.record.created)
    speed = "" if metrics.samples_per_s is None else f", {metrics.samples_per_s:,.0f} samples/s during steps"
    yield "wall time", f"{format_duration(facts.wall_s)}{speed}"
    if metrics.goodput is not None:
        yield "goodput", f"{100 * metrics.goodput:.1f} % of the wall time advanced the training"


def write_optimizer_section(optimizer: OptimizerGroups | None) -> Iterable[str]:
    """Yield the hyperparameters at the end of the run, because schedules and scripts change them."""
    if optimizer is None or not optimizer.groups:
        return
    header, *rows = (tuple(map(escape_word, row)) for row in list_group_rows(optimizer.groups))
    lines = [header, ("---",) * len(header), *rows]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    if more := len(optimizer.groups) - MOST_GROUPS:
        text += f"\n\n{more:,} more are in `optimizer.json`." if more > 0 else ""
    shared = ", ".join(
        f"{key} {format_optimizer_value(value)}"
        for key, value in find_shared_values(optimizer.groups).items()
    )
    where = "In all groups" if len(optimizer.groups) > 1 else "Hyperparameters"
    alike = f"\n\n{where}: {escape_word(shared)}." if shared else ""
    yield f"## Optimizer at the end\n\n{text}{alike}"


def write_workers_section(run: Recorded, metrics: Metrics) -> Iterable[str]:
    if not run.ledger:
        yield "No step has committed."
        return
    sizes = [float(len(line.workers)) for line in run.ledger]
    losses = [line.loss for line in run.ledger]
    steps = len(run.ledger)
    few, many = metrics.facts.workers or (0, 0)
    span = f"{few}" if few == many else f"{few} to {many}"
    yield "```"
    yield f"workers  {draw_card_sparkline(sizes, from_zero=True)}  {span}"
    known = [loss for loss in losses if loss is not None and isfinite(loss)]
    if known:
        ends = f"{format_number(known[0])} to {format_number(known[-1])}"
        yield f"loss     {draw_card_sparkline(losses, from_zero=False)}  {ends}"
    each = "one step" if steps <= COLUMNS else f"about {round(steps / COLUMNS):,} steps"
    yield f"         steps {run.ledger[0].step:,} to {run.ledger[-1].step:,}, {each} per column"
    yield "```"
    if len(metrics.workers) > 1:
        shown = [f"{count} from step {step:,}" for step, count in metrics.workers[:MOST_ROWS]]
        more = len(metrics.workers) - MOST_ROWS
        yield "\nWorkers: " + ", ".join(shown) + (f" and {more} more changes." if more > 0 else ".")


def draw_card_sparkline(values: Sequence[float | None], *, from_zero: bool) -> str:
    """Return a line of bars, each for the mean of its stretch; a gap if no value in it is finite.

    Args:
        values: one per step, at least one.
        from_zero: the lowest bar is zero; otherwise the lowest mean.
    """
    columns = min(COLUMNS, len(values))
    cuts = [len(values) * i // columns for i in range(columns + 1)]
    means = [compute_mean(values[start:stop]) for start, stop in pairwise(cuts)]
    known = [height for height in means if height is not None]
    low, high = (0.0 if from_zero else min(known, default=0.0)), max(known, default=0.0)
    return "".join(" " if height is None else draw_bar(height - low, high - low) for height in means)


def compute_mean(stretch: Sequence[float | None]) -> float | None:
    known = [value for value in stretch if value is not None and isfinite(value)]
    return sum(known) / len(known) if known else None


def draw_bar(height: float, highest: float) -> str:
    share = height / highest if highest > 0 else 0.0
    return BARS[min(len(BARS) - 1, int(share * len(BARS)))]


def write_events_section(run: Recorded, metrics: Metrics) -> Iterable[str]:
    # The first workers do not count as a change; workers that join or leave later do.
    changes = [
        event
        for event in run.events
        if is_counted(event) and not is_beginning(event, find_step(event, run.ledger), run.events)
    ]
    counts = Counter(event.kind for event in changes)
    sums = [
        f"{counts[name]} {kind.counted.format(s=choose_plural(counts[name]))}"
        for name, kind in RUN_EVENTS.items()
        if counts[name]
    ]
    yield (", ".join(sums) or "No changes") + f". {describe_longest_pause(metrics.facts)}"
    if not changes:
        return
    yield "\n| step | event | reason |\n|---:|---|---|"
    for event in changes[:MOST_ROWS]:
        yield (
            f"| {find_step(event, run.ledger):,} | {escape_word(describe_change(event))} "
            f"| {escape_word(event.why)} |"
        )
    if len(changes) > MOST_ROWS:
        yield f"\n{len(changes) - MOST_ROWS:,} more are in `events.jsonl`."


def is_counted(event: EventLine) -> bool:
    kind = RUN_EVENTS.get(event.kind)
    return kind is not None and bool(kind.counted)


def choose_plural(count: int) -> str:
    return "" if count == 1 else "s"


def describe_change(event: EventLine) -> str:
    """Return a phrase for an event, such as ``worker 1 died`` or ``run stopped``."""
    subject, verb = event.kind.split(".", 1)
    return f"{event.who} {verb}" if subject == "worker" else f"{subject} {verb}"


def describe_longest_pause(facts: Facts) -> str:
    if facts.pause_ms is None:
        return "No change made a healthy worker wait."
    usual = "" if facts.pause_steps is None else f", {facts.pause_steps:.2f} usual steps"
    where = "" if facts.pause_step is None else f", at step {facts.pause_step:,}"
    return f"Longest pause of a healthy worker: {format_ms(facts.pause_ms)}{usual}{where}."


def write_checkpoints_section(metrics: Metrics) -> Iterable[str]:
    if not metrics.checkpoints:
        yield "None was written or used; the workers held the state throughout the run."
        return
    written = [checkpoint for checkpoint in metrics.checkpoints if not checkpoint.used]
    yield f"{len(written)} written, " + ("none used." if not metrics.attempts else "training continued from:")
    for attempt in metrics.attempts:
        yield f"- {format_code(attempt.checkpoint)}, step {attempt.step:,}{describe_beginning(attempt)}"
    if written:
        last = written[-1]
        step = "" if last.step is None else f" after step {last.step:,}"
        yield f"\nThe newest: {format_code(last.name)}{step}."


def describe_beginning(attempt: AttemptCost) -> str:
    """Describe the cost of an attempt, as far as it is known."""
    parts = []
    if attempt.lost_steps:
        parts.append(f"{attempt.lost_steps:,} step{choose_plural(attempt.lost_steps)} made again")
    if attempt.restored is not None:
        speed = format_transfer_speed(attempt.restored.bytes, attempt.restored.seconds)
        parts.append(
            f"restored {speed} on {attempt.restored.workers} worker{choose_plural(attempt.restored.workers)}"
        )
    return ": " + ", ".join(parts) if parts else ""


def list_environment_rows(
    run: Recorded, environment: TrainingEnvironment | None
) -> Iterable[tuple[str, str]]:
    versions = run.record.pinned.versions if run.record.pinned else {}
    yield from ((name, escape_word(version)) for name, version in sorted(versions.items()))
    if run.record.pinned:
        yield "threads per worker", f"{run.record.pinned.threads}"
    if environment:
        yield "platform", escape_word(environment.platform)
        yield "processor", escape_word(environment.processor)


def write_loading_section(model: FinishedModel, name: str) -> Iterable[str]:
    if model.architecture and re.fullmatch(r"\w+", model.architecture):
        yield f"from transformers import {model.architecture}"
        yield ""
        yield f'model = {model.architecture}.from_pretrained(".")  # this directory'
    elif model.adapter:
        yield from _write_loading_of_adapter(model.adapter, escape_word(name))
    elif model.files[0][0].endswith(".safetensors"):
        yield "from safetensors.torch import load_model"
        yield ""
        yield f'load_model(model, "{model.files[0][0]}")  # model: built as in the script'
    else:
        yield "from pathlib import Path"
        yield "from safetensors.torch import load_file"
        yield ""
        yield 'for shard in sorted(Path(".").glob("model-*.safetensors")):'
        yield "    model.load_state_dict(load_file(shard), strict=False)  # model: built as in the script"


def _write_loading_of_adapter(adapter: AdapterConfig, name: str) -> Iterable[str]:
    kind, base = TASKS.get(adapter.task_type or "", "AutoModel"), adapter.base_model_name_or_path or ""
    # The name is in a file that anyone may have written.
    if re.fullmatch(r"[\w./-]+", base):
        yield "from peft import PeftModel"
        yield f"from transformers import {kind}"
        yield ""
        yield f'base = {kind}.from_pretrained("{base}")'
        yield 'model = PeftModel.from_pretrained(base, ".")  # this directory'
        return
    yield f"from transformers import {kind}"
    yield ""
    yield "# The base model has no name, so write it beside the adapter:"
    yield f"# elastane export {name} --format hf --out {name}-hf"
    yield f'model = {kind}.from_pretrained("{name}-hf")  # with peft installed'


def format_markdown_table(rows: Iterable[tuple[str, str]]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])


def escape_word(text: str) -> str:
    """Return a run's words in one line, escaped for Markdown."""
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", " ".join(text.split()))


def format_code(text: str) -> str:
    """Return a run's words as code, with bars escaped, because a bar ends a cell of a table."""
    return "`" + " ".join(text.split()).replace("`", "'").replace("|", "\\|") + "`"
