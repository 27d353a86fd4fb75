"""The programs of Slurm, as the options of the engine find them, and what their refusals mean."""

import asyncio
import os
from collections.abc import Mapping

from elastane.cluster.engines.commands import CommandAnswer, run_command
from elastane.cluster.engines.slurm import machines
from elastane.cluster.engines.slurm.job_queue import SEPARATOR
from elastane.cluster.engines.slurm.machines import Machine, parse_machines, parse_reserved_nodes
from elastane.cluster.engines.slurm.options import SlurmOptions, SlurmPool
from elastane.cluster.engines.slurm.submission import Submission
from elastane.cluster.nouns.agents import Away, StartRefusal
from elastane.common.safe_text import fold_text

PASSED = ("PATH", "HOME", "USER", "LOGNAME", "LD_LIBRARY_PATH", "SLURM_CONF")
"""Variables that the programs get. Others, such as the account for sbatch, would change what they do."""
PROGRAMS_AT_ONCE = 8
"""The most programs that run at the same time: Slurm's controller serves other users too."""

ROWS = ("--noheader", "--local")
"""Shows rows only, and no other clusters of a federation."""
LONGEST_WHY = 500
LONGEST_ROW = 100
MOST_LINES = 3
_FOR_EVER = (
    ("Invalid partition name", "Slurm has no such partition"),
    ("invalid partition specified", "Slurm has no such partition"),
    ("Invalid account or account/partition", "Slurm has no such account, or it may not use the partition"),
    ("Invalid qos", "Slurm has no such QOS, or the account may not use it"),
    ("Invalid generic resource", "Slurm has no such generic resource (gres)"),
    ("Invalid feature specification", "no machine has the features of the constraint"),
    ("Requested reservation is invalid", "Slurm has no such reservation, or this user may not use it"),
    ("Invalid node name", "Slurm has no machine of that name"),
    ("Requested node configuration is not available", "no machine of the partition meets the request"),
    ("Requested time limit is invalid", "the time limit is missing, or longer than is allowed"),
    ("User's group not permitted", "this user may not use the partition"),
    ("Access/permission denied", "this user may not submit such a job"),
    ("More processors requested than permitted", "the partition does not allow this number of processors"),
    ("Memory required by task is not available", "no machine has that much memory"),
    ("Invalid Trackable RESource", "no machine meets the request"),
    ("unrecognized option", "this version of Slurm lacks an option that the engine needs"),
)
_NOT_NOW = (
    ("Job violates accounting/QOS policy", "a limit of the account or QOS is reached"),
    ("Job limit", "the limit of submitted jobs is reached"),
    ("Slurm temporarily unable to accept job", "Slurm accepts no more jobs now"),
    ("Required partition not available", "the partition is down or drained"),
    ("Requested partition configuration not available now", "the partition does not allow this now"),
    ("Unable to contact slurm controller", "the controller of Slurm does not answer"),
    ("Socket timed out", "the controller of Slurm does not answer"),
    ("Zero Bytes were transmitted", "the controller of Slurm does not answer"),
    ("authentication", "Slurm does not accept the credentials of this machine (munge)"),
)


def build_client_environment(inherited: Mapping[str, str], conf: str) -> dict[str, str]:
    """Return the environment of the programs of Slurm: their times are in UTC, and their words in English."""
    found = {name: inherited[name] for name in PASSED if name in inherited}
    return found | {"TZ": "UTC0", "LC_ALL": "C"} | ({"SLURM_CONF": conf} if conf else {})


class SlurmPrograms:
    """Runs programs of Slurm, a few at a time, each within the time that the options give it."""

    def __init__(self, options: SlurmOptions) -> None:
        self.options = options
        self._turns = asyncio.Semaphore(PROGRAMS_AT_ONCE)

    def locate(self, program: str) -> str:
        """Return the name of a program, with its folder if the options name one."""
        folder = self.options.programs
        return f"{folder}/{program}" if folder else program

    async def run(self, program: str, *words: str, text: str = "") -> CommandAnswer | Away:
        """Run a program with a text as standard input."""
        environment = build_client_environment(os.environ, self.options.conf)
        async with self._turns:
            command = (self.locate(program), *words)
            return await run_command(command, environment, self.options.answer_s, text=text)

    async def ask(self, program: str, *words: str) -> str | Away:
        """Return the output of a program that shows something. If it fails, Slurm has not answered."""
        answer = await self.run(program, *words)
        if isinstance(answer, Away):
            return answer
        return Away(f"{program}: {answer.complaint}") if answer.code else answer.output

    async def ask_rows(self, columns: int, program: str, *words: str) -> str | Away:
        """Return the output of a program that shows rows, each with this many columns.

        Another version may write another form. Then nothing is concluded: no agent is gone because its row
        cannot be read.
        """
        answer = await self.ask(program, *words)
        if isinstance(answer, Away) or has_columns(answer, columns):
            return answer
        row = fold_text(answer, LONGEST_ROW)
        return Away(f"{program} answers in a form that Elastane does not know: {row}")

    async def list_machines(self, pool: SlurmPool) -> tuple[Machine, ...] | Away:
        """Return the machines of a pool's reservation or partition; of all partitions if it names none."""
        words = [f"--partition={pool.partition}"] if pool.partition else []
        if pool.reservation:
            # It fails for a reservation that has ended too, in which no job can begin.
            reservation = await self.run("scontrol", "--oneliner", "show", "reservation", pool.reservation)
            if isinstance(reservation, Away):
                return reservation
            nodes = parse_reserved_nodes(reservation.output)
            if not nodes:
                return ()
            words.append(f"--nodes={nodes}")
        columns = len(machines.COLUMNS)
        words += [*ROWS, "--Node", f"--Format={machines.FORMAT}"]
        answer = await self.ask_rows(columns, "sinfo", *words)
        return answer if isinstance(answer, Away) else parse_machines(answer)

    async def submit(self, submission: Submission, *, is_test: bool = False) -> StartRefusal | None:
        """Submit a job, or only ask whether Slurm would accept it; return why it has not, or None."""
        test = ("--test-only",) if is_test else ()
        answer = await self.run("sbatch", *test, *submission.words, text=submission.script)
        if isinstance(answer, Away):
            return StartRefusal(answer.why)
        return explain_refusal(answer.errors) if answer.code else None


def has_columns(output: str, columns: int) -> bool:
    """Return whether any row of an output has this many columns, or there is no row."""
    rows = [row for row in output.split("\n") if row.strip()]
    return not rows or any(row.count(SEPARATOR) >= columns - 1 for row in rows)


def explain_refusal(errors: str) -> StartRefusal:
    """Return the refusal in the last lines that ``sbatch`` has written; an unknown one may not last."""
    lines = [_strip_prefixes(line.strip()) for line in errors.splitlines() if line.strip()]
    words = fold_text("; ".join(lines[-MOST_LINES:]), LONGEST_WHY)
    for line in reversed(lines):
        for texts, for_ever in ((_FOR_EVER, True), (_NOT_NOW, False)):
            for part, why in texts:
                if part.lower() in line.lower():
                    return StartRefusal(f"{why} ({words})", for_ever)
    return StartRefusal(
        f"Slurm refused the job: {words}" if words else "Slurm refused the job without a reason"
    )


def _strip_prefixes(line: str) -> str:
    for prefix in ("sbatch: error: ", "allocation failure: ", "Batch job submission failed: "):
        line = line.removeprefix(prefix)
    return line
