"""The code of a run, shipped by its content hash."""

import os

import pytest

from elastane.common.errors import BadInput
from elastane.run.machines.joining import shipped_code
from elastane.run.machines.joining.shipped_code import (
    check_shipped_code,
    compute_code_digest,
    copy_code,
    list_code,
)
from elastane.run.nouns.rundir import RunDir
from tests.hostile import replace_with_stand_in


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "project"
    (root / "pkg").mkdir(parents=True)
    (root / "train.py").write_text("import pkg.model\n")
    (root / "pkg" / "model.py").write_text("depth = 2\n")
    (root / "tool.sh").write_text("#!/bin/sh\n")
    (root / "tool.sh").chmod(0o755)
    return root


@pytest.fixture
def run_dir(tmp_path):
    return RunDir(tmp_path / "run")


def list_names(root) -> list[str]:
    return [file.name for file in list_code(root)]


def ship(root, run_dir) -> str:
    files = list_code(root)
    digest = compute_code_digest(root, files)
    copy_code(root, files, run_dir, digest)
    return digest


def test_the_ignore_file_says_what_is_left_out(root) -> None:
    for name in (".git/config", "__pycache__/x.pyc", "data/a.bin", "pkg/data/b.bin", "notes.txt", "keep.txt"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")
    assert "notes.txt" in list_names(root)
    (root / ".gitignore").write_text("data/\n*.txt\n!keep.txt\n")
    assert list_names(root) == [".gitignore", "keep.txt", "pkg/model.py", "tool.sh", "train.py"]
    (root / ".elastaneignore").write_text("/data/\n")
    assert "pkg/data/b.bin" in list_names(root)
    assert "notes.txt" in list_names(root)


def test_the_digest_depends_on_names_content_and_modes_only(root, tmp_path) -> None:
    def compute() -> str:
        return compute_code_digest(root, list_code(root))

    before = compute()
    os.utime(root / "train.py", (0, 0))
    assert compute() == before
    (root / "tool.sh").chmod(0o644)
    changed = [compute()]
    (root / "train.py").write_text("import pkg.model \n")
    changed.append(compute())
    (root / "pkg" / "model.py").rename(root / "pkg" / "other.py")
    changed.append(compute())
    assert len({before, *changed}) == 4


def test_a_copy_has_the_files_and_is_for_reading(root, run_dir) -> None:
    digest = ship(root, run_dir)
    copy = run_dir.root / "code" / digest
    assert (copy / "pkg" / "model.py").read_text() == "depth = 2\n"
    assert (copy / "tool.sh").stat().st_mode & 0o777 == 0o555
    assert (copy / "train.py").stat().st_mode & 0o777 == 0o444
    check_shipped_code(run_dir, digest)
    (copy / "__pycache__").mkdir()
    (copy / "__pycache__" / "train.pyc").write_text("written by Python")
    check_shipped_code(run_dir, digest)


def test_a_changed_or_missing_copy_is_refused(root, run_dir) -> None:
    digest = ship(root, run_dir)
    copy = run_dir.root / "code" / digest
    for change in (
        lambda: (copy / "extra.py").write_text(""),
        (copy / "train.py").unlink,
        lambda: copy.rename(copy.with_name("elsewhere")),
    ):
        change()
        with pytest.raises(BadInput, match="is not the shipped one"):
            check_shipped_code(run_dir, digest)


def test_links_that_other_machines_would_not_have_are_refused(root, run_dir, tmp_path) -> None:
    (root / ".git").mkdir()
    (root / ".git" / "config").write_text("url = https://user:password@host")
    (root / "inside.py").symlink_to("train.py")
    digest = ship(root, run_dir)
    assert (run_dir.root / "code" / digest / "inside.py").read_text() == "import pkg.model\n"
    outside = tmp_path / "outside.py"
    outside.write_text("")
    for target in (outside, root / "pkg", root / "nothing", root / ".git" / "config", root / "link"):
        (root / "link").symlink_to(target)
        with pytest.raises(BadInput, match="link is a link to"):
            list_code(root)
        (root / "link").unlink()


def test_private_files_stay_private_in_the_copy(root, run_dir) -> None:
    (root / ".ssh").mkdir()
    for name, mode in ((".env", 0o600), (".ssh/config", 0o644), ("pkg/model.py", 0o640), ("tool.sh", 0o700)):
        (root / name).touch()
        (root / name).chmod(mode)
    (root / ".ssh").chmod(0o700)
    copy = run_dir.root / "code" / ship(root, run_dir)
    modes = {
        name: (copy / name).stat().st_mode & 0o777 for name in (".env", ".ssh", "pkg/model.py", "tool.sh")
    }
    assert modes == {".env": 0o400, ".ssh": 0o700, "pkg/model.py": 0o440, "tool.sh": 0o500}
    check_shipped_code(run_dir, copy.name)


def test_each_folder_has_its_own_ignore_file(root) -> None:
    for name in ("pkg/secret", "pkg/deep/secret", "pkg/deep/keep", "secret"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("x")
    (root / "pkg" / ".gitignore").write_text("secret\n/deep/*\n")
    (root / "pkg" / "deep" / ".gitignore").write_text("!keep\n")
    names = list_names(root)
    assert {"secret", "pkg/deep/keep", "pkg/model.py"} <= set(names)
    assert not {"pkg/secret", "pkg/deep/secret"} & set(names)


def test_folders_without_end_are_refused(root) -> None:
    (root / "/".join("d" * 200)).mkdir(parents=True)
    with pytest.raises(BadInput, match="nested more than 100 deep"):
        list_code(root)


def test_a_search_without_end_is_refused(root, monkeypatch) -> None:
    monkeypatch.setattr(shipped_code, "LONGEST_S", -1)
    with pytest.raises(BadInput, match="took more than"):
        list_code(root)


@pytest.mark.parametrize("stand_in", ["a pipe", "a link to itself", "an endless device"])
@pytest.mark.parametrize("name", ["train.py", "extra", "pkg/extra"])
def test_a_copy_with_anything_but_files_is_refused(root, run_dir, name, stand_in) -> None:
    digest = ship(root, run_dir)
    replace_with_stand_in(run_dir.root / "code" / digest / name, stand_in)
    with pytest.raises(BadInput, match="is not the shipped one"):
        check_shipped_code(run_dir, digest)


def test_a_pipe_is_no_code(root) -> None:
    os.mkfifo(root / "pipe")
    with pytest.raises(BadInput, match="pipe is neither a file nor a directory"):
        list_code(root)


@pytest.mark.parametrize(("limit", "value"), [("MOST_FILES", 5), ("MOST_BYTES", 2 << 20)])
def test_too_much_code_names_what_is_large(root, monkeypatch, limit, value) -> None:
    (root / "data").mkdir()
    for number in range(4):
        (root / "data" / f"{number}.bin").write_bytes(bytes(1 << 20))
    monkeypatch.setattr(shipped_code, limit, value)
    with pytest.raises(BadInput, match="most in data") as error:
        list_code(root)
    assert ".elastaneignore" in error.value.do
    (root / ".gitignore").write_text("data\n")
    assert "data/0.bin" not in list_names(root)


def test_code_that_changes_while_it_is_copied_is_refused(root, run_dir) -> None:
    files = list_code(root)
    digest = compute_code_digest(root, files)
    (root / "train.py").write_text("changed\n")
    with pytest.raises(BadInput, match="has changed while it was copied"):
        copy_code(root, files, run_dir, digest)
    (root / "train.py").unlink()
    with pytest.raises(BadInput, match="cannot copy the code"):
        copy_code(root, files, run_dir, digest)
    assert list((run_dir.root / "code").iterdir()) == []
