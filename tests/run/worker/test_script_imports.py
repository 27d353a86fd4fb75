"""The modules that are imported before a script's processes are forked."""

import subprocess
import sys
from pathlib import Path

from elastane.run.scripts.processes.script_process import share_gpus
from elastane.run.worker.script_imports import ScriptImport, find_imports

PROBE = """
import sys
from elastane.run.worker.script_imports import ScriptImport, preload_imports
sys.path.insert(0, sys.argv[1])
imports = [ScriptImport(name) for name in sys.argv[3:]]
print(preload_imports(imports, frozenset(filter(None, sys.argv[2].split(",")))))
"""


def preload(folder: Path, left_out: str, *modules: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROBE, str(folder), left_out, *modules]
    return subprocess.run(command, capture_output=True, text=True, check=True)


def test_installed_modules_and_those_of_the_standard_library_are_found(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "from __future__ import annotations\n"
        "import json, os.path as path\n"
        "import numpy as np\n"
        "from torch.utils.data import DataLoader, Dataset\n"
        "try:\n    import wave\nexcept ImportError:\n    wave = None\n"
        "def later():\n    import colorsys\n"
    )
    assert find_imports(script) == [
        ScriptImport("json"),
        ScriptImport("os.path"),
        ScriptImport("numpy"),
        ScriptImport("torch.utils.data", ("DataLoader", "Dataset")),
        ScriptImport("wave"),
    ]


def test_modules_of_the_user_are_left_out_even_if_they_hide_installed_ones(tmp_path):
    script = tmp_path / "train.py"
    (tmp_path / "numpy.py").touch()
    (tmp_path / "json").mkdir()
    (tmp_path / "model.py").touch()
    script.write_text("import json, numpy, model, no_such_module\nfrom . import data\n")
    assert find_imports(script) == []


def test_a_script_that_is_not_python_has_no_imports(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import json\nif:")
    assert find_imports(script) == []
    assert find_imports(tmp_path / "missing.py") == []


def test_a_module_that_starts_a_thread_is_named(tmp_path):
    (tmp_path / "quiet.py").touch()
    (tmp_path / "threaded.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(30,), daemon=True).start()\n"
    )
    assert preload(tmp_path, "", "quiet", "threaded", "json").stdout.strip() == "threaded"
    assert preload(tmp_path, "threaded", "quiet", "threaded", "json").stdout.strip() == ""


def test_a_module_that_fails_is_left_to_the_script(tmp_path):
    (tmp_path / "broken.py").write_text("raise SystemExit('not now')\n")
    done = preload(tmp_path, "", "broken", "json")
    assert done.stdout.strip() == ""
    assert "not imported ahead: broken: SystemExit: not now" in done.stderr


def test_the_gpus_of_a_machine_are_divided_among_workers():
    names = ["0", "1", "2", "3"]
    assert [share_gpus(names, place, 2) for place in (0, 1, 2)] == [["0", "1"], ["2", "3"], ["0", "1"]]
    assert share_gpus(["7"], 3, 2) == ["7"]
