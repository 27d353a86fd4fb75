"""The program of an agent: it asks the controller what to do, begins an attempt of its job or joins one.

One ticket serves one agent. It may wait for days in the queue of its engine: what its job needs it hears when
it arrives. While the controller is away the agent asks again, and holds nothing of the run.
"""

import os
import secrets
import socket
import tempfile
import time
from contextlib import ExitStack, suppress
from importlib.metadata import version
from pathlib import Path
from typing import IO, NamedTuple
from urllib.parse import urlsplit

from elastane.cluster.engines.local.job_code import place_code
from elastane.cluster.engines.local.preflight import check_job_files, claim_job_run, refuse_run_of_another
from elastane.cluster.engines.own_run import ALL_RECORDS, JOIN_RECORDS, check_fits_own_home, open_own_run
from elastane.cluster.nouns.arrivals import (
    AgentDeparture,
    Arrival,
    AskAgain,
    Begin,
    Instruction,
    Join,
    NotWanted,
)
from elastane.cluster.nouns.job_tickets import JobTicket, encode_credentials
from elastane.cluster.nouns.jobs import JobSpec
from elastane.common.addresses import find_own_address
from elastane.common.connections.controller_connection import (
    ControllerConnection,
    ControllerUnreachable,
    trust_certificate,
)
from elastane.common.errors import BadInput, ElastaneError, NoCoordinator, NoSuchRun
from elastane.common.exit_codes import ExitCode
from elastane.common.extras import require
from elastane.common.safe_text import fold_text
from elastane.run.agent.head_start import drop_head_start
from elastane.run.attempts.attempt_file import read_attempt
from elastane.run.attempts.display import LogDisplay
from elastane.run.attempts.interrupts import Interrupts, watch_signals
from elastane.run.attempts.job_attempt import AttemptRequest, judge_end, record_outcome, run_attempt
from elastane.run.attempts.run_directory import reclaim_run_directory
from elastane.run.machines.agents.node_agent import build_farewell
from elastane.run.machines.joining.code_archive import LARGEST_ARCHIVE_BYTES
from elastane.run.machines.joining.participation import JoinedMachine
from elastane.run.machines.joining.shared_run import check_joinable, join_shared_run
from elastane.run.machines.joining.shipped_code import CODE
from elastane.run.nouns.machine_address import MachineAddress
from elastane.run.nouns.notices import withstand_notices
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.run_files import keep_places, read_record

REQUEST_S = 5.0
"""How long one question may take, with its repetitions."""
ALONE_S = 600.0
"""How long an agent asks a controller that does not answer; then its machine is given back."""
LONGEST_WAIT_S = 60.0
LOOK_S = 0.1
OUTCOME_S, OUTCOME_LOOK_S = 20.0, 0.5
"""How long the machine in charge may take to record the outcome of a run, and how often others ask for it."""
LONGEST_WHY, LONGEST_HOST = 4000, 255
PROCESS_BYTES = 16
HTTPS, HTTP = 443, 80


class AgentEnding(NamedTuple):
    """How an agent ends: its exit code, and a sentence."""

    code: int
    why: str


def run_agent(ticket: JobTicket) -> int:
    """Take part in the job of a ticket until the job does not need this agent; return the exit code."""
    display, process = LogDisplay(), secrets.token_hex(PROCESS_BYTES)
    # Engines repeat their notices. One that comes while this process ends must not kill it.
    withstand_notices()
    with (
        watch_signals() as signals,
        ControllerConnection(
            ticket.url,
            encode_credentials(ticket.key),
            verify=trust_certificate(ticket.url, ticket.certificate),
            timeout_s=REQUEST_S,
        ) as controller,
    ):
        try:
            end = _Agent(ticket, controller, display, signals, process).take_part()
        except ElastaneError as error:
            end = AgentEnding(int(error.exit_code), str(error))
        except BaseException as error:
            end = AgentEnding(ExitCode.FAILED, f"{type(error).__name__}: {error}")
            _depart(controller, ticket, process, end)
            raise
        display.say(f"{ticket.agent} ends: {end.why}")
        _depart(controller, ticket, process, end)
    return end.code


def _depart(controller: ControllerConnection, ticket: JobTicket, process: str, end: AgentEnding) -> None:
    """Tell the controller how this agent ends; its engine says so too, in fewer words."""
    said = AgentDeparture(code=end.code, why=fold_text(end.why, LONGEST_WHY), process=process)
    try:
        controller.send("POST", f"/agents/{ticket.agent}/departure", body=said)
    except ElastaneError as error:
        LogDisplay().say(f"the controller was not told: {error.what}")


