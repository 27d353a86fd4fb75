"""States, commits and the sampler of ``elastane.integrations.horovod.elastic``."""

import os
import signal
import threading

import pytest
import torch

import elastane.integrations.horovod as hvd
from elastane.common.errors import BadInput
from elastane.integrations.horovod.elastic.handover import Commit, Handover
from tests.integrations.horovod.alone import start_world, wait_for_all
from tests.waiting import WAIT_S, wait_until

TRAINING = """
import os, sys, time, json, torch
import elastane.integrations.horovod as hvd
hvd.init()
stop_at, kill_at = int(sys.argv[1]), int(sys.argv[2])
torch.manual_seed(hvd.rank())
model = torch.nn.Linear(2, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
sampler = hvd.elastic.ElasticSampler(list(range(96)), shuffle=True)
resets = []
seen = []

@hvd.elastic.run
def train(state):
    while state.batch < 12:
        if state.batch == kill_at and hvd.rank() == 1:
            os.kill(os.getpid(), 9)
        if state.batch == stop_at:
            open(os.environ["ELASTANE_RUN_DIR"] + f"/reached-{hvd.rank()}", "w").close()
            while not state._handover.stop_announced:
                time.sleep(0.01)
        batch = [next(order) for _ in range(4)]
        seen.extend(batch)
        optimizer.zero_grad()
        model(torch.ones(4, 2)).mean().backward()
        optimizer.step()
        sampler.record_indices(batch)
        state.batch += 1
        if not resets and hvd.size() == 1:
            raise SystemExit("a process after a change calls the callbacks")
        state.commit()

state = hvd.elastic.TorchState(model, optimizer, batch=0, sampler=sampler)
order = None

def begin():
    resets.append(hvd.size())

state.register_reset_callbacks([begin])
real = state.sync
def sync():
    global order
    real()
    order = iter(list(sampler))
state.sync = sync
train(state)
print(json.dumps({"batch": state.batch, "resets": resets, "seen": len(seen), "weight": model.weight.tolist(),
                  "processed": len(sampler.processed_indices)}))
"""


@pytest.mark.processes
def test_an_announced_stop_hands_the_common_commit_to_one_process(stage, tmp_path):
    two = start_world(stage, TRAINING, 2, tmp_path, "5", "-1")
    reached = [tmp_path / f"reached-{rank}" for rank in range(2)]
    wait_until(lambda: all(path.exists() for path in reached), "both have made five batches")
    for process in two:
        process.send_signal(signal.SIGTERM)
    ended = wait_for_all(two)
    assert [code for code, _, _ in ended] == [143, 143], ended
    [(code, output, errors)] = wait_for_all(start_world(stage, TRAINING, 1, tmp_path, "-1", "-1"))
    assert code == 0, errors
    # Both had made six batches of four: none of the 48 samples comes again, and 24 of the rest came.
    assert '"batch": 12, "resets": [1], "seen": 24' in output
    assert '"processed": 72' in output
    assert not list((tmp_path / "horovod").glob("commit-*")), "a function that ends needs no commit"


@pytest.mark.processes
def test_a_killed_process_loses_no_commit_and_no_sample_of_it(stage, tmp_path):
    two = start_world(stage, TRAINING, 2, tmp_path, "-1", "7")
    two[1].wait(timeout=WAIT_S)
    # The agent announces the stop to the survivor, which may be waiting for the dead process.
    two[0].send_signal(signal.SIGTERM)
    ended = wait_for_all(two)
    assert [code for code, _, _ in ended] == [143, -9], ended
    [(code, output, errors)] = wait_for_all(start_world(stage, TRAINING, 1, tmp_path, "-1", "-1"))
    assert code == 0, errors
    # Seven batches of two processes were committed: 56 samples, those of the dead one included.
    assert '"seen": 20' in output
    assert '"processed": 76' in output


