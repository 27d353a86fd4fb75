"""Programs are run within bounds."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from elastane.cluster.engines.commands import CommandAnswer, run_command
from elastane.cluster.engines.slurm.programs import build_client_environment
from elastane.cluster.nouns.agents import Away
from elastane.common.process_identity import read_start_time
from tests.waiting import WAIT_S, wait_until, wait_until_async

ENVIRONMENT = {"PATH": os.environ["PATH"]}
MOST_BYTES = 1000


def run(*words: str, bound_s: float = WAIT_S, text: str = ""):
    return asyncio.run(run_command(words, ENVIRONMENT, bound_s, text=text, most_bytes=MOST_BYTES))


def python(program: str, **options):
    return run(sys.executable, "-I", "-S", "-c", program, **options)


def test_the_output_the_errors_and_the_code_are_returned():
    program = "import sys; print(sys.stdin.read() * 2); sys.exit('sbatch: error: no')"
    assert python(program, text="a") == CommandAnswer(1, "aa\n", "sbatch: error: no\n")
    assert python("import os; os._exit(7)").complaint == "exit code 7"


def test_bytes_that_are_no_text_are_replaced():
    assert python(r"import os; os.write(1, b'a\xffb')").output == "a�b"


def test_a_program_that_reads_nothing_is_no_failure():
    assert python("", text="x" * 10_000_000) == CommandAnswer(0, "", "")


def test_a_missing_program_is_no_answer():
    assert run("no-such-program-of-slurm") == Away(
        "cannot start no-such-program-of-slurm: No such file or directory"
    )
    assert isinstance(run("/"), Away)


def test_a_program_that_does_not_end_is_killed_with_its_children(tmp_path: Path):
    words, note = build_family(tmp_path)
    while not note.exists():
        # On a busy machine the shell may be killed before it has written its note.
        assert run(*words, bound_s=0.5) == Away("sh did not end within 0.5 s")
    assert_ended(note)


def test_a_program_is_killed_when_its_call_is_cancelled(tmp_path: Path):
    words, note = build_family(tmp_path)

    async def cancel() -> None:
        call = asyncio.create_task(run_command(words, ENVIRONMENT, WAIT_S))
        await wait_until_async(note.exists, "the family runs")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(cancel())
    assert_ended(note)


def build_family(folder: Path) -> tuple[tuple[str, ...], Path]:
    """Return a command that goes on with a child, and the file to which it writes the pids of both."""
    note = folder / "pids"
    program = f"trap '' TERM; sleep 1000 & echo $$ $! >{note}.part; mv {note}.part {note}; wait; wait"
    return ("sh", "-c", program), note


def assert_ended(note: Path) -> None:
    for pid in map(int, note.read_text().split()):
        wait_until(lambda pid=pid: read_start_time(pid) is None, f"{pid} has ended")


def test_a_larger_output_is_no_answer_and_is_not_kept():
    assert python(f"print('x' * {MOST_BYTES - 1}, end='')").output == "x" * (MOST_BYTES - 1)
    assert python(f"print('x' * {MOST_BYTES + 1}, end='')") == Away("python wrote more than 1000 bytes")
    endless = "while True: print('x' * 100000)"
    assert isinstance(python(endless, bound_s=0.5), Away)
    noisy = python("import sys; sys.stderr.write('x' * 10_000_000)")
    assert noisy.code == 0
    assert len(noisy.errors) < 1_000_000


def test_variables_that_change_the_programs_are_not_passed_on():
    inherited = {
        "PATH": "/bin",
        "SBATCH_ACCOUNT": "x",
        "SQUEUE_FORMAT": "y",
        "SECRET": "z",
        "SLURM_CONF": "/a",
    }
    found = build_client_environment(inherited, "")
    assert found == {"PATH": "/bin", "SLURM_CONF": "/a", "TZ": "UTC0", "LC_ALL": "C"}
    assert build_client_environment(inherited, "/b")["SLURM_CONF"] == "/b"