class _Agent:
    def __init__(
        self,
        ticket: JobTicket,
        controller: ControllerConnection,
        display: LogDisplay,
        signals: Interrupts,
        process: str,
    ) -> None:
        self._ticket = ticket
        self._process = process
        self._controller = controller
        self._display = display
        self._signals = signals

    def take_part(self) -> AgentEnding:
        """Ask what to do, and do it, until there is nothing more."""
        answered_s = time.monotonic()
        while not self._signals.stopping:
            try:
                told = self._arrive()
                answered_s = time.monotonic()
                if (end := self._follow(told)) is not None:
                    return end
            except ControllerUnreachable:
                if time.monotonic() - answered_s > ALONE_S:
                    raise
                continue
            self._wait(told)
        return AgentEnding(ExitCode.OK, f"{self._signals.stopping} came before it took part")

    def _arrive(self) -> Instruction:
        """Ask the controller what to do.

        Raises:
            ControllerUnreachable: it does not answer now.
            RequestRefused: the ticket is not valid any more or serves another process, or the controller has
                another version.
        """
        path = f"/agents/{self._ticket.agent}/arrival"
        arrival = Arrival(
            host=socket.gethostname()[:LONGEST_HOST], version=version("elastane"), process=self._process
        )
        return self._controller.request("POST", path, Instruction, body=arrival)  # type: ignore[arg-type]

    def _wait(self, told: Instruction) -> None:
        """Wait until the controller is to be asked again, or until a notice."""
        seconds = min(told.seconds, LONGEST_WAIT_S) if isinstance(told, AskAgain) else 1.0
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self._signals.stopping:
            time.sleep(min(LOOK_S, seconds))

    def _follow(self, told: Instruction) -> AgentEnding | None:
        """Do what the controller says; return None if it must be asked again."""
        match told:
            case Begin():
                return self._begin(told)
            case Join():
                return self._join(told)
            case NotWanted(why=why):
                return AgentEnding(ExitCode.OK, why)
            case AskAgain(why=why):
                self._display.say(f"waiting: {why}")
                return None

    def _begin(self, told: Begin) -> AgentEnding:
        require("torch", "a job on this machine needs torch")
        require("nodes", "a job on several machines")
        if told.is_shared:
            return self._begin_in(RunDir(Path(told.run_dir)), told)
        check_fits_own_home(told.spec)
        with open_own_run(self._ticket, ALL_RECORDS, node="") as run_dir:
            return self._begin_in(run_dir, told)

    def _begin_in(self, run_dir: RunDir, told: Begin) -> AgentEnding:
        refuse_run_of_another(run_dir, read_attempt(run_dir), told.submitted_s, is_claimed=told.attempt == 1)
        shipped = self._fetch_code(told.spec, run_dir)
        run, working_dir = check_job_files(told.spec.name, told.spec, code=shipped)
        low, _ = told.limits
        alone = told.spec.stays_together
        if alone and low > told.workers:
            raise BadInput(
                f"job {told.spec.name} needs {low} workers, and all of them must be on one machine",
                means="an unmodified script, and workers of several processes, train with those of one agent",
                do=f"submit it with minReplicas: {told.workers}, or with a script that calls elastane.join() "
                "and one process for each worker",
            )
        if told.spec.contract == "torchrun":
            # It has a server of its own.
            drop_head_start()
        if run_dir.run.exists() and not told.is_shared:
            keep_places(run_dir, run)
        claim_job_run(run_dir, run)
        _enter(told.spec, working_dir)
        request = AttemptRequest(
            attempt=told.attempt,
            workers=told.workers if alone else max(low, told.workers),
            limits=(1, told.workers) if alone else told.limits,
            address=None if alone else self._find_address(),
            slots=told.workers,
            sites=told.sites,
        )
        with reclaim_run_directory(run_dir):
            code = run_attempt(run_dir, request, self._display)
        attempt = read_attempt(run_dir)
        outcome = None if attempt is None else attempt.outcome
        if code in (ExitCode.OK, ExitCode.STOPPED_BY_USER):
            return AgentEnding(ExitCode.OK, "it has left the run" if outcome is None else outcome.why)
        return AgentEnding(code, "it has failed" if outcome is None else outcome.why)

    def _join(self, told: Join) -> AgentEnding | None:
        require("torch", "training needs torch")
        require("nodes", "a job on several machines")
        if told.is_shared:
            return self._join_in(RunDir(Path(told.run_dir), self._ticket.agent), told)
        check_fits_own_home(told.spec)
        with open_own_run(self._ticket, JOIN_RECORDS, node=self._ticket.agent) as run_dir:
            shipped = self._fetch_code(told.spec, run_dir)
            run, _ = check_job_files(told.spec.name, told.spec, code=shipped)
            if run_dir.run.exists():
                keep_places(run_dir, run)
            return self._join_in(run_dir, told)

    def _join_in(self, own: RunDir, told: Join) -> AgentEnding | None:
        shared = RunDir(own.root)
        try:
            record = read_record(shared)
            check_joinable(shared, record)
            _enter(told.spec, Path(record.spec.directory or Path.cwd()))
            machine = JoinedMachine(
                own, self._find_address(), told.workers, self._display.say, sites=told.sites
            )
            over, concludes = join_shared_run(machine, record, is_admitted=not told.is_shared)
        except (NoSuchRun, NoCoordinator) as error:
            # Its coordinator is being replaced, or the attempt has just ended.
            self._display.say(f"asking again: {error.what}")
            return None
        if concludes:
            record_outcome(shared, told.attempt, judge_end(over))
        if over.lost and not told.is_shared and not self._signals.stopping:
            # The state of the run is lost. The next attempt may begin here.
            self._display.say(f"asking again: {over.why}")
            return None
        if not concludes and over != build_farewell(without_workers=False):
            self._wait_for_outcome()
        is_good = over.code in (ExitCode.OK, ExitCode.STOPPED_BY_USER)
        return AgentEnding(ExitCode.OK if is_good else over.code, over.why)

    def _fetch_code(self, spec: JobSpec, run_dir: RunDir) -> Path | None:
        """Return the directory of the code that the job has brought with it; None: it has brought none."""
        if not spec.code:
            return None
        return fetch_code(self._controller, self._ticket.agent, spec.code, run_dir.root / CODE)

    def _wait_for_outcome(self) -> None:
        """Wait until the controller knows that the run is over, so that it does not replace this agent."""
        give_up = time.monotonic() + OUTCOME_S
        while time.monotonic() < give_up and not self._signals.stopping:
            with suppress(ElastaneError):
                if not isinstance(self._arrive(), Join):
                    return
            time.sleep(OUTCOME_LOOK_S)

    def _find_address(self) -> MachineAddress:
        """Return the address of this machine that reaches the controller, and so other machines."""
        parts = urlsplit(self._ticket.url)
        port = parts.port or (HTTPS if parts.scheme == "https" else HTTP)
        try:
            # Names are resolved here, because the probe takes numeric addresses only.
            found = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_DGRAM)
            return MachineAddress(find_own_address(str(found[0][4][0]), port))
        except OSError as error:
            raise BadInput(
                f"this machine does not reach {parts.hostname}: {error.strerror}",
                means="its workers connect to those of the other machines",
                do="check the network of this machine",
            ) from error


