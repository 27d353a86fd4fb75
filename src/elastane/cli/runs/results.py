"""``elastane report`` and ``export``: the pages of a run, and its model in a format for other programs."""

from pathlib import Path
from typing import Annotated, TypeAlias

from elastane.cli.command import AsJson, RunName, open_console, print_json
from elastane.cli.options import flag, option
from elastane.cli.run_lookup import find_trained_run
from elastane.cli.torch_process import run_module
from elastane.common.errors import BadInput
from elastane.common.safe_text import escape_line
from elastane.run.checkpoints.storage.urls import open_storage
from elastane.run.connections.run_lock import is_live
from elastane.run.machines.visits.run_finder import find_run
from elastane.run.nouns.torch_answers import ExportedModel, ExportFormat, ExportType
from elastane.run.observability.quantities import format_size
from elastane.run.observability.run_files import read_record, read_run

MODULE = "elastane.run.worker.export"

Format: TypeAlias = Annotated[
    ExportFormat,
    flag(
        "hf: for from_pretrained of transformers or peft. torch: state dicts. dcp: a distributed checkpoint "
        "of PyTorch.",
        "--format",
    ),
]
DType: TypeAlias = Annotated[ExportType | None, flag("Convert floating-point weights. Default: as trained.")]


def report(run: RunName, as_json: AsJson = False) -> None:
    """Write report.html of RUN again, a single page without other files.

    If the run is over, write metrics.json and the model's CARD.md again too.
    """
    from elastane.run.attempts.results import draw_report
    from elastane.run.observability.finished import write_conclusion

    recorded = read_run(find_run(run))
    pages = [draw_report(recorded)]
    if not recorded.live:
        files = write_conclusion(recorded)
        pages += [page for page in (files.metrics, files.card) if page.exists()]
    console = open_console(as_json=as_json)
    for page in pages:
        console.print(str(page), markup=False)
    if as_json:
        print_json({page.stem.lower(): str(page) for page in pages})


def export(
    run: RunName,
    *,
    form: Format,
    out: Annotated[
        str | None,
        option(
            "DIR",
            "A new or empty directory, or a URL such as s3://bucket/model. Default: RUN-FORMAT in the "
            "working directory.",
        ),
    ] = None,
    dtype: DType = None,
    optimizer: Annotated[
        bool, flag("Also write the optimizer state; the run must have used --save-optimizer.", "--optimizer")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write the finished model of RUN in a format for other programs.

    $ elastane export demo --format hf --dtype bf16 --out demo-hf
    $ elastane export demo --format hf --out s3://bucket/demo
    """
    run_dir = find_trained_run(run, "finished model of Elastane")
    name = read_record(run_dir).spec.name
    folder = choose_export_folder(out, f"{name}-{form}")
    if is_live(run_dir):
        raise BadInput(
            f"{name} is still running",
            means="it writes its model when it ends",
            do=f"export its newest checkpoint: elastane checkpoint export {name} --format {form}",
        )
    options = [
        "--run-dir",
        str(run_dir.root),
        *build_export_options(form, folder, dtype, optimizer=optimizer),
    ]
    print_export(run_exporter(options), name, form, as_json=as_json)


def run_exporter(options: list[str]) -> ExportedModel:
    """Export a model in a process that imports torch."""
    return run_module(MODULE, options, ExportedModel)


def choose_export_folder(out: str | None, default: str) -> str:
    """Return the folder of an export, or its URL; None: a folder that is named by default.

    Raises:
        BadInput: the file system of the URL is not installed.
    """
    if out is None or "://" not in out:
        return str(Path(out or default).absolute())
    open_storage(out)
    return out


def build_export_options(form: str, folder: str, dtype: str | None, *, optimizer: bool) -> list[str]:
    """Return the options for the process that exports."""
    options = ["--format", form, "--out", folder]
    options += ["--dtype", dtype] if dtype else []
    return options + (["--optimizer"] if optimizer else [])


def print_export(done: ExportedModel, what: str, form: str, *, as_json: bool) -> None:
    console = open_console(as_json=as_json)
    for file, size_bytes in done.files.items():
        console.print(f"  {format_size(size_bytes):>9}  {file}", markup=False)
    console.print(f"exported {what} as {form} to {done.out}", markup=False)
    for sentence in done.checked:
        console.print(f"  {escape_line(sentence)}", markup=False)
    if as_json:
        print_json({"out": done.out, "format": form, "files": done.files, "checked": list(done.checked)})
