"""The option ``--processes``: a power of two, and what it is refused with."""

import msgspec
import pytest

from elastane.cli.runs.gang_options import ALLOWED, REASONS, read_processes
from elastane.cli.runs.run_options import RunOptions
from elastane.cli.runs.run_spec import build_spec
from elastane.common.errors import BadInput
from elastane.run.nouns.process_count import MOST_PROCESSES


def test_a_worker_has_one_process_unless_more_are_asked_for():
    assert read_processes(RunOptions()) == 1
    assert read_processes(RunOptions(processes=1, transport="tcp")) == 1
    assert read_processes(RunOptions(processes=8)) == 8


@pytest.mark.parametrize("processes", [-2, 0, 3, 6, 2 * MOST_PROCESSES])
def test_processes_that_are_no_power_of_two_are_refused(processes):
    with pytest.raises(BadInput, match=f"invalid --processes: {processes}"):
        read_processes(RunOptions(processes=processes))


OTHERS = {
    "copies": "2",
    "convergence": "fast",
    "listen": "127.0.0.1",
    "hosts": "a:1,b:1",
    "transport": "tcp",
    "spot_checks": "every",
    "save_optimizer": True,
    "debug": True,
}


def test_every_refusal_is_tried():
    assert OTHERS.keys() == REASONS.keys()
    assert REASONS.keys() <= {field.name for field in msgspec.structs.fields(RunOptions)}


@pytest.mark.parametrize("name", OTHERS)
def test_an_option_that_a_gang_cannot_have_is_refused_with_its_reason(name):
    with pytest.raises(BadInput, match="cannot be combined with --processes 2") as refused:
        read_processes(RunOptions(processes=2, **{name: OTHERS[name]}))
    assert refused.value.means == REASONS[name]


@pytest.mark.parametrize("name", ALLOWED)
def test_the_default_may_be_typed(name):
    assert read_processes(RunOptions(processes=2, **{name: ALLOWED[name]})) == 2


def test_workers_of_several_processes_share_the_cpus_of_the_machine(tmp_path):
    script = tmp_path / "train.py"
    script.touch()
    spec = build_spec(RunOptions(processes=4), script, (), name="demo", cpus=16)
    assert (spec.processes, spec.min_workers, spec.max_workers, spec.self_sizing) == (4, 1, 4, True)
