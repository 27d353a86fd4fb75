"""A script with a habit of plain PyTorch, or with a mistake, is refused with the correction."""

import copy
import math
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, TensorDataset

import elastane
from elastane.common.errors import BadInput, ElastaneError
from elastane.run.worker.error_hints import find_hint

from .lessons import CLASSES, FEATURES, make_samples


def build_linear():
    return nn.Sequential(nn.Linear(FEATURES, CLASSES))


def compute_loss(model, batch):
    inputs, targets = batch
    return functional.cross_entropy(model(inputs), targets)


class Script:
    """A plain training; a test replaces parts of it by mistakes."""

    def __init__(self, model=build_linear, optimizer=torch.optim.AdamW, data=None, **arguments):
        self.model, self.data = model(), make_samples() if data is None else data
        self.arguments = arguments
        self.optimizer = optimizer(self.model.parameters())
        self.run = elastane.join()

    def prepare(self):
        self.run.prepare(self.model, self.optimizer, **self.arguments)

    def compute_microbatch(self, step, batch):
        step.backward(compute_loss(self.model, batch))

    def act_after_step(self, step):
        pass

    def train(self, **wishes):
        self.prepare()
        for step in self.run.steps(self.data, **({"global_batch": 8, "microbatch": 2, "until": 3} | wishes)):
            for batch in step:
                self.compute_microbatch(step, batch)
            self.act_after_step(step)
        return self


def catch_refusal(script, **wishes):
    """Return the refusal of the script, which says what happened, what it means and what to do."""
    with pytest.raises(ElastaneError) as caught:
        script.train(**wishes)
    error = caught.value
    assert error.what
    assert error.means
    assert error.do
    return error


# -- gradients and optimizers by hand ------------------------------------------------------------------------

CLIPS = {
    "clip_grad_norm_": lambda model: nn.utils.clip_grad_norm_(model.parameters(), 1.0),
    "clip_grad_value_": lambda model: nn.utils.clip_grad_value_(model.parameters(), 1.0),
    "by hand": lambda model: [parameter.grad.mul_(0.5) for parameter in model.parameters()],
    "its norm": lambda model: [parameter.grad.norm() for parameter in model.parameters()],
    "zeroed in place": lambda model: model.zero_grad(set_to_none=False),
}


@pytest.mark.parametrize("clip", CLIPS.values(), ids=CLIPS)
@pytest.mark.parametrize("place", ["inside", "between"])
def test_a_gradient_changed_by_hand_is_refused(clip, place):
    script = Script()

    def compute_microbatch(step, batch):
        step.backward(compute_loss(script.model, batch))
        clip(script.model)

    if place == "inside":
        script.compute_microbatch = compute_microbatch
    else:
        script.act_after_step = lambda _step: clip(script.model)
    assert "clip_grad_norm=" in catch_refusal(script).do


@pytest.mark.parametrize("place", ["before", "after", "between"])
def test_zero_grad_of_the_optimizer_is_refused(place):
    script = Script()

    def compute_microbatch(step, batch):
        if place == "before":
            script.optimizer.zero_grad()
        step.backward(compute_loss(script.model, batch))
        if place == "after":
            script.optimizer.zero_grad(set_to_none=False)

    script.compute_microbatch = compute_microbatch
    if place == "between":
        script.act_after_step = lambda _step: script.optimizer.zero_grad()
    assert "leave out optimizer.zero_grad()" in catch_refusal(script).do


def test_the_script_may_use_its_optimizer_after_the_run():
    script = Script()
    script.train()
    script.optimizer.zero_grad()
    assert "zero_grad" not in vars(script.optimizer)


@pytest.mark.parametrize("place", ["before", "after", "between"])
def test_zero_grad_of_the_model_changes_nothing(place):
    """A script may call it around backward passes of its own."""
    script, plain = Script(), Script()

    def compute_microbatch(step, batch):
        if place == "before":
            script.model.zero_grad()
        step.backward(compute_loss(script.model, batch))
        if place == "after":
            script.model.zero_grad()

    script.compute_microbatch = compute_microbatch
    if place == "between":
        script.act_after_step = lambda _step: script.model.zero_grad()
    plain.model.load_state_dict(script.model.state_dict())
    assert script.train().run.digest == plain.train().run.digest


