import pytest

import elastane.integrations.horovod as hvd


@pytest.fixture
def alone(monkeypatch):
    """Initialize Horovod in this process, which is the only one."""
    for name in ("RANK", "WORLD_SIZE", "ELASTANE_RUN_DIR"):
        monkeypatch.delenv(name, raising=False)
    hvd.init()
    yield
    hvd.shutdown()