def _enter(spec: JobSpec, working_dir: Path) -> None:
    """Let this process and its children have the environment and the directory of a job."""
    os.environ.update(spec.env)
    os.chdir(working_dir)


def fetch_code(controller: ControllerConnection, agent: str, digest: str, into: Path) -> Path:
    """Return the directory of the code of an agent's job, after it was fetched if it was missing.

    Args:
        controller: a connection with the key of the agent's ticket.
        agent: its id.
        digest: of the code; its directory in ``into`` has this name.
        into: a folder of this user, in which no process uses another copy of this code; it may be missing.

    Raises:
        RequestRefused: the ticket is not valid any more, or the controller has lost the code.
        ControllerUnreachable: it does not answer.
        BadInput: it has sent other code, or there is a link in the place of the folder.
        OSError: the code cannot be written.
    """

    def open_archive() -> IO[bytes]:
        into.mkdir(mode=0o700, parents=True, exist_ok=True)
        with ExitStack() as stack:
            archive = stack.enter_context(tempfile.TemporaryFile(dir=into))
            _download(controller, agent, archive)
            archive.seek(0)
            stack.pop_all()  # the caller closes it
        return archive

    return place_code(into, digest, open_archive)


def _download(controller: ControllerConnection, agent: str, archive: IO[bytes]) -> None:
    give_up_s = time.monotonic() + ALONE_S
    while True:
        try:
            controller.download(f"/agents/{agent}/code", archive, LARGEST_ARCHIVE_BYTES)
        except ControllerUnreachable:
            if time.monotonic() > give_up_s:
                raise
        else:
            return
