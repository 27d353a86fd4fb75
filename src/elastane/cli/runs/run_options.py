"""The options of ``elastane run``."""

from pathlib import Path
from typing import Annotated, Literal

from elastane.cli.completion import complete_runs
from elastane.cli.options import OUTPUT, RESUME, WORKERS, flag, option
from elastane.cli.runs.address_options import Advertise, Ports, Site
from elastane.cli.train_options import WORKERS_HELP, TrainOptions
from elastane.run.nouns.spec import SpotChecks


class RunOptions(TrainOptions, frozen=True, kw_only=True):
    """Options as typed; None: not typed."""

    workers: Annotated[
        str | None,
        option(
            "MIN:MAX",
            f"{WORKERS_HELP} Default: 1 to the number of CPUs, or 1:2 with a single CPU.",
            panel=WORKERS,
        ),
    ] = None
    start: Annotated[
        int | None,
        option(
            "N",
            "Number of workers at the start; from then on only you change it. Default: MIN, and the run "
            "grows into idle devices of this machine as long as each new worker is worth it.",
            panel=WORKERS,
        ),
    ] = None
    host_discovery_script: Annotated[
        str | None,
        option(
            "COMMAND",
            "Follow the capacity that COMMAND prints, a line HOST or HOST:SLOTS for each host, as for "
            "Horovod. It runs every second; only slots of this machine count.",
            panel=WORKERS,
        ),
    ] = None
    listen: Annotated[
        str | None,
        option(
            "[ADDRESS]",
            "Let other machines take part with elastane join: they reach this one at ADDRESS, such as "
            "10.0.0.5 or, for a network interface, eth1; without it at that of the default route. Gradients "
            "between machines are encrypted only with --encrypt.",
            panel=WORKERS,
        ),
    ] = None
    advertise: Advertise = None
    ports: Ports = None
    site: Site = None
    encrypt: Annotated[
        bool,
        flag(
            "Encrypt gradients and parameters between machines too, with TLS 1.3. Needs --listen; costs CPU "
            "time.",
            "--encrypt",
            panel=WORKERS,
        ),
    ] = False
    claims: Annotated[
        str | None,
        option(
            "URL",
            "Keep the claims of terms and of changes after deaths at URL: a directory, s3://bucket/claims or "
            "https://controller:7425. Default: in the run directory.",
            panel=WORKERS,
        ),
    ] = None
    hosts: Annotated[
        str | None,
        option(
            "HOST:SLOTS,…",
            "Start the run on these machines, over ssh; each needs the run directory, the script and "
            "Elastane at the same paths. SLOTS: the most workers there; default: its GPUs or CPUs.",
            panel=WORKERS,
        ),
    ] = None
    ssh: Annotated[
        str | None,
        option(
            "COMMAND",
            "Reach the machines of --hosts with COMMAND, such as 'ssh -p 2222'. Default: ssh without "
            "questions.",
            panel=WORKERS,
        ),
    ] = None
    transport: Annotated[
        Literal["shared", "tcp", "nixl"] | None,
        option(
            "shared|tcp|nixl",
            "Transport of gradients: shared memory within a machine, and TCP between machines (default); TCP "
            "everywhere; or shared memory within a machine, and NIXL between machines.",
            panel=WORKERS,
        ),
    ] = None
    spot_checks: Annotated[
        SpotChecks | None,
        option(
            "auto|off|every",
            "Let another worker compute a microbatch once more, and compare the bits. auto (default): in the "
            "first steps after a join, and then for at most 0.5 % of the time.",
            panel=WORKERS,
        ),
    ] = None
    resume: Annotated[
        str | None,
        option(
            "RUN",
            "Resume RUN from its newest valid checkpoint; none of its processes may be left. Give no SCRIPT, "
            "and only options about workers and checkpoints.",
            autocompletion=complete_runs,
            panel=RESUME,
        ),
    ] = None
    from_: Annotated[
        str | None,
        option(
            "RUN[@STEP]",
            "Begin a new run of SCRIPT from the state of RUN, or of checkpoints at a URL: of the newest one, "
            "or of the one after STEP. Steps and epochs count on from there. RUN@0 repeats a run over the "
            "data of several sites, without the same sites in the same rounds.",
            "--from",
            autocompletion=complete_runs,
            panel=RESUME,
        ),
    ] = None
    accept_changes: Annotated[
        bool,
        flag(
            "Resume even if the script or the software has changed; the trained bytes may then differ.",
            "--accept-changes",
            panel=RESUME,
        ),
    ] = False
    name: Annotated[
        str | None, option("NAME", "Name of the run, for other commands. Default: generated.", panel=OUTPUT)
    ] = None
    run_dir: Annotated[
        Path | None, option("DIR", "Directory of the run. Default: $ELASTANE_HOME/runs/NAME.", panel=OUTPUT)
    ] = None
    digest_every: Annotated[
        int | None,
        option("K", "Write a digest of the state to the ledger every K steps. Default: 50.", panel=OUTPUT),
    ] = None
    save_optimizer: Annotated[
        bool,
        flag("Also write the optimizer state, beside the finished model.", "--save-optimizer", panel=OUTPUT),
    ] = False
    max_shard_size: Annotated[
        str | None,
        option(
            "SIZE",
            "Split the finished model into files with at most this many bytes of weights. Default: 5GB.",
            panel=OUTPUT,
        ),
    ] = None
    debug: Annotated[
        bool,
        flag(
            "Run one worker that owns this terminal, so that breakpoint() works. The worker never counts as "
            "hung, and is not replaced when it ends.",
            "--debug",
            panel=OUTPUT,
        ),
    ] = False


PINNED = (
    "module",
    "ship_code",
    "contract",
    "nproc_per_node",
    "max_restarts",
    "stall_timeout",
    "grace",
    "virtual_ranks",
    "convergence",
    "numerics",
    "seed",
    "threads",
    "encrypt",
    "claims",
    "from_",
    "name",
    "run_dir",
    "digest_every",
    "save_optimizer",
    "max_shard_size",
)
"""Options that a run keeps from its first step to its last."""
