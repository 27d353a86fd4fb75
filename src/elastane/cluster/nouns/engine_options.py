"""The options of engines and of their pools: one table for each kind of engine.

The controller checks documents by these tables, and the command line takes its options from them. An engine
decodes the values that have passed the checks.
"""

import re
from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

from elastane.cluster.nouns.kubernetes_options import KUBERNETES
from elastane.cluster.nouns.option_forms import (
    ANSWER,
    CHOICE,
    CPUS,
    ELASTANE,
    HOME,
    PATH,
    SETUP,
    SIZE,
    WORKERS,
    EngineOption,
    KindOptions,
    TextForm,
    make_form,
)
from elastane.cluster.nouns.ray_options import RAY
from elastane.common.durations import parse_duration_s
from elastane.common.field_checks import check_remark, make_field_error
from elastane.common.safe_text import escape_line

EngineKind: TypeAlias = Literal["slurm", "kubernetes", "ray"]
LONGEST_LINES = 10_000
"""The most characters of an option with several lines."""
LONGEST_KEY = 100
"""The most characters of an unknown option that an error repeats."""
LINE_BREAKS = str.maketrans("", "", "\n\t")


def parse_time_limit_s(text: str) -> float:
    """Return the seconds of a duration, or of a time limit as Slurm writes it: ``1-12:00:00``.

    Raises:
        ValueError: the text is neither.
        OverflowError: the duration is longer than any float.
    """
    if match := re.fullmatch(r"(?:(\d{1,4})-)?(\d{1,4}):(\d{2}):(\d{2})", text, re.ASCII):
        days, hours, minutes, seconds = map(int, match.groups("0"))
        return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
    return parse_duration_s(text)


def is_time_limit(text: str) -> bool:
    """Return whether the text is a time limit of at least a second."""
    try:
        return parse_time_limit_s(text) >= 1
    except (ValueError, OverflowError):
        return False


WORD = r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,127}"
_MOUNTED = r"/[A-Za-z0-9_./+@=-]{0,1000}"
_MOUNT = rf"{_MOUNTED}(?::{_MOUNTED}(?::r[ow])?)?"
NAME = make_form("a name of Slurm", WORD)
NAMES = make_form("a name of Slurm, or several with commas between them", rf"{WORD}(?:,{WORD}){{0,63}}")
NODES = make_form("names of nodes with commas between them", rf"{WORD}(?:,{WORD}){{0,63}}")
FEATURES = make_form(
    "features with & or with | between them", rf"{WORD}(?:(?:&{WORD}){{0,15}}|(?:\|{WORD}){{0,15}})"
)
TIME = TextForm("a duration with its unit, or a time limit such as 8:00:00", is_time_limit)
GRES = make_form(
    "NAME or NAME:TYPE, without a number of them", rf"[A-Za-z][A-Za-z0-9_]{{0,63}}(?::(?!\d+\Z){WORD})?"
)

CONTAINER = EngineOption(
    name="container",
    metavar="pyxis|apptainer|singularity",
    help="Program that runs the agents of jobs with an image; pyxis: by srun. Default: none, so that these "
    "jobs do not run here.",
    example="apptainer",
    form=make_form("pyxis, apptainer or singularity", "pyxis|apptainer|singularity"),
)
CONTAINER_MOUNTS = EngineOption(
    name="containerMounts",
    metavar="PATH[:PATH[:ro]]",
    help="Directories of the nodes that agents in images see, with commas between them; $ELASTANE_HOME is "
    "always one.",
    example="/shared,/scratch/data:/data:ro",
    form=make_form(
        "PATH, PATH:PATH or PATH:PATH:ro, or several with commas between them",
        rf"{_MOUNT}(?:,{_MOUNT}){{0,31}}",
    ),
)

