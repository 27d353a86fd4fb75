"""What a step asks of the host, counted: these figures decide how fast a GPU trains a small model."""

import gc
from collections import Counter

import pytest
import torch
from host_operations import count_elastic, count_plain

from elastane.run.worker import worker_settings
from elastane.run.worker.state import devices

MOST_CALLS, MOST_READS = 150, 1


@pytest.fixture
def one_thread(monkeypatch):
    monkeypatch.setattr(worker_settings, "_settings", worker_settings.get_settings())
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    gc.collect()


def test_a_step_on_a_device_makes_few_calls_of_torch_and_waits_once(one_thread, monkeypatch):
    """The losses are late, as on a GPU; the training thread waits for the norms only."""
    plain = count_plain()
    late = devices.LateNumber.__init__

    def begin_late(self, number):
        late(self, number)
        self.has_arrived = False

    monkeypatch.setattr(devices.LateNumber, "__init__", begin_late)
    ours = count_elastic(mirrored=True)
    extra = ours.calls.total() - plain.calls.total()
    assert extra <= MOST_CALLS, (Counter(ours.calls) - Counter(plain.calls)).most_common(10)
    assert ours.reads.total() - plain.reads.total() <= MOST_READS, ours.reads
