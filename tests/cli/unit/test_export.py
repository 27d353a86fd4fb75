"""``elastane export`` runs a process with torch, and passes on its answer."""

import json

import pytest

from elastane.run.nouns.rundir import RunDir

DONE = '{"kind":"exported","out":"/there/done-hf","files":{"model.safetensors":1400},"checked":["read back"]}'
REFUSED = '{"kind":"refused","what":"the model has no config.json","means":"not theirs","do":"use torch"}'


@pytest.fixture
def exporter(tmp_path, monkeypatch):
    """Put a module in place of the exporting process: it records its arguments and prints a given answer."""

    def install(says: str, code: int = 0):
        notes = tmp_path / "notes"
        lines = [
            "import sys",
            f"open({str(notes)!r}, 'w').write(' '.join(sys.argv[1:]))",
            f"print({says!r})",
            f"sys.exit({code})",
        ]
        (tmp_path / "pretend_exporter.py").write_text("\n".join(lines))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setattr("elastane.cli.runs.results.MODULE", "pretend_exporter")
        return notes

    return install


def test_export_lists_the_written_files(elastane, finished_run, exporter, tmp_path):
    run_dir, notes = finished_run(), exporter(DONE)
    result = elastane("export", "done", "--format", "hf", "--dtype", "bf16", "--out", tmp_path / "o")
    assert result.exit_code == 0
    assert "1.4 kB  model.safetensors" in result.stdout
    assert "exported done as hf to /there/done-hf" in result.stdout
    assert "read back" in result.stdout
    expected = f"--run-dir {run_dir.root} --format hf --out {tmp_path / 'o'} --dtype bf16"
    assert notes.read_text() == expected
    answer = json.loads(elastane("export", "done", "--format", "hf", "--json").stdout)
    files = {"model.safetensors": 1400}
    assert answer == {"out": "/there/done-hf", "format": "hf", "files": files, "checked": ["read back"]}


def test_a_refusal_of_the_process_is_printed_as_an_error(elastane, finished_run, exporter):
    finished_run()
    exporter(REFUSED, 1)
    result = elastane("export", "done", "--format", "hf")
    assert result.exit_code == 2
    assert "no config.json\n  means: not theirs\n  do:    use torch" in result.stderr


def test_a_process_that_crashes_is_a_failure(elastane, finished_run, exporter):
    finished_run()
    exporter("", 3)
    result = elastane("export", "done", "--format", "torch")
    assert result.exit_code == 1
    assert "ended with exit code 3" in result.stderr


@pytest.mark.processes
def test_the_real_process_reports_a_run_without_a_model(elastane, finished_run, tmp_path):
    finished_run()
    result = elastane("export", "done", "--format", "torch", "--out", tmp_path / "o")
    assert result.exit_code == 2
    assert "holds no finished model" in result.stderr
    assert not (tmp_path / "o").exists()


def test_unknown_formats_and_runs_are_refused(elastane, finished_run):
    finished_run()
    assert elastane("export", "done", "--format", "onnx").exit_code == 2
    assert elastane("export", "other", "--format", "hf").exit_code == 3


def test_a_live_run_has_no_model_yet(elastane, finished_run, monkeypatch):
    run_dir: RunDir = finished_run()
    monkeypatch.setattr("elastane.cli.runs.results.is_live", lambda asked: asked.root == run_dir.root)
    result = elastane("export", "done", "--format", "hf")
    assert result.exit_code == 2
    assert "done is still running" in result.stderr
