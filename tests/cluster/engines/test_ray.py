"""The engine for Ray and its driver, with a small Ray in place of the real one."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.cluster.engines.contract import AgentEngineContract
from tests.cluster.engines.ray_site import SmallRaySite

pytestmark = pytest.mark.processes


@pytest.fixture
def site(event_loop_runner: asyncio.Runner) -> Iterator[SmallRaySite]:
    site = SmallRaySite(event_loop_runner)
    try:
        yield site
    finally:
        site.close()


class TestRayEngine(AgentEngineContract):
    """The contract of all engines."""
