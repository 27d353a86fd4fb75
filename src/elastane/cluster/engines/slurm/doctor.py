"""Finds out whether the engine can work here: its programs, the controller of Slurm, and each pool."""

import asyncio
import os
import re
import shutil
import time
from collections.abc import Mapping

from elastane.cluster.engines.commands import CommandAnswer, judge_command, run_command
from elastane.cluster.engines.slurm import machines
from elastane.cluster.engines.slurm.containers import PYXIS
from elastane.cluster.engines.slurm.options import SlurmOptions, SlurmPool, decode_slurm_pool
from elastane.cluster.engines.slurm.programs import SlurmPrograms
from elastane.cluster.engines.slurm.submission import PREFIX, build_submission
from elastane.cluster.nouns.agents import AgentAsk, Away, EngineFinding, StartRefusal
from elastane.common.errors import BadInput

NEEDED = ("sbatch", "squeue", "scancel", "sinfo", "scontrol")
OLDEST = (20, 11)
"""The oldest version of Slurm that has the options that the engine uses; tested is 22.05."""
SHORTEST_MEMORY_S = 60
"""A controller that is started again within this time still sees how agents have ended."""
TRIAL = "trial-0"
BASH = ("bash", "-n")
_VERSION = re.compile(r"^SLURM_VERSION\s*=\s*([0-9]{1,4})\.([0-9]{1,4})\S{0,64}", re.MULTILINE)
_MIN_JOB_AGE = re.compile(r"^MinJobAge\s*=\s*([0-9]{1,9})", re.MULTILINE)


async def examine_slurm(
    options: SlurmOptions, pools: Mapping[str, Mapping[str, str]]
) -> tuple[EngineFinding, ...]:
    """Look at all that the engine and its pools need; nothing is started."""
    programs = SlurmPrograms(options)
    missing = tuple(name for name in NEEDED if shutil.which(programs.locate(name)) is None)
    script = await run_command(BASH, os.environ, options.answer_s, text=options.setup)
    found = [
        judge_programs(missing, options),
        judge_command(options.command[0], options.setup, "the machines of Slurm"),
        *judge_setup(script),
    ]
    if options.container == PYXIS:
        found.append(judge_pyxis(await programs.run("srun", "--help")))
    elif options.container:
        found.append(judge_container(options, is_here=shutil.which(options.container) is not None))
    if missing:
        return tuple(found)
    config = await programs.ask("scontrol", "show", "config")
    found += judge_config(config)
    if not isinstance(config, Away):
        found += await asyncio.gather(*(_examine_pool(programs, *pool) for pool in pools.items()))
    return tuple(found)


async def _examine_pool(programs: SlurmPrograms, name: str, options: Mapping[str, str]) -> EngineFinding:
    try:
        pool = decode_slurm_pool(options)
    except BadInput as error:
        return EngineFinding(False, f"pool {name}: {error.what}", error.do)
    listed = await programs.list_machines(pool)
    if isinstance(listed, Away):
        return judge_pool(name, pool, listed, None)
    trial = AgentAsk(id=TRIAL, job="trial", pool=options, devices=1, grace_s=0.0, ticket=PREFIX)
    submission = build_submission(trial, pool, programs.options, time.time())
    refusal = await programs.submit(submission, is_test=True)
    return judge_pool(name, pool, listed, refusal)


def judge_programs(missing: tuple[str, ...], options: SlurmOptions) -> EngineFinding:
    """Say whether the programs of Slurm are there."""
    where = options.programs or "PATH"
    if not missing:
        return EngineFinding(True, f"the programs of Slurm are in {where}")
    return EngineFinding(
        False,
        f"{', '.join(missing)} cannot be found in {where}",
        "install the client programs of Slurm, or name their folder with the option bin",
    )


def judge_setup(checked: CommandAnswer | Away) -> list[EngineFinding]:
    """Say whether bash has read the setup, without running it; nothing is found without bash."""
    if isinstance(checked, Away) or not checked.code:
        return []
    return [
        EngineFinding(
            False,
            f"bash does not understand the option setup: {checked.complaint}",
            "correct it: bash -n reads it",
        )
    ]


def judge_pyxis(answer: CommandAnswer | Away) -> EngineFinding:
    """Say whether ``srun --help`` has the options of Pyxis."""
    if isinstance(answer, CommandAnswer) and "--container-image" in answer.output:
        return EngineFinding(
            True, "srun runs containers (Pyxis); the images of jobs need the command elastane"
        )
    why = answer.why if isinstance(answer, Away) else "srun has no option --container-image"
    return EngineFinding(
        False,
        f"Pyxis cannot be found: {why}",
        "install Pyxis on all machines, or set the option container to apptainer, or remove it",
    )


def judge_container(options: SlurmOptions, *, is_here: bool) -> EngineFinding:
    """Say whether the program that runs containers is there, as far as this machine can tell."""
    program = options.container
    if is_here or options.setup.strip():
        where = "is here" if is_here else "is not on this machine; the option setup has to provide it"
        return EngineFinding(True, f"{program} {where}; the images of jobs need the command elastane")
    return EngineFinding(
        False,
        f"{program} cannot be found on this machine",
        "install it on all machines, load it with the option setup, or remove the option container",
    )


def judge_config(config: str | Away) -> list[EngineFinding]:
    """Say what the answer to ``scontrol show config`` means for the engine."""
    if isinstance(config, Away):
        return [
            EngineFinding(
                False,
                f"the controller of Slurm does not answer: {config.why}",
                "run sinfo by hand; the option conf names another slurm.conf, and answer gives it more time",
            )
        ]
    found = []
    version = _VERSION.search(config)
    if version is None:
        found.append(EngineFinding(True, "the controller of Slurm answers, without a version"))
    elif (int(version[1]), int(version[2])) < OLDEST:
        found.append(
            EngineFinding(
                False,
                f"Slurm {version[1]}.{version[2]} is too old",
                f"the engine needs {OLDEST[0]}.{OLDEST[1]}",
            )
        )
    else:
        found.append(EngineFinding(True, f"the controller of Slurm {version[1]}.{version[2]} answers"))
    age = _MIN_JOB_AGE.search(config)
    if age is not None and int(age[1]) < SHORTEST_MEMORY_S:
        found.append(
            EngineFinding(
                False,
                f"Slurm forgets a job {int(age[1])} s after its end (MinJobAge)",
                f"set MinJobAge in slurm.conf to {SHORTEST_MEMORY_S} or more, to keep exit codes",
            )
        )
    return found


def judge_pool(
    name: str, pool: SlurmPool, listed: tuple[machines.Machine, ...] | Away, refusal: StartRefusal | None
) -> EngineFinding:
    """Say whether agents of a pool can start.

    Args:
        listed: the machines of its partition.
        refusal: of a job with one device; None: Slurm would accept it.
    """
    partition = f"partition {pool.partition}" if pool.partition else "the default partition"
    if isinstance(listed, Away):
        return EngineFinding(False, f"pool {name}: its machines cannot be seen: {listed.why}", "try again")
    if not listed:
        return EngineFinding(
            False,
            f"pool {name}: {partition} does not exist, has no machine, or is hidden from this user",
            "choose a partition that sinfo shows",
        )
    if refusal is not None:
        return EngineFinding(
            False,
            f"pool {name}: Slurm refuses a job with one device: {refusal.why}",
            "change the options of the pool; sbatch --test-only tries them by hand",
        )
    nodes = machines.list_pool_nodes(name, pool, listed, ())
    devices = sum(node.devices for node in nodes)
    return EngineFinding(True, f"pool {name}: {partition} has {devices} free devices on {len(nodes)} nodes")
