"""The code that a job brings with it: its digest, and the paths in it."""

import msgspec
import pytest

from elastane.cluster.controller.admission import check_spec
from elastane.cluster.engines.local.job_program import make_run_spec
from elastane.cluster.nouns.jobs import JobSpec
from elastane.common.errors import BadField, BadInput

DIGEST = "0123456789abcdef" * 4
SPEC = JobSpec(name="j", team="t", script="src/train.py", code=DIGEST)


def test_paths_in_the_code_begin_at_its_root(tmp_path) -> None:
    check_spec(SPEC)
    run = make_run_spec("j", SPEC, "python", tmp_path / DIGEST)
    assert (run.script, run.directory) == (f"{tmp_path}/{DIGEST}/src/train.py", f"{tmp_path}/{DIGEST}")
    assert run.code == DIGEST
    inside = msgspec.structs.replace(SPEC, working_dir="./src/../data")
    check_spec(inside)
    assert make_run_spec("j", inside, "python", tmp_path).directory == str(tmp_path / "data")


def test_a_module_and_a_command_begin_in_the_working_directory(tmp_path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text("")
    module = msgspec.structs.replace(SPEC, script="", module="train", working_dir="src")
    assert make_run_spec("j", module, "python", tmp_path).script == str(tmp_path / "src" / "train.py")
    command = msgspec.structs.replace(SPEC, script="", command=("python", "../train.py"), working_dir="src")
    assert make_run_spec("j", command, "python", tmp_path).script == str(tmp_path / "train.py")
    outside = msgspec.structs.replace(command, working_dir="")
    with pytest.raises(BadInput, match=r"command: '\.\./train\.py' leads out of the code"):
        make_run_spec("j", outside, "python", tmp_path)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"code": DIGEST[1:]}, "code: .* is not the digest"),
        ({"code": DIGEST.upper()}, "code: .* is not the digest"),
        ({"code": DIGEST + "\n"}, "code: .* is not the digest"),
        ({"script": "/home/ada/train.py"}, "script: .* is an absolute path"),
        ({"script": "../train.py"}, "script: .* leads out of the code"),
        ({"script": "a/../../train.py"}, "script: .* leads out of the code"),
        ({"working_dir": "/"}, "workingDir: .* is an absolute path"),
        ({"working_dir": ".."}, "workingDir: .* leads out of the code"),
    ],
)
def test_a_path_that_leaves_the_code_is_refused(fields, said) -> None:
    with pytest.raises(BadField, match=said):
        check_spec(msgspec.structs.replace(SPEC, **fields))
