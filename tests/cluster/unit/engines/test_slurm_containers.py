"""The scripts of agents that run in containers. The real Slurm is in tests/cluster/engines."""

import shlex
import signal
import subprocess

import pytest

from elastane.cluster.engines.commands import CommandAnswer
from elastane.cluster.engines.slurm.doctor import judge_container, judge_pyxis
from elastane.cluster.engines.slurm.options import SlurmOptions, decode_slurm_options
from elastane.cluster.engines.slurm.submission import build_script
from elastane.cluster.nouns.agents import AgentAsk, Away
from elastane.common.errors import BadField, BadInput
from tests.waiting import WAIT_S, wait_until

DIGEST = f"sha256:{'0a' * 32}"


def build(container: str, image: str, **fields) -> str:
    options = decode_slurm_options({"container": container, "containerMounts": "/data,/a:/b:ro"})
    ask = AgentAsk(
        id="c1-7", job="demo", pool={}, devices=1, grace_s=1.0, ticket="secret", image=image, **fields
    )
    return build_script(ask, options)


def find_command(script: str) -> list[str]:
    """Return the words of the line that runs the container."""
    line = next(line for line in script.splitlines() if "END_OF_ELASTANE_TICKET" in line)
    return shlex.split(line.split(" <<")[0])


@pytest.mark.parametrize(
    ("image", "pyxis", "apptainer"),
    [
        ("team/train:1", "team/train:1", "docker://team/train:1"),
        ("nvcr.io/a/b:1", "nvcr.io#a/b:1", "docker://nvcr.io/a/b:1"),
        ("nvcr.io#a/b", "nvcr.io#a/b", "docker://nvcr.io/a/b"),
        (f"a/b:1@{DIGEST}", f"a/b@{DIGEST}", f"docker://a/b@{DIGEST}"),
        ("/shared/a.sqsh", "/shared/a.sqsh", "/shared/a.sqsh"),
    ],
)
def test_each_program_gets_the_image_in_its_own_spelling(image, pyxis, apptainer):
    words = find_command(build("pyxis", image, home="/home/me"))
    assert words[0] == "srun"
    assert f"--container-image={pyxis}" in words
    # A batch job exports nothing, and its steps would get one processor.
    assert {"--export=ALL", "--cpus-per-task=${SLURM_CPUS_ON_NODE:-1}"} <= set(words)
    assert "--container-mounts=$ELASTANE_HOME:$ELASTANE_HOME,/data:/data,/a:/b:ro" in words
    words = find_command(build("apptainer", image, home="/home/me"))
    assert words[:3] == ["exec", "apptainer", "exec"]
    assert words[4] == "--bind=$ELASTANE_HOME:$ELASTANE_HOME,/data:/data,/a:/b:ro"
    assert words[5:] == [apptainer, "env", "ELASTANE_HOME=$ELASTANE_HOME", "elastane", "join", "-"]
    assert find_command(build("singularity", image))[1] == "singularity"


def test_an_image_that_cannot_run_is_refused_in_words():
    with pytest.raises(BadInput, match=r"Pyxis cannot run the image /a\.sif"):
        build("pyxis", "/a.sif")
    with pytest.raises(BadInput, match="its option container is not set"):
        build_script(
            AgentAsk(id="c1-7", job="j", pool={}, devices=1, grace_s=1.0, ticket="t", image="a:1"),
            SlurmOptions(),
        )
    with pytest.raises(BadInput, match="has a colon, a comma or a space"):
        build("apptainer", "a:1", home="/home/a,b")
    for name, value in (("container", "docker"), ("containerMounts", "data"), ("containerMounts", "/a:/b:x")):
        with pytest.raises(BadField):
            decode_slurm_options({name: value})


@pytest.fixture
def run_script(tmp_path, monkeypatch):
    """Start a script of an agent; a program in place of ``srun`` and ``apptainer`` says how it was called."""
    program = tmp_path / "bin" / "srun"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/bash\n"
        "notices=0; trap 'echo USR1; notices=$((notices + 1))' USR1\n"
        'printf "%s\\n" "$$" "$@" "$ELASTANE_HOME" "$PYTHONNOUSERSITE" "${PYTHONPATH-none}" "$(cat)" ready\n'
        # A signal that comes between two waits ends none.
        'while [ "$notices" -lt 2 ]; do sleep 0.05 & wait "$!"; done\n'
        "exit 7\n"
    )
    program.chmod(0o755)
    (program.parent / "apptainer").symlink_to(program)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("PYTHONPATH", "/packages/of/the/machine")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("ELASTANE_HOME", raising=False)
    script, output = tmp_path / "script", tmp_path / "output"

    def start(container: str, **fields):
        script.write_text(build(container, "team/train:1", **fields))
        with output.open("wb") as file:
            shell = subprocess.Popen(["bash", script], stdout=file, stdin=subprocess.DEVNULL)
        wait_until(lambda: "ready" in output.read_text(), "the container runs")
        return shell, output

    return start


def test_notices_of_every_kind_reach_an_agent_under_srun_and_its_exit_code_is_that_of_the_job(run_script):
    shell, output = run_script("pyxis", home="/home/me")
    lines = output.read_text().splitlines()
    assert lines[-5:] == ["/home/me", "1", "none", "secret", "ready"]
    assert int(lines[0]) != shell.pid
    # srun would kill its step at SIGTERM.
    for number, notice in enumerate((signal.SIGUSR1, signal.SIGTERM), 1):
        shell.send_signal(notice)
        wait_until(lambda number=number: output.read_text().count("USR1") == number, "the agent has it")
    assert shell.wait(WAIT_S) == 7


def test_the_script_becomes_apptainer_which_passes_signals_on(run_script, tmp_path):
    shell, output = run_script("apptainer")
    lines = output.read_text().splitlines()
    assert int(lines[0]) == shell.pid
    # Without a shared home the machine has one of its own.
    assert lines[-5] == str(tmp_path / ".elastane")
    assert (tmp_path / ".elastane").stat().st_mode & 0o777 == 0o700
    shell.send_signal(signal.SIGUSR1)
    wait_until(lambda: output.read_text().count("USR1") == 1, "it has the signal")
    shell.send_signal(signal.SIGUSR1)
    assert shell.wait(WAIT_S) == 7


def test_the_doctor_says_that_the_program_for_containers_is_missing():
    assert judge_pyxis(CommandAnswer(0, "  --container-image=[USER@]...", "")).ok
    assert "no option --container-image" in judge_pyxis(CommandAnswer(0, "usage", "")).what
    assert "cannot start srun" in judge_pyxis(Away("cannot start srun: No such file")).what
    options = SlurmOptions(container="apptainer")
    assert not judge_container(options, is_here=False).ok
    assert judge_container(options, is_here=True).ok
    assert judge_container(
        SlurmOptions(container="apptainer", setup="module load apptainer"), is_here=False
    ).ok
