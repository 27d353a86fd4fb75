"""Names of ``horovod.torch`` that are there, and those that are refused with another way."""

import pytest
import torch

import elastane.integrations.horovod as hvd
from elastane.common.errors import BadInput
from elastane.integrations.horovod.refused_names import REFUSED


@pytest.fixture
def alone(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "ELASTANE_RUN_DIR"):
        monkeypatch.delenv(name, raising=False)
    hvd.init()
    yield
    hvd.shutdown()


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_refused_name_has_a_reason_and_another_way(name):
    with pytest.raises(AttributeError, match=f"has no {name}\n  means: .+\n  do: ") as refusal:
        getattr(hvd, name)
    assert REFUSED[name][1] in str(refusal.value)


def test_one_process_gets_the_whole_of_a_reducescatter(alone):
    rows = torch.arange(6.0).reshape(3, 2)
    assert torch.equal(hvd.reducescatter(rows, op=hvd.Sum), rows)
    with pytest.raises(BadInput, match="without dimensions"):
        hvd.reducescatter(torch.ones(()))


def test_a_state_whose_commits_stay_in_its_process_is_refused(alone):
    class Mine(hvd.elastic.State):
        def save(self):
            pass

        def restore(self):
            pass

        def sync(self):
            pass

    with pytest.raises(BadInput, match="hands nothing over"):
        hvd.elastic.run(lambda state: None)(Mine())
    with pytest.raises(TypeError, match="abstract"):
        hvd.elastic.State()
