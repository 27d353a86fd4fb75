"""The programs of Slurm, as the options of the engine find them."""

import asyncio
import os

from elastane.cluster.engines.slurm.commands import CommandAnswer, build_client_environment, run_command
from elastane.cluster.engines.slurm.options import SlurmOptions
from elastane.cluster.engines.slurm.submission import Submission
from elastane.cluster.engines.slurm.submission_errors import explain_refusal
from elastane.cluster.nouns.agents import Away, Refusal

PROGRAMS_AT_ONCE = 8
"""The most programs that run at the same time: Slurm's controller serves other users too."""


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
        """Run a program.

        Args:
            text: its standard input.
        """
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

    async def submit(self, submission: Submission, *, is_test: bool = False) -> Refusal | None:
        """Submit a job; return why Slurm has not accepted it, or None.

        Args:
            is_test: Slurm only says whether it would accept the job.
        """
        test = ("--test-only",) if is_test else ()
        answer = await self.run("sbatch", *test, *submission.words, text=submission.script)
        if isinstance(answer, Away):
            return Refusal(answer.why)
        return explain_refusal(answer.errors) if answer.code else None
