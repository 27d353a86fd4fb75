"""The file found for a module, compared with the file that ``python -m`` runs."""

import subprocess
import sys
from pathlib import Path

import pytest

import elastane
from elastane.common.errors import BadInput
from elastane.run.attempts.script_modules import find_module_file, find_package_root

FILES = ("alone.py", "pkg/__init__.py", "pkg/__main__.py", "pkg/sub/train.py", "both.py", "both/__init__.py")
FILES += ("both/__main__.py", "folder/__main__.py", "folder.py", "json/tool.py", "bare/__init__.py")
SAY = "import sys; print(__file__)"


@pytest.fixture
def folder(tmp_path):
    for name in FILES:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SAY if path.name != "__init__.py" else "")
    return tmp_path


@pytest.mark.parametrize(
    ("module", "root"),
    [
        ("alone", "."),
        ("pkg", "."),
        ("pkg.__main__", "."),
        ("pkg.sub.train", "."),
        ("both", "."),
        ("folder", "."),
        ("json.tool", None),
    ],
)
def test_the_file_found_for_a_module_is_the_one_that_python_runs(folder, module, root):
    ran = subprocess.run(
        [sys.executable, "-m", module], cwd=folder, capture_output=True, text=True, check=False, input="1"
    )
    found = find_module_file(module, folder)
    if root is not None:
        assert str(found) == ran.stdout.strip(), ran.stderr
        assert find_package_root(module, found) == folder
    else:
        # A folder without __init__.py hides no package that is installed.
        assert ran.stdout.strip() == "1"
        assert found.parent.name == "json"
        assert not found.is_relative_to(folder)


def test_an_installed_module_is_found_from_any_directory():
    assert (
        find_module_file("elastane.run.attempts", None)
        == Path(elastane.__file__).parent / "run" / "attempts" / "__main__.py"
    )


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("nothing.of.the.kind", "there is no Python module nothing.of.the.kind"),
        ("alone.deeper", "there is no Python module alone.deeper"),
        ("sys", "there is no Python module sys"),
        ("pkg/sub/train.py", "there is no Python module pkg/sub/train.py"),
        ("", "there is no Python module"),
        ("__main__", "there is no Python module __main__"),
        ("bare", "bare is a package without a __main__.py"),
    ],
)
def test_a_module_that_cannot_run_is_refused_with_an_explanation(folder, module, said):
    with pytest.raises(BadInput, match=said) as refused:
        find_module_file(module, folder)
    assert refused.value.do
