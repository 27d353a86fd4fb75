"""A real Slurm for the tests of its engine, begun once for all of them."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.cluster.engines.slurm_daemons import SlurmDaemons, SlurmNotInstalled, run_slurm
from tests.run.processes.skipping import skip_except_in_ci


@pytest.fixture(scope="session")
def slurm() -> Iterator[SlurmDaemons]:
    try:
        with run_slurm() as daemons:
            yield daemons
    except SlurmNotInstalled as error:
        skip_except_in_ci(str(error))


@pytest.fixture(scope="session")
def event_loop_runner() -> Iterator[asyncio.Runner]:
    """One event loop, because engines belong to the loop in which they are first used."""
    with asyncio.Runner() as runner:
        yield runner
