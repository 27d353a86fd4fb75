"""The option ``--processes``: a power of two, and what it is refused with."""

import msgspec
import pytest

from elastane.cli.runs.gang_options import ALLOWED, REASONS, check_changed_processes, read_processes
from elastane.cli.runs.run_options import RunOptions
from elastane.cli.runs.run_spec import build_spec
from elastane.common.errors import BadInput
from elastane.run.nouns.process_count import MOST_PROCESSES
from elastane.run.nouns.spec import RunSpec, TorchrunContract


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


def change(wanted, **settings):
    before = RunSpec(name="demo", script="train.py", **settings)
    check_changed_processes(msgspec.structs.replace(before, processes=wanted), before.processes)


def test_a_resumed_run_may_have_other_processes():
    change(4)
    change(1, processes=4)
    change(2, spot_checks="off", transport="shared")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"listen": "127.0.0.1"}, "the run has --listen, which cannot be combined with --processes 2"),
        ({"copies": 2}, "the run has --copies"),
        ({"save_optimizer": True}, "the run has --save-optimizer"),
        ({"spot_checks": "every"}, "the run has --spot-checks"),
        ({"contract": TorchrunContract()}, "the run has an unmodified script"),
    ],
)
def test_a_run_with_settings_that_a_gang_cannot_have_keeps_its_processes(settings, words):
    with pytest.raises(BadInput, match=words):
        change(2, **settings)


def test_the_number_of_processes_of_a_resumed_run_is_a_power_of_two():
    with pytest.raises(BadInput, match="invalid --processes: 3"):
        change(3)


def test_workers_of_several_processes_share_the_cpus_of_the_machine(tmp_path):
    script = tmp_path / "train.py"
    script.touch()
    spec = build_spec(RunOptions(processes=4), script, (), name="demo", cpus=16)
    assert (spec.processes, spec.min_workers, spec.max_workers, spec.self_sizing) == (4, 1, 4, True)