def test_a_backward_pass_of_the_scripts_own_between_steps_has_its_gradients():
    script, found = Script(), []

    def act_after_step(_step):
        sum(parameter.square().sum() for parameter in script.model.parameters()).backward()
        found.append([torch.equal(p.grad, 2 * p.detach()) for p in script.model.parameters()])

    script.act_after_step = act_after_step
    script.train()
    assert found == [[True, True]] * 3


CONVERSIONS = {
    "to": lambda model: model.to("cpu"),
    "to a layout": lambda model: model.to(memory_format=torch.preserve_format),
    "float": nn.Module.float,
    "share_memory": nn.Module.share_memory,
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("convert", CONVERSIONS.values(), ids=CONVERSIONS)
def test_the_model_may_be_converted_to_its_own_type_between_steps(convert):
    script, plain = Script(), Script()
    script.act_after_step = lambda _step: convert(script.model)
    plain.model.load_state_dict(script.model.state_dict())
    assert script.train().run.digest == plain.train().run.digest


def test_the_model_may_be_compiled_and_moved_between_steps():
    script = Script()

    def act_after_step(_step):
        script.model.to("cpu")
        with torch.no_grad():
            torch.compile(script.model, backend="eager")(torch.zeros(1, FEATURES))

    script.act_after_step = act_after_step
    script.train()


@pytest.mark.parametrize("place", ["inside", "between"])
def test_an_optimizer_stepped_by_hand_is_refused(place):
    script = Script()

    def compute_microbatch(step, batch):
        step.backward(compute_loss(script.model, batch))
        script.optimizer.step()

    if place == "inside":
        script.compute_microbatch = compute_microbatch
    else:
        script.act_after_step = lambda _step: script.optimizer.step()
    assert "optimizer.step()" in catch_refusal(script).do


@pytest.mark.parametrize("method", ["scale", "unscale_", "step", "update"])
def test_a_call_of_the_runs_scaler_is_refused(method):
    scaler = torch.amp.GradScaler("cpu")
    script = Script(scaler=scaler)
    argument = {"scale": torch.zeros(()), "update": None}.get(method, script.optimizer)
    script.act_after_step = lambda _step: getattr(scaler, method)(*([] if argument is None else [argument]))
    assert f"scaler.{method}()" in catch_refusal(script).what


def test_a_scaler_unknown_to_the_run_is_refused():
    scaler, script = torch.amp.GradScaler("cpu"), Script()
    script.compute_microbatch = lambda step, batch: step.backward(
        scaler.scale(compute_loss(script.model, batch))
    )
    assert "scaler=scaler" in catch_refusal(script).do


# -- the loss ------------------------------------------------------------------------------------------------

LOSSES = {
    "vector": (lambda loss: torch.stack([loss, loss]), "mean()"),
    "empty": (lambda loss: loss.reshape(1)[:0], "mean()"),
    "number": (lambda loss: loss.item(), "without loss.item()"),
    "integer": (lambda _loss: 3, "tensor itself"),
    "detached": (lambda loss: loss.detach(), ".detach()"),
    "made anew": (lambda loss: torch.tensor(loss.item()), "torch.tensor"),
    "of integers": (lambda loss: loss.long(), "floating point"),
    "complex": (lambda loss: loss.to(torch.complex64), ".real"),
    "none": (lambda _loss: None, "return the loss"),
    "dict": (lambda loss: {"loss": loss}, "outputs['loss']"),
    "tuple": (lambda loss: (loss, loss), "losses[0]"),
    "text": (lambda _loss: "loss", "tensor of one element"),
    "not finite": (lambda loss: loss * float("nan"), "learning rate"),
    "of nothing that is trained": (lambda _loss: torch.zeros((), requires_grad=True) * 2, "run.prepare"),
}


@pytest.mark.parametrize(("change", "instead"), LOSSES.values(), ids=LOSSES)
def test_a_loss_without_a_backward_pass_is_refused(change, instead):
    script = Script()
    script.compute_microbatch = lambda step, batch: step.backward(change(compute_loss(script.model, batch)))
    assert instead in catch_refusal(script).do


@pytest.mark.parametrize("change", [lambda loss: loss.double(), lambda loss: loss.reshape(1)])
def test_a_loss_of_another_type_or_of_one_element_is_accepted(change):
    script = Script()
    script.compute_microbatch = lambda step, batch: step.backward(change(compute_loss(script.model, batch)))
    script.train()


@pytest.mark.parametrize("weight", ["2", -1, float("nan"), torch.ones(2), True, [1]])
def test_a_weight_that_is_not_a_number_is_refused(weight):
    script = Script()
    script.compute_microbatch = lambda step, batch: step.backward(
        compute_loss(script.model, batch), weight=weight
    )
    assert "weight" in catch_refusal(script).what


def test_plain_backward_passes_are_refused():
    script = Script()
    script.compute_microbatch = lambda _step, batch: compute_loss(script.model, batch).backward()
    assert "step.backward(loss)" in catch_refusal(script).do

    def compute_both(step, batch):
        loss = compute_loss(script.model, batch)
        loss.backward()
        step.backward(loss)

    script = Script()
    script.compute_microbatch = compute_both
    assert "remove loss.backward()" in catch_refusal(script).do


# -- the arguments of prepare --------------------------------------------------------------------------------


@pytest.fixture
def group():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("wrap", [nn.DataParallel, nn.parallel.DistributedDataParallel])
@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.usefixtures("group")
def test_a_model_wrapped_by_another_framework_is_refused(wrap, place):
    script = Script()
    if place == "before":
        script.model = wrap(script.model)
    else:
        script.prepare()
        script.prepare = lambda: setattr(script, "model", wrap(script.model))
    error = catch_refusal(script)
    assert wrap.__name__ in error.what
    assert "model.module" in error.do


def test_a_module_that_has_no_parts_changes_nothing():
    # A traceback keeps one after an error in `__init__`, and the reducer of DDP one that was collected.
    without_parts = nn.parallel.DistributedDataParallel.__new__(nn.parallel.DistributedDataParallel)
    Script().train()
    assert not hasattr(without_parts, "_modules")


def test_a_process_group_of_one_process_is_accepted(group):
    Script().train()


PREPARED = {
    "no model": ({"model": None}, "module"),
    "several models": ({"model": [build_linear()]}, "nn.ModuleDict"),
    "an optimizer's class": ({"optimizer": torch.optim.SGD}, "SGD(model.parameters()"),
    "several optimizers": ({"optimizer": []}, "one optimizer"),
    "no optimizer": ({"optimizer": None}, "AdamW"),
    "half an optimizer": ({"optimizer": torch.optim.SGD.__new__(torch.optim.SGD)}, "super().__init__"),
    "a schedule's class": ({"scheduler": torch.optim.lr_scheduler.StepLR}, "LambdaLR"),
    "a function as a schedule": ({"scheduler": lambda epoch: epoch}, "LambdaLR"),
    "another optimizer's schedule": (
        {"scheduler": torch.optim.lr_scheduler.StepLR(torch.optim.SGD(build_linear().parameters()), 1)},
        "the optimizer that you pass to run.prepare",
    ),
    "no scaler": ({"scaler": True}, "GradScaler"),
    "a negative norm": ({"clip_grad_norm": -1.0}, "clip_grad_norm=1.0"),
    "no norm": ({"clip_grad_norm": "1"}, "clip_grad_norm=1.0"),
    "a norm that is not a number": ({"clip_grad_norm": float("nan")}, "clip_grad_norm=1.0"),
}


@pytest.mark.parametrize(("wrong", "instead"), PREPARED.values(), ids=PREPARED)
def test_arguments_of_prepare_that_do_not_fit_together_are_refused(wrong, instead):
    script = Script()
    script.model, script.optimizer = (
        wrong.get("model", script.model),
        wrong.get("optimizer", script.optimizer),
    )
    script.arguments = {key: value for key, value in wrong.items() if key not in ("model", "optimizer")}
    assert instead in catch_refusal(script).do


# -- data ----------------------------------------------------------------------------------------------------


def iterate_samples():
    yield from make_samples()


X, Y = make_samples().tensors
DATA = {
    "loader": (DataLoader(make_samples(), batch_size=8), "loader.dataset"),
    "loader of samples": (DataLoader(make_samples(), batch_size=None), "loader.dataset"),
    "iterator of a loader": (iter(DataLoader(make_samples())), "the dataset itself"),
    "generator": (iterate_samples(), "a list of its samples"),
    "zip": (zip(X, Y, strict=True), "a list of its samples"),
    "generator function": (iterate_samples, "(shard, shards)"),
    "splits": ({"train": make_samples(), "test": make_samples()}, "dataset['train']"),
    "path": ("/data/train.csv", "load_dataset"),
    "path object": (Path("/data/train.csv"), "load_dataset"),
    "columns": ((X, Y), "TensorDataset"),
    "class": (TensorDataset, "TensorDataset(...)"),
    "sampler": (RandomSampler(make_samples()), "the dataset that the sampler samples from"),
    "set": ({1, 2, 3}, "sorted"),
    "number": (48, "__getitem__"),
}


@pytest.mark.parametrize(("data", "instead"), DATA.values(), ids=DATA)
def test_data_that_is_not_a_dataset_is_refused(data, instead):
    assert instead in catch_refusal(Script(data=data)).do


def test_a_class_that_opens_shards_is_a_stream():
    class Shards(IterableDataset):
        def __init__(self, shard, shards):
            self.place = 0

        def __iter__(self):
            while self.place < 20:
                self.place += 1
                yield make_samples()[self.place - 1]
            self.place = 0

        def state_dict(self):
            return {"place": self.place}

        def load_state_dict(self, state):
            self.place = state["place"]

    Script(data=Shards).train()


@pytest.mark.parametrize("item", [object(), None, {"a": object()}])
def test_the_error_for_samples_that_make_no_batch_names_collate(item):
    assert "collate=" in catch_refusal(Script(data=[item] * 20)).do


def test_the_error_for_samples_of_different_lengths_names_collate():
    assert "collate=" in catch_refusal(Script(data=[torch.zeros(n % 3 + 1) for n in range(20)])).do


@pytest.mark.parametrize(
    "wishes",
    [
        {"global_batch": 8.0},
        {"global_batch": "8"},
        {"microbatch": True},
        {"microbatch": None},
        {"until": True},
        {"loaders": -1},
        {"loaders": "2"},
        {"prefetch": 0},
        {"collate": 3},
    ],
)
def test_the_error_names_an_argument_that_is_not_a_whole_number(wishes):
    (name,) = wishes
    assert name in catch_refusal(Script(), **wishes).what


# -- order ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inner", ["evaluate", "checkpoint"])
def test_another_round_inside_a_step_is_refused(inner):
    script = Script()

    def compute_microbatch(step, batch):
        step.backward(compute_loss(script.model, batch))
        if inner == "evaluate":
            list(script.run.evaluate(make_samples(), microbatch=4))
        else:
            script.run.checkpoint()

    script.compute_microbatch = compute_microbatch
    assert "inside a step" in catch_refusal(script).what


def test_an_evaluation_left_early_is_refused():
    script = Script()

    def act_after_step(_step):
        for _ in script.run.evaluate(make_samples(), microbatch=4):
            break

    script.act_after_step = act_after_step
    assert "to its end" in catch_refusal(script).do


def test_a_second_iteration_of_a_step_is_refused():
    script = Script()
    script.act_after_step = list
    assert "iterated twice" in catch_refusal(script).what


EVALUATIONS = {
    "loader": (lambda run: run.evaluate(DataLoader(make_samples()), microbatch=4), "loader.dataset"),
    "generator": (lambda run: run.evaluate(iterate_samples(), microbatch=4), "a list of its samples"),
    "path": (lambda run: run.evaluate("test.csv", microbatch=4), "load_dataset"),
    "no microbatch": (lambda run: run.evaluate(make_samples(), microbatch=0), "microbatch="),
    "added outside": (lambda run: run.evaluate(make_samples(), microbatch=4).add(right=1), "in the loop"),
}


@pytest.mark.parametrize(("evaluate", "instead"), EVALUATIONS.values(), ids=EVALUATIONS)
def test_data_without_positions_cannot_be_evaluated(evaluate, instead):
    script = Script()
    script.act_after_step = lambda _step: evaluate(script.run)
    assert instead in catch_refusal(script).do


@pytest.mark.parametrize("value", ["1", None, [1, 2], torch.zeros(1, dtype=torch.complex64)])
def test_an_evaluation_refuses_values_that_are_not_numbers(value):
    script = Script()

    def act_after_step(_step):
        score = script.run.evaluate(make_samples(), microbatch=4)
        for _ in score:
            score.add(right=value)

    script.act_after_step = act_after_step
    assert "add(right=...)" in catch_refusal(script).what


@pytest.mark.parametrize("value", ["1", None, torch.zeros(2)])
def test_a_checkpoint_refuses_metrics_that_are_not_numbers(value):
    script = Script()
    script.act_after_step = lambda _step: script.run.checkpoint(val_loss=value)
    assert "val_loss" in catch_refusal(script).what


def test_a_metric_that_is_not_finite_is_left_out_with_a_warning(monkeypatch):
    script, warnings, found = Script(), [], []
    monkeypatch.setattr(script.run._reporter, "warn", lambda key, text, step: warnings.append((key, text)))

    def act_after_step(step):
        script.run.checkpoint(val_loss=math.nan if step.number == 2 else float(step.number))
        found.append(script.run._trainer.state.replicated.metrics.get("val_loss"))

    script.act_after_step = act_after_step
    script.train()
    assert found == [1.0, None, 3.0]
    assert any(key == "not-finite" and "val_loss" in text for key, text in warnings)


def test_the_loss_of_a_checkpoint_is_that_of_its_step():
    script = Script()
    script.act_after_step = lambda _step: script.run.checkpoint(loss=1.0)
    assert "val_loss" in catch_refusal(script).do


def test_totals_of_an_evaluation_do_not_replace_the_loss_of_the_step():
    script = Script()

    def act_after_step(step):
        score = script.run.evaluate(make_samples(), microbatch=4)
        for _ in score:
            score.add(loss=100.0)
        metrics = script.run._trainer.state.replicated.metrics
        assert metrics["loss"] == step.loss
        assert metrics["evaluation.loss"] == 500.0

    script.act_after_step = act_after_step
    script.train()


# -- errors of PyTorch's -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("Default process group has not been initialized, please make sure to", "remove init"),
        ("Error initializing torch.distributed using env:// rendezvous: RANK expected", "remove init"),
        ("No inf checks were recorded for this optimizer.", "scaler=scaler"),
        ("Run.prepare() takes 3 positional arguments but 4 were given", "scheduler=scheduler"),
        ("Run.steps() missing 3 required keyword-only arguments: 'global_batch'", "global_batch=64"),
        ("CUDA out of memory. Tried to allocate 2 GiB", "microbatch="),
    ],
)
def test_an_error_of_a_replaced_way_to_train_gets_a_hint(text, instead):
    lines = find_hint(RuntimeError(text)).splitlines()
    assert lines[0].startswith("  means:")
    assert lines[1].startswith("  do:")
    assert instead in lines[1]


def test_other_errors_get_no_hint():
    assert find_hint(ValueError("mat1 and mat2 shapes cannot be multiplied")) == ""


def test_a_refusal_is_bad_input():
    with pytest.raises(BadInput):
        Script(data=48).train()


# -- CUDA graphs --------------------------------------------------------------------------------------------


def test_a_model_captured_before_the_run_moves_its_parameters_is_refused():
    script = Script()

    def replay(inputs):
        return inputs

    # As make_graphed_callables, which needs a GPU, replaces it.
    replay.__module__ = torch.cuda.graphs.__name__
    script.model[0].forward = replay
    assert "after run.prepare" in catch_refusal(script).do


def test_a_backward_pass_inside_a_capture_is_refused(monkeypatch):
    script = Script()
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)

    def compute_microbatch(step, batch):
        loss = compute_loss(script.model, batch)
        monkeypatch.setattr(torch.Tensor, "is_cuda", True)
        step.backward(loss)

    script.compute_microbatch = compute_microbatch
    assert "outside of the capture" in catch_refusal(script).do