def test_restore_returns_to_the_last_commit(alone):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    state = hvd.elastic.TorchState(model, optimizer, epoch=1, history=[0.5])
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    state.commit()
    kept = model.weight.detach().clone()
    optimizer.step()
    state.epoch = 2
    state.history.append(0.4)
    assert not torch.equal(kept, model.weight)
    state.restore()
    assert torch.equal(kept, model.weight)
    assert (state.epoch, state.history) == (1, [0.5])
    assert float(optimizer.state[model.weight]["step"]) == 1.0


def test_a_state_takes_plain_values_only(alone):
    with pytest.raises(BadInput, match="the state's lock is a lock"):
        hvd.elastic.ObjectState(lock=threading.Lock())
    with pytest.raises(BadInput, match="the state's options is a Options"):
        hvd.elastic.TorchState(options=Options())


class Options:
    """Stands for the arguments of a script."""


def test_a_sampler_continues_an_epoch_without_what_was_recorded(alone):
    sampler = hvd.elastic.ElasticSampler(list(range(10)), shuffle=True, seed=3)
    first = list(sampler)
    assert sorted(first) == list(range(10))
    sampler.record_batch(0, 4)
    later = hvd.elastic.ElasticSampler(list(range(10)), shuffle=True, seed=3)
    later.load_state_dict(sampler.state_dict())
    assert sorted([*first[:4], *later]) == list(range(10))
    later.set_epoch(1)
    assert len(later) == 10
    assert list(later) != first


@pytest.mark.parametrize("size", [2, 3, 7, 16])
def test_processes_share_an_epoch_evenly(alone, monkeypatch, size):
    shares = []
    for rank in range(size):
        monkeypatch.setattr("elastane.integrations.horovod.elastic.sampler.rank", lambda rank=rank: rank)
        monkeypatch.setattr("elastane.integrations.horovod.elastic.sampler.size", lambda: size)
        shares.append(list(hvd.elastic.ElasticSampler(list(range(10)))))
    assert len({len(share) for share in shares}) == 1
    everything = [index for share in shares for index in share]
    assert set(everything) == set(range(10))
    assert len(everything) - 10 < size


def test_the_newest_readable_commit_counts(tmp_path, capsys):
    writer = Handover(tmp_path)
    writer.set_latest(Commit(3, {"values": {"epoch": 3}}))
    writer.write_latest()
    (tmp_path / "commit-4.pt").write_bytes(b"torn")
    assert Handover(tmp_path).read_newest() == Commit(3, {"values": {"epoch": 3}})
    assert "commit-4.pt cannot be read and is left out" in capsys.readouterr().err


def test_an_older_commit_never_replaces_a_newer_one(tmp_path):
    for number in (5, 4):
        handover = Handover(tmp_path)
        handover.set_latest(Commit(number, {"values": {"n": number}}))
        handover.write_latest()
    assert Handover(tmp_path).read_newest() == Commit(5, {"values": {"n": 5}})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["commit-5.pt", "lock"]


def test_nothing_in_a_commit_is_executed(tmp_path, capsys):
    class Hostile:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "executed"),)

    torch.save(Hostile(), tmp_path / "commit-1.pt")
    assert Handover(tmp_path).read_newest() is None
    assert not (tmp_path / "executed").exists()
    assert "cannot be read" in capsys.readouterr().err


def test_a_stop_writes_the_last_commit_while_the_script_is_busy(tmp_path):
    handover = Handover(tmp_path)
    handover.set_latest(Commit(1, {"values": {}}))
    with handover.listen():
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until((tmp_path / "commit-1.pt").exists, "the commit is written")
        assert handover.stop_announced


def test_no_commit_is_made_before_the_decorated_function_begins(alone):
    calls = []

    @hvd.elastic.run
    def train(state, factor, *, more):
        calls.append((state.epoch, factor, more))
        return "done"

    assert train(hvd.elastic.ObjectState(epoch=0), 2, more=3) == "done"
    assert calls == [(0, 2, 3)]
