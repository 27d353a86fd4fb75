"""State outside the blocks, which every worker holds: hyperparameters, schedules, flags, ``run.keep``."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from elastane.common.errors import BadInput
from elastane.run.worker.exhaustion import runs_script
from elastane.run.worker.state.change_detector import digest_tensor
from elastane.run.worker.state.delayed_differences import RankBeginning
from elastane.run.worker.state.edited_values import EditedValue, merge_edits
from elastane.run.worker.state.forward_caches import ForwardCaches
from elastane.run.worker.state.json_state import (
    digest_text,
    join_tensors,
    restore_types,
    split_tensors,
    to_json,
    to_json_text,
)
from elastane.run.worker.state.live_objects import find_live_objects
from elastane.run.worker.state.loss_scaling import LossScaling
from elastane.run.worker.state.model_layout import ModelLayout
from elastane.run.worker.state.module_attributes import (
    KeptAttributes,
    Key,
    ModuleAttributes,
    Reading,
    check_changes,
    find_other_values,
    read_attributes,
    set_attributes,
)
from elastane.run.worker.state.run_keep import RunKeep
from elastane.run.worker.state.script_changes import digest_changes
from elastane.run.worker.state.shared_optimizer_state import SharedOptimizerState
from elastane.run.worker.state.untrained_tensors import UntrainedTensors

BEGAN = "began"
"""The key of the hyperparameters and the schedule with which the script began."""
BEGINNING = "beginning"
"""The key of what the virtual ranks of the last round began with."""
UNTRAINED = "untrained"
"""The key of the untrained tensors that the script has changed."""


class ReplicatedState:
    """The state that is the same on every worker.

    Args:
        scheduler: the user's schedule; the run steps it once after every training step, unless the step
            needs a metric.
        scaling: the scaling of the loss; None: gradients are not scaled.
        keep: the values in ``run.keep``.
        inner: the script's optimizer in a run of rounds; None: it is ``optimizer`` itself.

    Attributes:
        metrics: the metrics of checkpoints: the loss, and the last measurements of the script.
        recorded: the digest of the values that the script recorded in the last step; empty: none.
        edits: the values of the loaded state that the script begins with no longer; see `edited_values`.
        untrained: the tensors of the model that no block holds.
        beginning: what the virtual ranks of the last round began with, if their differences are still to
            be handed over; None: they are not.
        caches: what forward passes change in modules; every microbatch begins with the same.
        order: an epoch, and the digest of its order; None: the script chooses none.
        dataset: the plain data in attributes of the dataset; None: it has none.
        is_dataset_copied: loader processes have copies of the dataset, so the script may not change it.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        layout: ModelLayout,
        *,
        scheduler: LRScheduler | None,
        scaling: LossScaling | None,
        keep: RunKeep,
        inner: Optimizer | None = None,
    ) -> None:
        self._model, self._modules = model, tuple(model.modules())
        self._optimizer, self._scheduler, self._scaling = inner or optimizer, scheduler, scaling
        self._optimizers = (optimizer,) if inner is None else (inner, optimizer)
        # What `_describe_plain` returns during a round, while inner steps move the schedule; None: read it.
        self._kept_plain: dict[str, Any] | None = None
        self._keep, self._parameters = keep, layout.sources
        self._shared = SharedOptimizerState(optimizer)
        self.untrained = UntrainedTensors(model, layout)
        self.caches = ForwardCaches(model)
        self.beginning: RankBeginning | None = None
        # Flags and attributes in the last round, if differences are delayed.
        self._round_before: tuple[tuple[list[bool], list[bool]], Reading] | None = None
        self.metrics: dict[str, float] = {}
        self.recorded = ""
        self.order: tuple[int, str] | None = None
        self.dataset: KeptAttributes | None = None
        self.is_dataset_copied = False
        self._schedule_before = ""
        self._flags = self._read_flags()
        self._groups_before = ""
        # Plain attributes of modules from the script, and the keys of those that a forward pass sets.
        self._attributes = ModuleAttributes(model)
        self._named_modules = tuple(model.named_modules())
        self._reading = read_attributes(self._named_modules)
        self._excluded: frozenset[Key] = frozenset()
        # The attributes after a step, before the script may change them, by path of the module.
        self._left: dict[str, dict[str, Any]] = {}
        # Digests of those that it has changed before the present step.
        self._script_changes: dict[str, str] = {}
        self._began = self._describe_beginning()
        self.edits: tuple[EditedValue, ...] = ()

    def describe(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """Return the state as JSON, and the tensors that the JSON refers to.

        It contains hyperparameters, schedule, scaler, flags of the model, ``run.keep``, and the untrained
        tensors that the script has changed.

        Raises:
            BadInput: a value in it cannot be described.
        """
        tensors: dict[str, torch.Tensor] = {}
        plain = self._describe_plain() | {
            # A copy, because one thread reads it while another adds to it.
            "metrics": self.metrics.copy(),
            "recorded": self.recorded,
            "order": list(self.order) if self.order is not None else None,
            "script_changes": self._script_changes,
            # As between two microbatches, like flags: a running one may disable an adapter for a while.
            "attributes": ModuleAttributes(self._model, self._reading).describe_changed(
                self._attributes, "attributes", tensors, self._excluded
            ),
            UNTRAINED: split_tensors(self.untrained.find_changed_tensors(), UNTRAINED, tensors),
        }
        if self.beginning is not None:
            plain[BEGINNING] = self.beginning.plain
            tensors |= {f"{BEGINNING}/{n}": section for n, section in enumerate(self.beginning.sections)}
        if self.dataset is not None:
            plain["dataset"] = split_tensors(self.dataset.describe_changed(), "dataset", tensors)
        keep, keep_tensors = self._keep.describe()
        shared, shared_tensors = self._shared.describe()
        tensors |= {f"keep/{name}": tensor for name, tensor in keep_tensors.items()} | shared_tensors
        return {**plain, "keep": keep, "optimizer": shared, BEGAN: self._began}, tensors

    def _describe_beginning(self) -> dict[str, Any] | None:
        """Return the hyperparameters and the schedule at the start; None: they are not plain data."""
        try:
            plain = self._describe_plain()
        except BadInput:
            # The first vote refuses them.
            return None
        return {"groups": plain["groups"], "schedule": plain["schedule"]}

    def _describe_plain(self) -> dict[str, Any]:
        """Return hyperparameters, schedule, scaler and flags as JSON; every vote compares them.

        Raises:
            BadInput: a hyperparameter or a value of the schedule is not a number, string, list or None.
        """
        if self._kept_plain is not None:
            return self._kept_plain
        groups = [
            {key: value for key, value in group.items() if key != "params"} for group in self._list_groups()
        ]
        plain = {
            "groups": groups,
            "schedule": self._scheduler.state_dict() if self._scheduler is not None else None,
            "scaler": self._scaling.scaler.state_dict() if self._scaling is not None else None,
            # The flags between microbatches: the running microbatch may switch them.
            "training": _encode_flags(self._flags[0]),
            "requires_grad": _encode_flags(self._flags[1]),
        }
        try:
            return to_json(plain)  # type: ignore[no-any-return]
        except TypeError as error:
            raise BadInput(
                f"a hyperparameter or schedule cannot be given to a joining worker: {error}",
                means="only numbers, strings, lists and None can be sent; nothing is unpickled",
                do="keep other objects out of param_groups and out of the scheduler's state",
            ) from error

    def load(self, described: dict[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
        """Load the result of `describe` on another worker or in an earlier attempt of the run."""
        groups = self._list_groups()
        if (saved := len(described["groups"])) != (now := len(groups)):
            raise BadInput(
                f"the optimizer has {now} parameter groups, and the checkpoint has {saved}",
                means="hyperparameters belong to groups, so those of the checkpoint cannot be assigned",
                do="build the optimizer with the same groups",
            )
        # Checkpoints of earlier versions do not say with which values the script began.
        if self._began is not None and (began := described.get(BEGAN)) is not None:
            merged, self.edits = merge_edits(began, self._began, described)
            described = {**described, **merged}
        _load_groups(groups, described["groups"])
        self._load_schedule(described)
        self.remember_schedule()
        if self._scaling is not None and described["scaler"] is not None:
            self._scaling.scaler.load_state_dict(described["scaler"])
        for parameter, flag in zip(self._parameters, described["requires_grad"], strict=True):
            parameter.requires_grad_(flag == "1")
        for module, flag in zip(self._modules, described["training"], strict=False):
            module.training = flag == "1"
        # Others have the values of run.prepare there, although this script may have set them since.
        self._attributes.restore(but=self._excluded)
        set_attributes(self._model, described["attributes"], tensors)
        self.remember_flags()
        self.untrained.load(join_tensors(described[UNTRAINED], tensors))
        self.caches.renew()
        self._shared.load(described["optimizer"], tensors)
        prefix = "keep/"
        keep_tensors = {
            name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)
        }
        self._keep.load(described["keep"], keep_tensors)
        sections = [tensors[f"{BEGINNING}/{n}"] for n in range(len(tensors)) if f"{BEGINNING}/{n}" in tensors]
        self.beginning = (
            RankBeginning(described[BEGINNING], tuple(sections)) if described.get(BEGINNING) else None
        )
        self.metrics = dict(described["metrics"])
        # Checkpoints of earlier versions lack these.
        self.recorded = described.get("recorded", "")
        self._script_changes = dict(described.get("script_changes", {}))
        self.order = tuple(described["order"]) if described.get("order") else None
        if self.dataset is not None:
            self.dataset.restore()
            if changed := described.get("dataset"):
                self.dataset.load(join_tensors(changed, tensors))
        if self._kept_plain is not None:
            self.keep_plain()

    def _load_schedule(self, described: Mapping[str, Any]) -> None:
        if self._scheduler is not None and described["schedule"] is not None:
            self._scheduler.load_state_dict(
                restore_types(self._scheduler.state_dict(), described["schedule"])
            )

    def keep_beginning(self, sections: Iterable[torch.Tensor] | None) -> None:
        """Keep what the virtual ranks of the round that is applied now have begun with.

        Args:
            sections: the parameters; None: all differences are handed over, so nothing is kept.
        """
        if sections is None:
            self.beginning = None
            return
        plain = self._describe_plain()
        copies = tuple(section.clone() for section in sections)
        self.beginning = RankBeginning({key: plain[key] for key in ("groups", "schedule")}, copies)

    def show_hyperparameters(self, plain: Mapping[str, Any]) -> None:
        """Show the inner optimizer and the schedule as they were; the end of a virtual rank restores both."""
        _load_groups(self._optimizer.param_groups, plain["groups"])
        self._load_schedule(plain)
        self.remember_hyperparameters()

    def keep_plain(self) -> None:
        """Keep the present hyperparameters and schedule for other threads, before inner steps move them."""
        self._kept_plain = None
        self._kept_plain = self._describe_plain()

    def drop_plain(self) -> None:
        """Let other threads read hyperparameters and the schedule again: the round is committed."""
        self._kept_plain = None

    def take_order(self, order: tuple[int, str] | None) -> bool:
        """Take the order of the present epoch; return False if workers before had another one in this epoch.

        Args:
            order: the epoch and the digest of its order; None: the script does not choose it.
        """
        known, self.order = self.order, order
        return known is None or order is None or known[0] != order[0] or known == order

    # -- equality of workers --------------------------------------------------------------------

    def digest_parts(self) -> dict[str, str]:
        """Return digests of the shared state outside the blocks; every vote compares them."""
        plain = self._describe_plain()
        names = {"groups": "hyperparameters", "schedule": "the schedule", "scaler": "the scaler"}
        names |= {"requires_grad": "requires_grad", "training": "modules in training mode"}
        digests = {name: digest_text(to_json_text(plain[key])) for key, name in names.items()}
        recorded = {"what run.log or run.artifact was given": self.recorded} if self.recorded else {}
        return digests | {"run.keep": self._keep.digest()} | recorded | self._script_changes

    def digest(self) -> tuple[str, str]:
        """Return digests of the tensors outside the blocks, and of the shared optimizer state."""
        keep_tensors = self._keep.describe()[1]
        values = {f"keep/{name}": digest_tensor(tensor) for name, tensor in keep_tensors.items()}
        values |= self.untrained.digest_tensors()
        if self.beginning is not None:
            values |= {f"{BEGINNING}/{n}": digest_tensor(t) for n, t in enumerate(self.beginning.sections)}
        shared, tensors = self._shared.describe()
        states = [to_json_text(shared), *(digest_tensor(tensor) for tensor in tensors.values())]
        if not values and not tensors and not shared["attributes"]:
            return "", ""
        return digest_text(to_json_text(values)), digest_text(to_json_text(states))

    # -- checks of the script ------------------------------------------------------------------

    def exclude_attributes(self, attributes: Iterable[Key]) -> None:
        """Exclude plain attributes that a forward pass sets; joining workers do not receive them."""
        self._excluded = frozenset(attributes)
        self.caches.watch(self._excluded)

    def remember_flags(self, *, first: bool = True) -> None:
        """Remember the present flags, hyperparameters and attributes of modules as those of the step.

        Args:
            first: the script may have set any attribute, as the script of every worker does.

        Raises:
            BadInput: since `remember_values` the script gave a module a value that cannot be carried.
        """
        self._flags = self._read_flags()
        self._groups_before = self._describe_groups()
        before, self._reading = self._reading, read_attributes(self._named_modules, self._reading)
        if not first:
            changed = find_other_values(before, self._reading)
            for key in self._excluded & changed.keys():
                del changed[key]
            self._script_changes = {}
            if changed:
                known = {id(value) for values in self._left.values() for value in values.values()}
                check_changes(before, changed, known)
                self._script_changes = digest_changes(before, changed, self._left)
        if not first and self.is_dataset_copied and self.dataset is not None:
            self.dataset.check_unchanged()

    def check_unchanged_since_round(self) -> None:
        """Check that a virtual rank of the round before could still be computed as it was then.

        Raises:
            BadInput: the script changed a flag, an attribute or an untrained tensor between two rounds.
        """
        before, reading = self._round_before, read_attributes(self._named_modules, self._reading)
        self._round_before = self._read_flags(), reading
        tensors = self.untrained.find_changed(caches=False) or self.untrained.list_changed()
        others = [] if before is None else find_other_values(before[1], reading).keys() - self._excluded
        if not (tensors or others or (before is not None and before[0] != self._round_before[0])):
            return
        raise BadInput(
            "the script changed the model between two rounds, beside the values of its parameters"
            + "".join(f": {name}" for name in tensors[:1]),
            means="with delay=1 a virtual rank of the round before may be computed once more, as it was then",
            do="set flags, attributes and frozen parameters before run.rounds, or leave delay out",
        )

    def remember_values(self) -> None:
        """Remember which objects modules refer to: others that they have later come from the script."""
        self._left = {path: vars(module).copy() for path, module in self._named_modules}
        if self.is_dataset_copied and self.dataset is not None:
            self.dataset.remember()

    def restore_flags(self) -> None:
        """Restore the flags of the step, some of which a microbatch may have switched.

        Otherwise a worker without a microbatch in the step would have other flags.

        Raises:
            BadInput: the script changed a hyperparameter inside the step.
        """
        if self._flags != self._read_flags():
            modes, gradients = self._flags
            for module, training in zip(self._modules, modes, strict=True):
                module.training = training
            for parameter, required in zip(self._parameters, gradients, strict=True):
                parameter.requires_grad_(required)
        if self._groups_before != self._describe_groups():
            raise BadInput(
                "a hyperparameter of the optimizer was changed inside a step",
                means="a worker without a microbatch in the step would keep the old value",
                do="set it before or after the inner loop, for example from step.number",
            )

    def _read_flags(self) -> tuple[list[bool], list[bool]]:
        return [m.training for m in self._modules], [p.requires_grad for p in self._parameters]

    def _list_groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self._optimizers for group in optimizer.param_groups]

    def _describe_groups(self) -> str:
        return to_json_text([{**group, "params": None} for group in self._list_groups()])

    def remember_hyperparameters(self) -> None:
        """Remember the present hyperparameters as those of the step: an inner step may have moved them."""
        self._groups_before = self._describe_groups()

    @runs_script
    def step_schedule(self, times: int = 1) -> None:
        """Step the schedule, as a plain training loop does after each step.

        Args:
            times: the steps of such a loop; in a run of rounds one for each inner step.
        """
        if self._scheduler is not None and not isinstance(self._scheduler, ReduceLROnPlateau):
            for _ in range(times):
                self._scheduler.step()

    def remember_schedule(self) -> None:
        """Remember the present state of the schedule as that of the step."""
        self._schedule_before = self._read_schedule()

    def check_schedule(self) -> None:
        """Check that the script has not stepped the schedule that the run steps."""
        if self._read_schedule() != self._schedule_before:
            raise BadInput(
                "the script called scheduler.step()",
                means="the run steps the schedule of run.prepare, so it has been stepped twice",
                do="leave scheduler.step() out, or keep the schedule: run.keep['schedule'] = scheduler",
            )

    def _read_schedule(self) -> str:
        """Return the state of the schedule that the run steps; empty without one."""
        if self._scheduler is None or isinstance(self._scheduler, ReduceLROnPlateau):
            return ""
        return to_json_text(self._scheduler.state_dict())

    def check_schedules_known(self) -> None:
        """Check that the run knows every schedule of the optimizer.

        Raises:
            BadInput: the optimizer has a schedule that the run does not know.
        """
        schedules = find_live_objects(LRScheduler)
        known = [self._scheduler, *(value for value in self._keep.values() if isinstance(value, LRScheduler))]
        # The parts of a schedule refer to the optimizer too.
        known += [part for schedule in schedules for part in _list_parts(schedule)]
        for schedule in schedules:
            if getattr(schedule, "optimizer", None) is not self._optimizer:
                continue
            if all(schedule is not other for other in known):
                raise BadInput(
                    f"the optimizer has a schedule ({type(schedule).__name__}) that the run does not know",
                    means="it would begin again in a worker that joins",
                    do="pass it to the run: run.prepare(..., scheduler=scheduler); or keep it, and step it "
                    "between the steps: run.keep['schedule'] = scheduler",
                )


def _load_groups(groups: Iterable[dict[str, Any]], described: Iterable[Mapping[str, Any]]) -> None:
    """Set the hyperparameters of groups; ``described`` may have those of further groups."""
    for group, values in zip(groups, described, strict=False):
        for key, value in values.items():
            if isinstance(group.get(key), torch.Tensor):
                group[key].fill_(value)
            else:
                group[key] = restore_types(group.get(key), value)


def _list_parts(schedule: LRScheduler) -> Iterator[LRScheduler]:
    """Yield the parts of a schedule that are schedules."""
    for value in vars(schedule).values():
        for part in value if isinstance(value, list | tuple) else (value,):
            if isinstance(part, LRScheduler):
                yield part


def _encode_flags(values: Iterable[bool]) -> str:
    return "".join("1" if value else "0" for value in values)