SLURM = KindOptions(
    engine=(
        ELASTANE,
        SETUP,
        HOME,
        CONTAINER,
        CONTAINER_MOUNTS,
        EngineOption(
            name="output",
            metavar="FILE",
            help="File of each agent's output on its node, in a folder that exists; sbatch replaces %x, %j "
            "and %N. Default: the one that the controller names.",
            example="/scratch/elastane/%x-%j.log",
            form=PATH,
        ),
        EngineOption(
            name="conf",
            metavar="FILE",
            help="Configuration file of Slurm, as in SLURM_CONF. Default: that of the machine.",
            example="/etc/slurm/slurm.conf",
            form=PATH,
        ),
        EngineOption(
            name="bin",
            metavar="DIR",
            help="Folder of the programs of Slurm. Default: they are found in the controller's PATH.",
            example="/opt/slurm/bin",
            form=PATH,
        ),
        EngineOption(
            name="answer",
            metavar="DURATION",
            help="How long a program of Slurm may take, at most 60s. Default: 2s.",
            example="5s",
            form=ANSWER,
        ),
        EngineOption(
            name="accounting",
            metavar="yes|no",
            help="Whether to ask sacct about jobs that Slurm has forgotten otherwise. Default: no.",
            example="yes",
            form=CHOICE,
        ),
    ),
    pool=(
        EngineOption(
            name="partition",
            metavar="PARTITION",
            help="Partition. Default: that of the Slurm cluster.",
            example="gpu",
            form=NAMES,
        ),
        EngineOption(
            name="account",
            metavar="ACCOUNT",
            help="Account that is charged. Default: that of the controller's user.",
            example="vision",
            form=NAME,
        ),
        EngineOption(
            name="qos",
            metavar="QOS",
            help="Quality of service. Default: that of the account.",
            example="normal",
            form=NAME,
        ),
        EngineOption(
            name="constraint",
            metavar="FEATURES",
            help="Features that each node has, such as 'a100&ib' or 'a100|h100'.",
            example="a100&ib",
            form=FEATURES,
        ),
        EngineOption(
            name="exclude",
            metavar="NODES",
            help="Nodes that are not used, with commas between them.",
            example="n17,n18",
            form=NODES,
        ),
        EngineOption(
            name="reservation",
            metavar="RESERVATION",
            help="Reservation of Slurm that the agents use.",
            example="training",
            form=NAME,
        ),
        EngineOption(
            name="time",
            metavar="TIME",
            help="Time limit of each agent, such as 8h or 2-00:00:00. Default: that of the partition.",
            example="8h",
            form=TIME,
        ),
        EngineOption(
            name="gres",
            metavar="GRES",
            help="Generic resource that is a device, such as gpu or gpu:a100. Default: devices are CPUs.",
            example="gpu:a100",
            form=GRES,
        ),
        EngineOption(
            name="cpusPerDevice",
            metavar="N",
            help="CPUs for each device. Default: 1 without gres, else those that Slurm gives.",
            example="8",
            form=CPUS,
        ),
        EngineOption(
            name="memoryPerDevice",
            metavar="SIZE",
            help="Memory for each device, such as 64G or 500M. Default: as much as Slurm gives.",
            example="64G",
            form=SIZE,
        ),
        WORKERS,
    ),
)

OPTIONS: dict[EngineKind, KindOptions] = {"slurm": SLURM, "kubernetes": KUBERNETES, "ray": RAY}
assert tuple(OPTIONS) == get_args(EngineKind)


def check_options(field: str, what: str, options: Mapping[str, str], known: tuple[EngineOption, ...]) -> None:
    """Check that all options are known, and that each value has the right form.

    Args:
        field: place of the options in the document.
        what: words for their owner in errors, such as ``an engine of kind slurm``.
        known: from the table of the kind.

    Raises:
        BadField: one is not.
    """
    by_name = {option.name: option for option in known}
    for name, value in options.items():
        place = f"{field}.{escape_line(name, LONGEST_KEY)}"
        if name not in by_name:
            raise make_field_error(place, f"{what} has no such option", f"write one of: {', '.join(by_name)}")
        check_option(place, value, by_name[name])


def check_option(field: str, value: str, option: EngineOption) -> None:
    """Check the form of one value."""
    write = f"write for example {option.example}"
    if not value.strip():
        raise make_field_error(field, "is empty", f"{write}, or remove the option")
    if option.lines:
        if len(value) > LONGEST_LINES:
            raise make_field_error(
                field,
                f"has {len(value)} characters",
                f"write {LONGEST_LINES} at most; put the rest into a file, and name it here",
            )
        if not value.translate(LINE_BREAKS).isprintable():
            raise make_field_error(
                field, "has control characters", "write lines of text, with Unix line breaks"
            )
        return
    check_remark(field, value)
    if option.form is not None and not option.form.fits(value):
        raise make_field_error(field, f"{value!r} is not {option.form.words}", write)
