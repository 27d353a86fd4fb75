"""What a forward pass changes in modules is put back before each microbatch; changes of the script stay."""

import pytest
import torch
from torch import nn

from elastane.run.worker.state.forward_caches import ForwardCaches


class Cached(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(3), persistent=False)
        self.longest, self.table, self.result = 0, {"a": [1]}, None


@pytest.fixture
def module():
    return Cached()


@pytest.fixture
def caches(module):
    return ForwardCaches(nn.Sequential(module))


def replace(module):
    module.scale = torch.zeros(3)


def replace_by_registration(module):
    module.register_buffer("scale", torch.zeros(5), persistent=False)


def change_in_place(module):
    module.scale.zero_()


def change_number(module):
    module.longest = 7


def change_table(module):
    module.table["a"].append(2)


def add_attribute(module):
    module.added = 5


def add_buffer(module):
    module.register_buffer("other", torch.zeros(2), persistent=False)


FORMS = [
    replace, replace_by_registration, change_in_place, change_number, change_table, add_attribute, add_buffer
]  # fmt: skip


def describe(module):
    attributes = {
        name: vars(module)[name] for name in ("longest", "table", "result", "added") if hasattr(module, name)
    }
    return str(attributes), {name: value.tolist() for name, value in module.named_buffers()}


@pytest.mark.parametrize("change", FORMS)
def test_a_change_of_a_forward_pass_is_put_back(module, caches, change):
    before, scale = describe(module), module.scale
    for _ in range(2):
        change(module)
        assert describe(module) != before
        caches.put_back()
        assert describe(module) == before
        assert module.scale is scale


@pytest.mark.parametrize("change", FORMS)
def test_a_change_of_the_script_between_two_steps_stays(module, caches, change):
    caches.end_step()
    change(module)
    expected = describe(module)
    caches.begin_step(())
    assert describe(module) == expected
    module.longest, module.scale = 99, torch.full((3,), 9.0)
    caches.put_back()
    assert describe(module) == expected


@pytest.mark.parametrize("change", FORMS)
def test_what_the_last_microbatch_left_is_not_a_change_of_the_script(module, caches, change):
    before = describe(module)
    change(module)
    caches.end_step()
    caches.begin_step(())
    assert describe(module) == before


def test_the_script_sees_a_result_that_a_forward_pass_left(module, caches):
    module.result, module.longest = torch.ones(()), 5
    caches.end_step()
    assert (float(module.result), module.longest) == (1.0, 0)
    caches.begin_step(())
    assert module.result is None


def test_an_attribute_that_came_with_a_hook_stays(module, caches):
    module.register_forward_hook(print)
    module.hooked = True
    caches.put_back()
    assert module.hooked


@pytest.mark.parametrize("value", [7, 2.5, None, "text", [3], torch.ones(2)], ids=str)
def test_an_attribute_that_a_later_forward_pass_replaces_is_put_back(value):
    for before in (0, torch.zeros(2)):
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        model[1].seen = before
        caches = ForwardCaches(model)
        for _ in range(2):
            caches.begin_step(())
            caches.put_back()
            model[1].seen = value
            caches.put_back()
            assert model[1].seen is before
            model[1].seen = value
            caches.end_step()
            assert model[1].seen is before


def test_an_attribute_of_any_module_that_the_script_replaces_stays():
    model = nn.Sequential(nn.Linear(2, 2))
    caches = ForwardCaches(model)
    caches.end_step()
    model[0].seen = torch.ones(2)
    caches.begin_step(())
    caches.put_back()
    model[0].seen = 4
    caches.end_step()
    assert torch.equal(model[0].seen, torch.ones(2))


def test_a_mode_that_a_forward_pass_switches_is_no_cache():
    model = nn.Sequential(nn.Linear(2, 2))
    caches = ForwardCaches(model)
    model.eval()
    caches.put_back()
    assert not model[0].training


def test_a_module_without_caches_is_looked_at_closely_only_if_named():
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].seen = [1]
    caches = ForwardCaches(model)
    model[0].seen.append(2)
    caches.put_back()
    assert model[0].seen == [1, 2]
    caches.watch([("0", "seen")])
    model[0].seen.append(3)
    caches.put_back()
    assert model[0].seen == [1, 2]
