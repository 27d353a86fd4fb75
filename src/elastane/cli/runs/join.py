"""``elastane join``: let this machine take part in a run that began on another one."""

import re
import socket
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from elastane.cli.command import AsJson, RunName, open_console, print_json
from elastane.cli.devices import count_devices
from elastane.cli.options import WORKERS, option
from elastane.cli.runs.address_options import Advertise, Ports, Site, build_machine_address, check_ports
from elastane.cli.scripts import check_script
from elastane.cli.terminal import outlive_output
from elastane.cluster.nouns.job_tickets import decode_job_ticket, is_job_ticket
from elastane.common.addresses import find_own_address
from elastane.common.errors import BadInput
from elastane.common.extras import require
from elastane.run.connections.endpoint import read_endpoint
from elastane.run.machines.agents.remote_joins import TICKET_FROM_STDIN
from elastane.run.machines.tickets.site_proofs import describe_foreign_ticket
from elastane.run.machines.tickets.tickets import decode_ticket, is_ticket, present_ticket
from elastane.run.machines.visits.mirror import is_mirror
from elastane.run.machines.visits.run_finder import find_run
from elastane.run.machines.visits.visits import find_shared_run
from elastane.run.nouns.hosts import MOST_SLOTS, derive_node_name
from elastane.run.nouns.membership import FIRST_NODE_WORD, NODE_NAME, SiteName
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.sites import parse_sites
from elastane.run.observability.run_files import read_record

MACHINES_S = 10.0
"""How long a run may take to name a machine of it that answers."""


def join_run(
    run: RunName,
    slots: Annotated[
        int | None,
        option("N", "The most workers on this machine. Default: its GPUs or, without any, its CPUs.", min=1),
    ] = None,
    name: Annotated[
        str | None, option("NODE", "Name of this machine in the run. Default: its host name.")
    ] = None,
    listen: Annotated[
        str | None,
        option(
            "ADDRESS",
            "Address or network interface, such as eth1, at which the other machines reach this one. "
            "Default: the address that reaches the run.",
            panel=WORKERS,
        ),
    ] = None,
    advertise: Advertise = None,
    ports: Ports = None,
    site: Site = None,
    as_json: AsJson = False,
) -> None:
    """Let this machine take part in RUN, which began on another machine.

    Start the run with elastane run --listen ADDRESS; it prints a ticket for RUN.
    All machines need its directory and its script at the same path, on a file
    system that they share. With - for RUN the command reads the ticket from its
    standard input, where other users of the machine cannot see it. The ticket of a
    site names the site, so --site is not needed with it.

    The run grows by up to N workers. The first Ctrl-C lets them leave at the next
    commit, without losing any of their work; the second ends them at once. The
    command ends with the run.

      $ elastane run --listen 10.0.0.5 --workers 1:16 --run-dir /shared/demo train.py
      $ elastane join elastane1-... --slots 4
      $ srun -N4 elastane join /shared/demo
    """
    outlive_output()
    console = open_console(as_json=as_json)
    if run == TICKET_FROM_STDIN:
        run = _read_ticket()
        if is_job_ticket(run):
            from elastane.cluster.engines.agent_program import run_agent

            raise typer.Exit(run_agent(decode_job_ticket(run)))
    if is_job_ticket(run):
        raise BadInput(
            "a job ticket stands among the words of the command",
            means="other users of this machine can read it there, and take part in the job",
            do="pass it on standard input: elastane join - < FILE",
        )
    # Not sooner: an agent without torch tells its controller, and the job says so.
    require("torch", "training needs torch")
    # With a ticket the machine has proven already that it shares the directories of the run.
    is_admitted = is_ticket(run)
    directory, allowed = find_shared_run(run) if is_admitted else (_find_directory(run), ())
    record = read_record(directory)
    from elastane.cli.runs.conclusion import print_summary
    from elastane.run.machines.joining.participation import JoinedMachine
    from elastane.run.machines.joining.shared_run import check_joinable, join_shared_run

    node, sites = _choose_name(name), _choose_sites(site, allowed)
    check_joinable(directory, record)
    check_script(Path(record.spec.script))
    most = _choose_slots(slots)
    address = build_machine_address(listen, advertise, ports, partial(_find_address, directory))
    check_ports(address, most)
    say = partial(console.print, markup=False)
    # Other tickets prove no site. The key stays in the memory of this process.
    proof = present_ticket(decode_ticket(run)) if allowed else ""
    machine = JoinedMachine(RunDir(directory.root, node), address, most, say, sites, proof)
    over, concludes = join_shared_run(machine, record, is_admitted=is_admitted)
    if concludes:
        report = directory.report if directory.report.exists() else None
        print_summary(machine.run_dir, over, console, report)
    else:
        console.print(over.why, markup=False)
    if as_json:
        print_json({"node": node, "code": over.code, "why": over.why})
    if over.code:
        raise typer.Exit(over.code)


def _read_ticket() -> str:
    """Return the ticket on standard input."""
    if word := sys.stdin.readline().strip():
        return word
    raise BadInput(
        "there is no ticket on standard input",
        means="with - the command reads the ticket from there, in one line",
        do="elastane join - < FILE, with the word that elastane run --listen printed",
    )


def _find_directory(run: str) -> RunDir:
    run_dir = find_run(run)
    if is_mirror(run_dir):
        raise BadInput(
            f"the directory of the run {run} is not on this machine, only a mirror of it",
            means="all machines of a run write their checkpoints and logs there",
            do="mount the file system of the run at the same path, and join with the directory or a ticket",
        )
    return run_dir


def _choose_name(name: str | None) -> str:
    """Return the name of this machine in the run."""
    chosen = derive_node_name(socket.gethostname()) if name is None else name
    if not re.fullmatch(NODE_NAME, chosen):
        raise BadInput(
            f"{chosen!r} cannot name a node",
            means="logs and commands name the machine by it; a number names a worker, and "
            f"{FIRST_NODE_WORD} the machine on which the run began",
            do="--name NODE, with at most 63 small letters, digits, dots and dashes, such as gpu-7",
        )
    return chosen


def _choose_sites(site: str | None, allowed: tuple[SiteName, ...]) -> tuple[SiteName, ...]:
    """Return the sites of this machine.

    Args:
        allowed: those of the ticket; empty: it is not one of a site.
    """
    if site is None:
        return allowed
    named = parse_sites(site)
    foreign = [name for name in named if name not in allowed] if allowed else []
    if foreign:
        raise BadInput(
            describe_foreign_ticket(allowed, foreign),
            means="a machine with the ticket of a site takes part at this site only",
            do="leave --site out, or get a ticket of the other site from the owner of the run",
        )
    return named


def _choose_slots(slots: int | None) -> int:
    """Return the most workers on this machine."""
    if slots is not None and slots > MOST_SLOTS:
        raise BadInput(
            f"--slots {slots} is more than {MOST_SLOTS}",
            means="this is the most workers that the agent of a machine watches",
            do=f"--slots N, with at most {MOST_SLOTS}",
        )
    return count_devices()[0] if slots is None else slots


def _find_address(run_dir: RunDir) -> str:
    """Return the address of this machine that reaches the coordinator of the run."""
    endpoint = read_endpoint(run_dir)
    try:
        return find_own_address(endpoint.host, endpoint.port)
    except OSError as error:
        raise BadInput(
            f"this machine does not reach the run at {endpoint.host}: {error.strerror}",
            means="its workers connect to those of the other machines",
            do="check the network, or name the address to use: --listen ADDRESS",
        ) from error
