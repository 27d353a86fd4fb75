"""The command of a batch script that runs an agent in the container image of its job. Pure."""

import re
import shlex

import msgspec

from elastane.cluster.engines.slurm.options import SlurmOptions
from elastane.cluster.nouns.agents import AgentAsk
from elastane.cluster.nouns.images import SQUASHFS, ContainerImage, parse_image
from elastane.common.errors import BadInput

PYXIS = "pyxis"
HOME = "$ELASTANE_HOME"
JOIN = f'env "ELASTANE_HOME={HOME}" elastane join -'
"""In the image, the variable may have another value. The exit code of env says that there is no Elastane."""
OWN_HOME = """\
export ELASTANE_HOME="${ELASTANE_HOME:-$HOME/.elastane}"
mkdir -p -m 700 "$ELASTANE_HOME"
"""
CLEAN_PYTHON = """\
unset PYTHONHOME PYTHONPATH
export PYTHONNOUSERSITE=1
"""
"""The packages of the machine, and those in the home of the user, are for another Python than the image's."""
FIND_DEVICES = """\
devices=()
[[ -e /dev/nvidiactl ]] && devices+=(--nv)
[[ -e /dev/kfd ]] && devices+=(--rocm)
"""
SRUN = (
    "srun",
    "--nodes=1",
    "--ntasks=1",
    # The batch job has the environment of a login; without this, the step would have none.
    "--export=ALL",
    "--mpi=none",
    "--cpu-bind=none",
    # The step would get one processor otherwise.
    '"--cpus-per-task=${SLURM_CPUS_ON_NODE:-1}"',
)
SUPERVISE = """\
step=$!
trap 'notice=1; kill -USR1 "$step"' USR1 TERM
while notice=; wait "$step"; code=$?; [[ $notice ]]; do :; done
exit "$code"
"""
"""Waits for the step of the agent. A notice for the script reaches the agent as SIGUSR1: srun passes it on,
and kills its step at SIGTERM."""
_MOUNTABLE = re.compile(r"/[^\s:,\x00-\x1f\x7f]*")


class AgentCommand(msgspec.Struct, frozen=True, kw_only=True):
    """How a batch script starts an agent, as lines of shell.

    Args:
        before: lines before the command.
        command: without its standard input.
        after: lines that wait for the command, which then runs in the background; empty: the script becomes
            the command.
    """

    before: str = ""
    command: str
    after: str = ""


def build_container_command(ask: AgentAsk, options: SlurmOptions) -> AgentCommand:
    """Return the command of an agent of a job with an image."""
    if not options.container:
        raise BadInput(
            f"the engine cannot run the image {ask.image} of job {ask.job}: its option container is not set",
            do="set it to pyxis, apptainer or singularity, or submit the job without an image",
        )
    if ask.home and not _MOUNTABLE.fullmatch(ask.home):
        raise BadInput(
            f"a container cannot see the directory {ask.home!r}: its path has a colon, a comma or a space",
            do="start the controller with another ELASTANE_HOME",
        )
    image = parse_image(ask.image)
    before = f"export ELASTANE_HOME={shlex.quote(ask.home)}\n" if ask.home else OWN_HOME
    mounts = ",".join((f"{HOME}:{HOME}", *options.mounts))
    if options.container == PYXIS:
        words = (
            *SRUN,
            shlex.quote(f"--container-image={name_for_pyxis(image)}"),
            f'"--container-mounts={mounts}"',
        )
        return AgentCommand(
            before=before + CLEAN_PYTHON, command=f"{' '.join(words)} {JOIN}", after=SUPERVISE
        )
    run = f'exec {options.container} exec "${{devices[@]}}" "--bind={mounts}"'
    return AgentCommand(
        before=before + CLEAN_PYTHON + FIND_DEVICES,
        command=f"{run} {shlex.quote(name_for_apptainer(image))} {JOIN}",
    )


def name_for_pyxis(image: ContainerImage) -> str:
    """Return an image as Pyxis names it: ``REGISTRY#NAME:TAG``, or the path of a squashfs file."""
    if image.path and not image.path.endswith(SQUASHFS):
        raise BadInput(
            f"Pyxis cannot run the image {image.path}",
            do=f"name an image in a registry, or a file with an ending of {' or '.join(SQUASHFS)}",
        )
    return image.path or f"{image.registry}{'#' if image.registry else ''}{image.in_registry}"


def name_for_apptainer(image: ContainerImage) -> str:
    """Return an image as Apptainer names it: a path, or ``docker://REGISTRY/NAME:TAG``."""
    return image.path or f"docker://{image.registry}{'/' if image.registry else ''}{image.in_registry}"
