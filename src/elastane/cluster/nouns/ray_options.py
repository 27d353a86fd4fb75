"""The options of engines of kind ``ray`` and of their pools."""

from elastane.cluster.nouns.option_forms import (
    ANSWER,
    CPUS,
    ELASTANE,
    HOME,
    PATH,
    SETUP,
    SIZE,
    WORKERS,
    EngineOption,
    KindOptions,
    make_form,
)

WORD = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,126}[A-Za-z0-9])?"
LABEL = rf"(?:{WORD}/)?{WORD}={WORD}"

_ADDRESS = make_form("HOST:PORT, or auto", r"auto|(?:[A-Za-z0-9_.-]{1,253}|\[[0-9A-Fa-f:]{2,45}\]):\d{1,5}")
_RESOURCE = make_form("a name of a resource", r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_ACCELERATOR = make_form("a type of accelerator", WORD)
_LABELS = make_form("LABEL=VALUE, or several with commas between them", rf"{LABEL}(?:,{LABEL}){{0,15}}")

RAY = KindOptions(
    engine=(
        EngineOption(
            name="address",
            metavar="HOST:PORT",
            help="Address of the Ray cluster, of which this machine is a node. Default: auto, the one that "
            "Ray finds here.",
            example="127.0.0.1:6379",
            form=_ADDRESS,
        ),
        EngineOption(
            name="python",
            metavar="FILE",
            help="Python of the Ray cluster, with ray installed. Default: the controller's Python.",
            example="/opt/ray/bin/python",
            form=PATH,
        ),
        ELASTANE,
        SETUP,
        HOME,
        EngineOption(
            name="answer",
            metavar="DURATION",
            help="How long Ray may take to answer, at most 60s. Default: 5s.",
            example="8s",
            form=ANSWER,
        ),
    ),
    pool=(
        EngineOption(
            name="resource",
            metavar="RESOURCE",
            help="Resource of Ray that is a device: GPU, CPU or one of your own. Default: GPU.",
            example="CPU",
            form=_RESOURCE,
        ),
        EngineOption(
            name="cpusPerDevice",
            metavar="N",
            help="CPUs of Ray for each device. Default: 1.",
            example="8",
            form=CPUS,
        ),
        EngineOption(
            name="memoryPerDevice",
            metavar="SIZE",
            help="Memory of Ray for each device, such as 64G or 500M. Default: Ray does not count it.",
            example="64G",
            form=SIZE,
        ),
        EngineOption(
            name="accelerator",
            metavar="TYPE",
            help="Type of accelerator that each node has, as Ray names it, such as A100.",
            example="A100",
            form=_ACCELERATOR,
        ),
        EngineOption(
            name="labels",
            metavar="LABEL=VALUE,...",
            help="Labels of Ray that each node has.",
            example="market=spot,zone=b",
            form=_LABELS,
        ),
        WORKERS,
    ),
)
