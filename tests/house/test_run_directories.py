"""Files below a run directory are opened in one way only, which follows no link and never waits."""

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src/elastane"
READERS = (
    "cli",
    "run/attempts",
    "run/checkpoints/catalog.py",
    "run/checkpoints/storage/local.py",
    "run/connections",
    "run/machines",
    "run/nouns",
    "run/observability",
    "run/trackers",
    "run/worker/export.py",
    "run/worker/finished",
    "run/worker/restore_rehearsal.py",
    "cluster/controller/rest/logs.py",
    "cluster/controller/run_controller.py",
    "cluster/engines/run_line.py",
)
"""The code of commands and controllers that reads run directories, which others may have written."""
METHODS = {"open", "read_text", "read_bytes", "iterdir", "glob", "rglob"}
FUNCTIONS = {
    "open",
    "open_regular",
    "read_bytes",
    "safe_open",
    *("os.open", "os.listdir", "os.scandir", "os.walk"),
    *("shutil.copy", "shutil.copyfile", "shutil.copytree", "shutil.move"),
}
CONFINED = ("files.open", "ConfinedDirectory(")
ALLOWED = {
    "a file that this user has named, or of the machine": """
        cli/devices.py cli/jobs/job_file.py cli/runs/accelerate_settings.py
        cli/scripts.py run/attempts/software.py run/attempts/interrupts.py run/nouns/machine_address.py
        run/attempts/resumption.py:_check_unchanged run/worker/finished/environment.py
        run/machines/joining/shipped_code.py:list_code""",
    "a file in the home of this user, or of the package": """
        cli/operators/service_process.py cli/operators/up.py
        run/machines/visits/visits.py:get_admission run/observability/run_files.py:list_run_names
        run/observability/report.py:render_report run/worker/finished/text_files.py""",
    "a run writes into its own directory, see `refuse_links`; an export or a mirror into its own": """
        run/machines/joining/shared_run.py:_hold_name run/attempts/resumption.py:_cut_ledger
        run/attempts/run_directory.py run/attempts/tracking.py run/checkpoints/storage/local.py:write
        run/connections/run_certificate.py:create_certificate run/machines/tickets/shared_places.py
        run/machines/visits/mirror.py run/observability/line_files.py:remove_torn_line
        run/observability/line_files.py:append_line run/trackers run/worker/export.py:export_model
        run/worker/finished/formats.py run/worker/finished/model_writer.py
        run/machines/joining/shipped_code.py:_copy_file run/machines/joining/code_archive.py:_create_file
        run/machines/joining/code_archive.py:_replace_files
        cluster/controller/run_controller.py:_run_loop""",
    "it follows no link either, with the same flags, and holds its directory open": """
        run/machines/claims/directory.py run/machines/joining/shipped_code.py:_list_copied""",
    "it opens a descriptor of a confined file": "run/worker/finished/stored_tensors.py",
}
"""Why, and the places: a folder, a module or a function of one."""


def list_openings(path):
    """Return the calls that open or list files in another way, each with the function that it is in."""
    tree = ast.parse(path.read_text())
    within = {
        id(node): function.name
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        is_method = isinstance(node.func, ast.Attribute) and node.func.attr in METHODS
        if (is_method and not any(word in name for word in CONFINED)) or name in FUNCTIONS:
            yield f"{path.relative_to(SOURCE).as_posix()}:{within.get(id(node), '')}: {name}"


def list_readers():
    for name in READERS:
        path = SOURCE / name
        assert path.exists(), name
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]


def is_allowed(opening):
    place = opening.partition(": ")[0]
    places = [place for allowed in ALLOWED.values() for place in allowed.split()]
    return any(place == known or place.startswith((f"{known}:", f"{known}/")) for known in places)


def test_run_directories_are_read_in_one_way() -> None:
    """Use ``run_dir.files``, or `ConfinedDirectory`; see `elastane.common.confined_files`."""
    found = {line for path in list_readers() for line in list_openings(path)}
    assert sorted(line for line in found if not is_allowed(line)) == []


def test_each_exception_is_needed() -> None:
    found = [line.partition(": ")[0] for path in list_readers() for line in list_openings(path)]
    places = {place for allowed in ALLOWED.values() for place in allowed.split()}
    used = {
        known
        for known in places
        for line in found
        if line == known or line.startswith((f"{known}:", f"{known}/"))
    }
    assert places - used == set()


def test_the_search_finds_another_way(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(globals(), "SOURCE", tmp_path)
    lines = ["run_dir.ledger.open()", "os.open(path, 0)", "(root / 'x').read_text()", "open('x')"]
    (tmp_path / "some.py").write_text("\n".join([*lines, "run_dir.files.open(run_dir.ledger)"]))
    assert len(list(list_openings(tmp_path / "some.py"))) == len(lines)
