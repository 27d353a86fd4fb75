"""Conversion of the options of ``elastane run`` to a `RunSpec`, or to an error that names the option."""

import shlex
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from elastane.cli.contract_options import build_contract
from elastane.cli.option_values import check_at_least, read_copies, read_size_bytes, read_worker_range
from elastane.cli.options import spell_option
from elastane.cli.runs.address_options import check_ports
from elastane.cli.runs.gang_options import check_changed_processes, read_processes
from elastane.cli.runs.run_hosts import SSH, choose_machine_address, read_hosts, read_ssh
from elastane.cli.runs.run_options import PINNED, RunOptions
from elastane.cli.scripts import find_script
from elastane.cli.train_options import change_checkpoints, read_trackers
from elastane.cluster.client.context import find_team_of
from elastane.cluster.nouns.job_checks import LARGEST_SEED
from elastane.common.connections.controller_context import check_url, find_context_of
from elastane.common.errors import BadInput
from elastane.common.extras import require
from elastane.common.field_checks import NAME, check_name
from elastane.run.attempts.beginnings import DECIDING
from elastane.run.machines.claims.urls import CONTROLLER_SCHEMES, open_claim_list
from elastane.run.nouns.checkpoint_policy import CheckpointSettings, describe_policy, parse_checkpoint_policy
from elastane.run.nouns.hosts import RunHost, find_own_host
from elastane.run.nouns.machine_address import MachineAddress
from elastane.run.nouns.sites import parse_sites
from elastane.run.nouns.spec import NO_LIMIT, CheckpointPolicy, Pinned, RunSpec

CHECKPOINT_OPTIONS = {
    "url": "--checkpoint-dir",
    "every": "--checkpoint-every",
    "keep_last": "--keep-last",
    "keep_every": "--keep-every",
    "keep_best": "--keep-best",
}


