"""The options of the engine and of its pools, as an operator writes them."""

import re
import shlex
from collections.abc import Mapping

import msgspec

from elastane.cluster.nouns.agents import ELASTANE_COMMAND
from elastane.cluster.nouns.engine_options import CONTAINER, CONTAINER_MOUNTS, check_option
from elastane.cluster.nouns.option_forms import EngineOption
from elastane.common.durations import EXAMPLES, parse_duration_s
from elastane.common.errors import BadField

ANSWER_S = 2.0
"""How long a program of Slurm may take, unless the options say otherwise. A controller that works answers in
some hundredths of a second; one that hangs would hold the programs for MessageTimeout, by default 10 s."""
LONGEST_ANSWER_S = 60.0
MOST_PER_DEVICE = 4096
"""The most processors of one device; it only has to be more than any machine has."""

WORD = r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,127}"
_WORD = re.compile(WORD)
_WORDS = re.compile(rf"{WORD}(?:,{WORD}){{0,63}}")
_CONSTRAINT = re.compile(rf"{WORD}(?:(?:&{WORD}){{0,15}}|(?:\|{WORD}){{0,15}})")
_GRES = re.compile(rf"[A-Za-z][A-Za-z0-9_]{{0,63}}(?::(?![0-9]+\Z){WORD})?")
_COUNT = re.compile(r"[1-9][0-9]{0,3}")
_MEMORY = re.compile(r"([1-9][0-9]{0,6})([MGT])")
_SLURM_TIME = re.compile(r"(?:([0-9]{1,4})-)?([0-9]{1,4}):([0-9]{2}):([0-9]{2})")
_UNITS_BYTES = {"M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_PATH = re.compile(r"/[^\x00-\x1f\x7f]{0,4000}")
_SETUP = re.compile(r"[^\x00-\x08\x0b-\x1f\x7f]{0,65536}")


class SlurmPool(msgspec.Struct, frozen=True, kw_only=True):
    """What jobs of a pool ask of Slurm. An empty text is left to Slurm.

    Args:
        partition: one or several, with commas: ``gpu,gpu-long``.
        account: that pays.
        qos: quality of service.
        reservation: the name of one.
        constraint: features of the machines: ``h100``, ``h100&nvlink`` or ``a100|h100``.
        exclude: names of machines that are not used, with commas, without brackets.
        time_s: the time limit of each job in seconds, which is rounded up to minutes; None: that of the
            partition.
        gres: a generic resource that is a device: ``gpu`` or ``gpu:a100``. Empty: processors are the devices.
        cpus_per_device: how many processors come with a device, unless the agent asks for a number of them;
            None: one without ``gres``, and else what Slurm gives.
        memory_bytes_per_device: how much memory comes with a device, unless the agent asks for some; None:
            what Slurm gives, which may be all memory of a machine.
    """

    partition: str = ""
    account: str = ""
    qos: str = ""
    reservation: str = ""
    constraint: str = ""
    exclude: str = ""
    time_s: float | None = None
    gres: str = ""
    cpus_per_device: int | None = None
    memory_bytes_per_device: int | None = None

    def count_cpus(self, devices: int) -> int | None:
        """Return the processors that come with devices; None: those that Slurm gives."""
        if self.cpus_per_device is not None:
            return devices * self.cpus_per_device
        return None if self.gres else devices


class SlurmOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the engine.

    Args:
        command: words that start Elastane on a machine of the cluster, at the same path as here.
        setup: lines of shell before the command, such as ``module load`` or ``source``. They run in the root
            folder, with the environment of a login.
        container: ``pyxis``, or the name of a program like Apptainer, which run agents in images; empty: they
            cannot have images.
        mounts: directories of the machines that agents see in their images: ``SOURCE:PATH`` or
            ``SOURCE:PATH:ro``.
        output: the file of the output of each agent, a path on its machine, in a folder that exists there.
            Slurm replaces ``%x`` by the name of the job, ``%j`` by its number and ``%N`` by the machine.
            Empty: the file that the request for the agent names, if any.
        conf: path of Slurm's configuration; empty: the programs of Slurm find it.
        programs: the folder of the programs of Slurm; empty: they are found in ``PATH``.
        answer_s: how long each of them may take, in seconds.
        accounting: whether an agent also counts as started if only the accounting of Slurm (``sacct``)
            remembers its job. Slurm itself forgets a job some minutes after its end (MinJobAge).
    """

    command: tuple[str, ...] = ELASTANE_COMMAND
    setup: str = ""
    container: str = ""
    mounts: tuple[str, ...] = ()
    output: str = ""
    conf: str = ""
    programs: str = ""
    answer_s: float = ANSWER_S
    accounting: bool = False


POOL_OPTIONS = (
    "partition",
    "account",
    "qos",
    "reservation",
    "constraint",
    "exclude",
    "time",
    "gres",
    "cpusPerDevice",
    "memoryPerDevice",
    "workersPerAgent",
)
ENGINE_OPTIONS = (
    "command",
    "setup",
    "home",
    "container",
    "containerMounts",
    "output",
    "conf",
    "bin",
    "answer",
    "accounting",
)


def decode_pool_options(options: Mapping[str, str]) -> SlurmPool:
    """Return the options of a pool."""
    _check_names(options, POOL_OPTIONS, "a pool")
    cpus, memory, time = (options.get(name) for name in ("cpusPerDevice", "memoryPerDevice", "time"))
    return SlurmPool(
        partition=_match(options, "partition", _WORDS, "write names with commas between them: gpu,gpu-long"),
        account=_match(options, "account", _WORD, "write the name of an account"),
        qos=_match(options, "qos", _WORD, "write the name of a QOS"),
        reservation=_match(options, "reservation", _WORD, "write the name of a reservation"),
        constraint=_match(
            options,
            "constraint",
            _CONSTRAINT,
            "write features joined by & or by |: a100, a100&ib or a100|h100",
        ),
        exclude=_match(
            options, "exclude", _WORDS, "write names of machines with commas between them, without brackets"
        ),
        time_s=None if time is None else _parse_time_s(time),
        gres=_match(options, "gres", _GRES, "write a name, or a name and a type, without a number: gpu:a100"),
        cpus_per_device=None if cpus is None else _parse_cpus(cpus),
        memory_bytes_per_device=None if memory is None else _parse_memory_bytes(memory),
    )


def decode_engine_options(options: Mapping[str, str]) -> SlurmOptions:
    """Return the options of the engine."""
    _check_names(options, ENGINE_OPTIONS, "the engine")
    path = "write an absolute path"
    return SlurmOptions(
        command=_parse_command(options["command"]) if "command" in options else ELASTANE_COMMAND,
        setup=_match(options, "setup", _SETUP, "write lines of shell without control characters"),
        container=_check(options, CONTAINER),
        mounts=tuple(map(complete_mount, filter(None, _check(options, CONTAINER_MOUNTS).split(",")))),
        output=_match(options, "output", _PATH, path),
        conf=_match(options, "conf", _PATH, path),
        programs=_match(options, "bin", _PATH, path),
        answer_s=_parse_answer_s(options["answer"]) if "answer" in options else ANSWER_S,
        accounting=_parse_choice(options.get("accounting", "no")),
    )


def complete_mount(text: str) -> str:
    """Return a mount with both of its paths: a directory without a second one has the same path inside."""
    return text if ":" in text else f"{text}:{text}"


def _check(options: Mapping[str, str], option: EngineOption) -> str:
    value = options.get(option.name, "")
    if value:
        check_option(option.name, value, option)
    return value


def _check_names(options: Mapping[str, str], known: tuple[str, ...], owner: str) -> None:
    for name in options:
        if name not in known:
            raise BadField(
                name, f"is not an option of {owner} of Slurm", do=f"choose one of {', '.join(known)}"
            )


def _match(options: Mapping[str, str], name: str, pattern: re.Pattern[str], write: str) -> str:
    value = options.get(name, "")
    if value and not pattern.fullmatch(value):
        raise BadField(name, f"{value!r} is not valid", do=write)
    return value


def _parse_cpus(text: str) -> int:
    if not _COUNT.fullmatch(text) or int(text) > MOST_PER_DEVICE:
        raise BadField("cpusPerDevice", f"{text!r} is not valid", do=f"write 1 to {MOST_PER_DEVICE}")
    return int(text)


def _parse_memory_bytes(text: str) -> int:
    match = _MEMORY.fullmatch(text)
    if match is None:
        raise BadField("memoryPerDevice", f"{text!r} is not valid", do="write for example 64G, 512M or 1T")
    return int(match[1]) * _UNITS_BYTES[match[2]]


def _parse_time_s(text: str) -> float:
    """Return the seconds of a duration, or of a time limit as Slurm writes it: ``1-12:00:00``."""
    if match := _SLURM_TIME.fullmatch(text):
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        found_s = float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
    else:
        found_s = _parse_duration("time", text, f"write for example {EXAMPLES}, or 1-12:00:00")
    if found_s < 1:
        raise BadField("time", f"{text!r} is less than a second", do=f"write for example {EXAMPLES}")
    return found_s


def _parse_answer_s(text: str) -> float:
    found_s = _parse_duration("answer", text, "write for example 2s")
    if not 0 < found_s <= LONGEST_ANSWER_S:
        raise BadField("answer", f"{text!r} is not valid", do=f"write up to {LONGEST_ANSWER_S:g}s")
    return found_s


def _parse_duration(name: str, text: str, write: str) -> float:
    try:
        return parse_duration_s(text)
    except (ValueError, OverflowError):
        raise BadField(name, f"{text!r} is not a duration", do=write) from None


def _parse_command(text: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(text))
    except ValueError:
        words = ()
    if not words or not text.isprintable():
        raise BadField("command", f"{text!r} is not a command", do="write its words as in a shell")
    return words


def _parse_choice(text: str) -> bool:
    if text not in ("yes", "no"):
        raise BadField("accounting", f"{text!r} is not valid", do="write yes or no")
    return text == "yes"
