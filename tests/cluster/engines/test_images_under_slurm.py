"""Jobs with an image under a real Slurm.

Apptainer runs for real where it is installed. Elsewhere a program in its place starts the agent without a
container; in place of the options of Pyxis, a program in front of the real srun takes them away.
"""

import json
import os
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from elastane.cluster.engines.local.engine import EngineDirectories
from elastane.cluster.engines.slurm.engine import SlurmEngine
from elastane.cluster.engines.slurm.options import decode_slurm_options
from elastane.run.attempts.verification import verify_run
from elastane.run.observability.run_files import read_run
from tests.cluster.processes.small_cluster import (
    SOURCES,
    open_cluster,
    read_json,
    submit_training,
    wait_for_members,
)
from tests.waiting import WAIT_S, wait_until

pytestmark = pytest.mark.processes
STEPS = 40
POOL = {"partition": "main", "gres": "gpu", "cpusPerDevice": "1"}
CONTAINER = """\
#!/bin/bash
# apptainer exec --bind=... IMAGE COMMAND...
for image; do [[ $image == /* ]] && break; done
[[ -d $image ]] || { echo "FATAL:   could not open image $image" >&2; exit 255; }
while [[ $1 != "$image" ]]; do shift; done
PATH="$image/sbin:/usr/bin:/bin" exec "${@:2}"
"""
SRUN = """\
#!/bin/bash
for word; do
  case $word in
    --container-image=*) image=${word#*=} ;;
    --container-mounts=*) ;;
    *) words+=("$word") ;;
  esac
done
[[ -d $image ]] || { echo "pyxis:     [ERROR] No such file or directory: $image" >&2; exit 1; }
PATH="$image/sbin:/usr/bin:/bin" exec SRUN "${words[@]}"
"""


def list_seen_paths(tmp_path: Path) -> list[Path]:
    """Return the directories of this machine that a container needs: the image has none of the files."""
    packages = [Path(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    wanted = [SOURCES.parent, Path(sys.prefix), Path(sys.base_prefix), *packages, tmp_path, Path("/usr")]
    return [
        path
        for path in dict.fromkeys(wanted)
        if not any(path != other and path.is_relative_to(other) for other in wanted)
    ]


def make_image(image: Path, paths: list[Path], command: tuple[str, ...]) -> None:
    """Make a directory that Apptainer takes for an image, with the command elastane."""
    for path in (*paths, *(Path("/", name) for name in ("sbin", "etc", "dev", "proc", "sys", "tmp"))):
        (image / str(path).lstrip("/")).mkdir(parents=True, exist_ok=True)
    for name in ("bin", "lib", "lib64"):
        (image / name).symlink_to(f"usr/{name}")
    elastane = image / "sbin" / "elastane"
    elastane.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    elastane.chmod(0o755)


@pytest.fixture
def programs(tmp_path) -> Path:
    """The folder of the programs that run containers; it goes before all others."""
    folder = tmp_path / "bin"
    folder.mkdir()
    written = {"srun": SRUN.replace("SRUN", str(shutil.which("srun")), 1)}
    if shutil.which("apptainer") is None:
        written["apptainer"] = CONTAINER
    for name, text in written.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def container(request) -> str:
    """The option of the engine."""
    return request.param


@pytest.fixture
def run_elastane(stage, tmp_path, monkeypatch, slurm, container, programs):
    """Run a command of a cluster with one pool, with agents in images."""
    paths = os.pathsep.join([str(SOURCES), os.environ.get("PYTHONPATH", "")])
    command = ("env", f"PYTHONPATH={paths}", *stage.build_command("elastane.cli.main"))
    seen = list_seen_paths(tmp_path)
    make_image(tmp_path / "image.sqsh", seen, command)
    declared = {"container": container, "containerMounts": ",".join(map(str, seen))}
    own = {
        "command": "no-such-command",
        "conf": str(slurm.conf),
        "answer": f"{min(WAIT_S, 60):g}s",
        "setup": f"export PATH={programs}:{os.environ['PATH']} PYTHONPATH=/of/the/machine",
    }
    options = decode_slurm_options(declared | own)
    with open_cluster(
        stage,
        tmp_path,
        monkeypatch,
        open_engine=lambda cluster: SlurmEngine(cluster, options),
        options=POOL,
        engine_options=declared,
    ) as run:
        yield run
    slurm.end_jobs()


@pytest.mark.long
@pytest.mark.parametrize("container", ["apptainer", "pyxis"], indirect=True)
def test_a_job_trains_in_its_image_and_notices_reach_its_agents(run_elastane, slurm, tmp_path, stage):
    options = ("--workers", "2", "--checkpoint-dir", str(tmp_path / "store"))
    image = ("--image", str(tmp_path / "image.sqsh"))
    submit_training(run_elastane, "far", *options, *image, args=(f"--steps={STEPS}", "--seconds=0.05"))
    wait_for_members(run_elastane, "far", 2, slurm.read_outputs)
    # The script of one of them gets a notice, as at the end of its time.
    run_elastane("scale", "far", "1")
    wait_for_members(run_elastane, "far", 1)
    wait_until(lambda: run_elastane.read_job("far").state == "finished", "it has finished")
    run = read_run(EngineDirectories(tmp_path / "home").get_run_dir("far"))
    assert verify_run(run).problems == ()
    assert run.ledger[-1].digest == stage.play(f"--steps={STEPS}").run.ledger[-1].digest
    assert not [event for event in run.events if event.kind in ("worker.failed", "worker.died", "node.lost")]
    wait_until(lambda: not slurm.run("squeue", "-h", "-t", "RUNNING"), "no job of Slurm is left")
    assert read_json(run_elastane, "describe", "far")["crashes"] == 0


@pytest.mark.parametrize("container", ["apptainer", "pyxis"], indirect=True)
def test_a_job_says_that_its_image_is_missing_or_has_no_elastane(run_elastane, slurm, tmp_path, container):
    def find_reason(name: str) -> str:
        lines = run_elastane("events", name, "--job", "--json").stdout.splitlines()
        events = map(json.loads, lines)
        return " ".join(event["message"] for event in events if event["kind"] == "job.held_up")

    submit_training(run_elastane, "missing", "--image", str(tmp_path / "missing.sqsh"))
    wait_until(lambda: find_reason("missing"), "it is held up", state=slurm.read_outputs)
    said = "could not open image" if container == "apptainer" else "No such file or directory"
    assert f"{tmp_path}/missing.sqsh" in find_reason("missing")
    assert said in find_reason("missing")
    (tmp_path / "image.sqsh" / "sbin" / "elastane").unlink()
    submit_training(run_elastane, "empty", "--image", str(tmp_path / "image.sqsh"))
    wait_until(lambda: find_reason("empty"), "it is held up", state=slurm.read_outputs)
    assert "127" in find_reason("empty")
    assert "elastane" in find_reason("empty").partition("its log says: ")[2]