def build_spec(options: RunOptions, script: Path, args: tuple[str, ...], *, name: str, cpus: int) -> RunSpec:
    """Return the spec of a new run: the typed options, and defaults for the others.

    ``script`` is the name of a module with ``-m``. Without ``--workers``, the CPUs of this machine, ``>= 1``,
    bound the number of workers.
    """
    check_run_name(name)
    file = find_script(script, module=options.module)
    _check_numbers(options)
    contract = build_contract(options)
    processes = read_processes(options)
    copies = read_copies(options.copies or "all")
    if options.save_optimizer and copies is not None:
        raise BadInput(
            f"--save-optimizer needs --copies all, not {copies}",
            means="with fewer copies no worker has the whole optimizer state when the run ends",
            do="use --copies all, or take the state from a checkpoint",
        )
    hosts = read_hosts(options)
    own_cpus = max(1, cpus // processes)
    low, high = _choose_limits(options, options.virtual_ranks, own_cpus, hosts)
    address = choose_machine_address(options, hosts)
    here = find_own_host(hosts)
    own = cpus if not hosts else low if here is None else here.slots or cpus
    first = min(max(low, own), high) if address else low
    start = _check_start(first if options.start is None else options.start, low, high)
    _check_discovery(options)
    if options.encrypt and address is None:
        raise BadInput(
            "--encrypt needs --listen or --hosts",
            means="it encrypts connections between machines, and the run stays on this one",
            do="add --listen, or omit --encrypt",
        )
    given = {
        "seed": options.seed,
        "threads": options.threads,
        "convergence": options.convergence,
        "numerics": options.numerics,
        "digest_every": options.digest_every,
        "spot_checks": options.spot_checks,
        "transport": options.transport,
        "hosts": hosts,
        "ssh": read_ssh(options),
        "sites": None if options.site is None else parse_sites(options.site),
    }
    if address is not None:
        check_ports(address, _count_own_slots(hosts, here, high, cpus))
        given |= describe_address(address) | {"directory": str(Path.cwd())}
    if options.max_shard_size is not None:
        given["max_shard_bytes"] = read_size_bytes("--max-shard-size", options.max_shard_size)
    spec = RunSpec(
        name=name,
        script=str(file),
        module=str(script) if options.module else "",
        args=args,
        min_workers=low,
        max_workers=high,
        start=start,
        self_sizing=options.start is None and low < high and not (options.host_discovery_script or address),
        host_discovery=options.host_discovery_script or "",
        claims=_read_claims(options, address),
        encrypt=options.encrypt,
        virtual_ranks=options.virtual_ranks,
        copies=copies,
        checkpoints=None if contract else build_checkpoint_policy(CheckpointSettings(), options),
        contract=contract,
        save_optimizer=options.save_optimizer,
        log=read_trackers(options) or (),
        debug=options.debug,
        processes=processes,
        **{field: value for field, value in given.items() if value is not None},  # type: ignore[arg-type]
    )
    _check_transport(spec)
    return spec


def _check_transport(spec: RunSpec) -> None:
    if spec.transport != "nixl":
        return
    if spec.encrypt:
        raise BadInput(
            "--transport nixl cannot be combined with --encrypt",
            means="NIXL reads the memory of other machines without encryption",
            do="omit --encrypt if you trust the network, or else --transport nixl",
        )
    if not spec.listen:
        raise BadInput(
            "--transport nixl needs --listen or --hosts",
            means="it is the transport between machines, and the run stays on this one",
            do="add --listen, or omit --transport nixl",
        )
    require("nixl", "--transport nixl")


def restrict_sizes(spec: RunSpec, sizes: tuple[int, ...]) -> RunSpec:
    """Return the spec of a run that has only some numbers of workers.

    The sizes are ascending, and the limits of the spec are the first and the last; empty: no restriction.
    """
    replaced = "write --workers MIN:MAX, which replaces the sizes"
    if sizes and (spec.listen or spec.hosts or spec.host_discovery):
        raise BadInput(
            "workers.sizes cannot be combined with several machines or --host-discovery-script",
            means="the machines and their slots decide on the number of workers",
            do=replaced,
        )
    if sizes and spec.start not in sizes:
        raise BadInput(
            f"--start {spec.start} is not one of workers.sizes: {', '.join(map(str, sizes))}",
            do=f"choose one of them; or {replaced}",
        )
    return msgspec.structs.replace(spec, sizes=sizes)


def _read_claims(options: RunOptions, address: MachineAddress | None) -> str:
    """Return the place of ``--claims``; see `complete_claims_url`."""
    if options.claims is None:
        return ""
    if address is None:
        raise BadInput(
            "--claims needs --listen or --hosts",
            means="on one machine the lock of the run directory has the same purpose",
            do="add --listen, or omit --claims",
        )
    return complete_claims_url(options.claims)


def change_spec(spec: RunSpec, options: RunOptions, cpus: int) -> RunSpec:
    """Return the spec of the next attempt of a run: the typed options change, all others stay.

    No setting changes that decides about the trained bytes. The commands of ``--host-discovery-script`` and
    ``--ssh`` are only those that were typed now, because another machine may have written the spec.
    """
    _check_discovery(options)
    low, high, sizes = spec.min_workers, spec.max_workers, spec.sizes
    hosts = read_hosts(options) or spec.hosts
    if options.workers is not None or options.debug:
        sizes = ()
        low, high = _choose_limits(options, spec.virtual_ranks, cpus, hosts)
    start = min(max(low, spec.start), high) if options.start is None else options.start
    discovery = options.host_discovery_script or ""
    address = choose_machine_address(options, read_hosts(options))
    if address is not None:
        check_ports(address, _count_own_slots(hosts, find_own_host(hosts), high, cpus))
        spec = msgspec.structs.replace(spec, **describe_address(address))
    changed = msgspec.structs.replace(
        spec,
        min_workers=low,
        max_workers=high,
        start=_check_start(start, low, high),
        self_sizing=spec.self_sizing and options.start is None and low < high and not discovery,
        host_discovery=discovery,
        copies=spec.copies if options.copies is None else read_copies(options.copies),
        transport=options.transport or spec.transport,
        spot_checks=options.spot_checks or spec.spot_checks,
        sites=spec.sites if options.site is None else parse_sites(options.site),
        hosts=hosts,
        processes=spec.processes if options.processes is None else options.processes,
        ssh=read_ssh(options) or (SSH if hosts else ()),
        checkpoints=_change_policy(spec.checkpoints, options),
        log=spec.log if (log := read_trackers(options)) is None else log,
        debug=options.debug,
    )
    _check_transport(changed)
    check_changed_processes(changed, spec.processes)
    return restrict_sizes(changed, sizes)


def list_dropped_commands(before: RunSpec, after: RunSpec) -> list[str]:
    """Return a note for each command of a run that its next attempt does not run, see `change_spec`."""
    commands = (
        ("--host-discovery-script", before.host_discovery, after.host_discovery),
        ("--ssh", shlex.join(before.ssh), shlex.join(after.ssh)),
    )
    return [
        f"the run had {option} {shlex.quote(was)}; a command in run.json is not run: to use it, type it again"
        for option, was, now in commands
        if was and was != now and now in ("", shlex.join(SSH))
    ]


def _check_discovery(options: RunOptions) -> None:
    if options.start is not None and options.host_discovery_script:
        raise BadInput(
            "--start cannot be combined with --host-discovery-script",
            means="the hosts that the script prints decide on the number of workers",
            do="omit one of the two",
        )


def describe_address(address: MachineAddress) -> dict[str, Any]:
    """Return the fields of a `RunSpec` that say where the first machine listens."""
    return {"listen": address.host, "advertised": address.advertised, "ports": address.ports}


def _count_own_slots(hosts: tuple[RunHost, ...], here: RunHost | None, high: int, cpus: int) -> int:
    """Return the most workers on this machine, the host ``here``; without hosts it may have all."""
    most = cpus if high == NO_LIMIT else high
    return most if not hosts else 0 if here is None else here.slots or most


def check_pinned_options(options: RunOptions) -> None:
    """Refuse options beside ``--resume`` that a run keeps from its first step to its last."""
    typed = [name for name in PINNED if getattr(options, name) not in (None, False)]
    if typed:
        names = ", ".join(map(spell_option, typed))
        raise BadInput(
            f"--resume cannot be combined with {names}",
            means="a run keeps these settings from its first step to its last",
            do="omit them, or start another run",
        )


def build_checkpoint_policy(before: CheckpointSettings, options: RunOptions) -> CheckpointPolicy | None:
    """Return when a run writes checkpoints; None: never."""
    return parse_checkpoint_policy(change_checkpoints(before, options), CHECKPOINT_OPTIONS)


def inherit_settings(options: RunOptions, run: RunSpec | Pinned, virtual_ranks: int | None) -> RunOptions:
    """Return options that take settings which decide the bits from another run; typed ones win."""
    settings = {name: getattr(run, name) for name in DECIDING}
    settings["virtual_ranks"] = virtual_ranks
    given = {name: value for name, value in settings.items() if getattr(options, name) is None}
    return msgspec.structs.replace(options, **given)


def check_run_name(name: str) -> None:
    """Raise `BadInput` if a text cannot name a run."""
    if not NAME.fullmatch(name):
        raise BadInput(
            f"invalid --name: {name!r} cannot name a run",
            means="the run directory gets this name",
            do="use at most 100 letters, digits, dots, dashes and underscores; begin with a letter or digit",
        )


def list_remarks(spec: RunSpec) -> list[str]:
    """Return warnings about a valid spec that the user may not have intended."""
    words = []
    if spec.copies is not None and spec.copies > spec.min_workers:
        words.append(
            f"copies {spec.copies}: with fewer than {spec.copies} workers there is one copy per worker"
        )
    if spec.copies == 1:
        words.append(
            "copies 1: the death of any worker ends the run, because its optimizer state has no copy"
        )
    return words


def _change_policy(before: CheckpointPolicy | None, options: RunOptions) -> CheckpointPolicy | None:
    settings = describe_policy(before)
    return (
        before
        if change_checkpoints(settings, options) is settings
        else build_checkpoint_policy(settings, options)
    )


def _check_numbers(options: RunOptions) -> None:
    least = {"threads": 1, "digest_every": 1, "seed": 0, "virtual_ranks": 1}
    for name, smallest in least.items():
        value = getattr(options, name)
        if value is not None:
            check_at_least("--" + name.replace("_", "-"), value, smallest)
    if options.seed is not None and options.seed > LARGEST_SEED:
        raise BadInput(f"--seed {options.seed} is larger than 2**63 - 1", do="choose a smaller seed")


def _choose_limits(
    options: RunOptions, virtual_ranks: int | None, cpus: int, hosts: tuple[RunHost, ...]
) -> tuple[int, int]:
    """Return the fewest and most workers.

    Without ``--workers`` they are 1 and the slots of all hosts, or as many as other machines bring; on one
    machine the number of its CPUs, at least 2.
    """
    if options.debug:
        return read_worker_range("1", virtual_ranks)
    if options.workers is not None:
        return read_worker_range(options.workers, virtual_ranks)
    slots = [host.slots for host in hosts]
    if options.listen or None in slots:
        return 1, NO_LIMIT
    most = sum(filter(None, slots)) or max(cpus, 2)
    return 1, most if virtual_ranks is None else min(most, virtual_ranks)


def _check_start(start: int, low: int, high: int) -> int:
    if not low <= start <= high:
        raise BadInput(
            f"--start {start} is outside --workers {low}:{high}",
            do=f"choose {low} to {high}, or a wider --workers",
        )
    return start


def complete_claims_url(url: str) -> str:
    """Return the place of ``--claims`` for all machines: with an absolute path, and with a team.

    A controller's address without a team gets the team of this user. All machines then use the list of that
    team, also those with tokens of other teams: two lists would be two runs.
    """
    if urlsplit(url).scheme not in CONTROLLER_SCHEMES:
        open_claim_list(url)
        return url if "://" in url else str(Path(url).absolute())
    if "@" in urlsplit(url).netloc:
        raise BadInput(
            "the address of --claims has a user name or a password",
            means="all machines of the run would read it in run.json",
            do="write https://HOST:PORT; elastane login saves the token of this machine",
        )
    address, _, team = url.rstrip("/").rpartition("/")
    if urlsplit(url).path.strip("/"):
        check_url(address)
        check_name("--claims", team)
        find_context_of(address)
        return f"{address}/{team}"
    check_url(url)
    return f"{url.rstrip('/')}/{find_team_of(find_context_of(url))}"
