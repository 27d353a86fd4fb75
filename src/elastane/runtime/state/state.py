"""What must survive: values, buffers, optimizer state, schedules; moved in units, digested in blocks."""

import gc
import hashlib
import mmap
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from elastane.api.errors import BadInput
from elastane.api.records import Digest
from elastane.protocol.layout import BESIDE
from elastane.protocol.mesh import Outcome
from elastane.runtime.links.mesh import Buffer
from elastane.runtime.state import parcel
from elastane.runtime.state.attributes import Attributes, Key, set_attributes
from elastane.runtime.state.companions import Companions
from elastane.runtime.state.guard import OptimizerGuard
from elastane.runtime.state.keep import Keep
from elastane.runtime.state.layout import ModelLayout
from elastane.runtime.state.marks import content_digest
from elastane.runtime.state.memory import raw_bytes
from elastane.runtime.state.optimizers import Keeper, ShardedOptimizer, WholeOptimizer
from elastane.runtime.state.placement import Placement
from elastane.runtime.state.plain import joined, restored, said, split, text
from elastane.runtime.state.scaling import Scaling
from elastane.runtime.state.shared import SharedState
from elastane.runtime.state.untrained import Untrained

UNTRAINED = "untrained"
"""In the rest of the state: untrained tensors that the script has changed."""


class TrainingState:
    """The state of one worker's copy of the run.

    A unit is a parameter (every worker keeps everything) or a block (sharded); the last one is the rest.

    Args:
        model: its parameters are moved, in place, into the memory of the placement.
        optimizer: the user's.
        scheduler: the user's, stepped once after every training step unless it needs a figure for that.
        layout: of the model.
        copies: of the optimizer state; None: all.
        scaling: of the loss; None: gradients are not scaled.
        keep: what the script keeps.
        placement: where the model's tensors are.

    Attributes:
        metrics: what checkpoints are told apart by: the loss, and whatever was measured last.
        guard: watches which optimizers the script steps.
        companions: modules that the script uses beside the model.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        scheduler: LRScheduler | None,
        layout: ModelLayout,
        *,
        copies: int | None,
        placement: Placement,
        scaling: Scaling | None = None,
        keep: Keep | None = None,
    ) -> None:
        self.model = model
        self._modules = tuple(model.modules())
        self.copies = copies
        self.layout = layout
        self.scheduler = scheduler
        self.scaling = scaling
        self.keep = Keep() if keep is None else keep
        self.optimizer = optimizer
        self.placement = placement
        self.metrics: dict[str, float] = {}
        self.arena = placement.arena
        self._move_in()
        self.keeper: Keeper = (
            WholeOptimizer(optimizer, layout)
            if copies is None
            else ShardedOptimizer(optimizer, layout, placement.values)
        )
        self.units = self.keeper.units + 1
        self.guard = OptimizerGuard(
            optimizer, lambda other: any(kept is other for kept in self.keep.values()), model
        )
        self.companions = Companions(
            model, lambda: (kept for kept in self.keep.values() if isinstance(kept, nn.Module))
        )
        self._schedule_place = ""
        self.shared = SharedState(optimizer)
        self.untrained = Untrained(model, layout)
        # Plain attributes of modules as the script made them, and those that a forward pass sets by itself.
        self._attributes = Attributes(model)
        self._set_by_forward: frozenset[Key] = frozenset()

    def _move_in(self) -> None:
        with torch.no_grad():
            for parameter, place in zip(self.layout.parameters, self.layout.places, strict=True):
                view = place.view(self.placement.values)
                view.copy_(parameter)
                parameter.data = view
            self.placement.computed(range(len(self.layout.blocks)))
            self._buffers = [place.view(self.arena.tensors) for place in self.layout.buffer_places]
            # The model works on copies: the arena keeps what was committed, readable at any moment, while a
            # forward pass changes the copies.
            self._working = [module.get_buffer(name) for module, name in self.layout.buffers]
            for committed, working in zip(self._buffers, self._working, strict=True):
                committed.copy_(working)

    @torch.no_grad()
    def restore_buffers(self) -> None:
        """Give the model its buffers as they were committed; the training thread must not be computing."""
        for (module, name), committed, working in zip(
            self.layout.buffers, self._buffers, self._working, strict=True
        ):
            working.copy_(committed, non_blocking=True)
            # A module may have replaced its buffer by a new tensor instead of writing into it.
            module._buffers[name] = working  # noqa: SLF001 - setattr would register the same, slower
        self.placement.complete()

    def snapshot(self) -> Callable[[], None]:
        """Copy values, buffers and the rest; returns what puts them back."""
        copies = [section.clone() for section in self.placement.values]
        committed = [buffer.clone() for buffer in self._buffers]
        rest, tensors = self.rest()
        kept = {name: tensor.clone() for name, tensor in tensors.items()}

        @torch.no_grad()
        def put_back() -> None:
            for section, copied in zip(self.placement.values, copies, strict=True):
                section.copy_(copied)
            for buffer, copied in zip(self._buffers, committed, strict=True):
                buffer.copy_(copied)
            self.restore_buffers()
            self.take_rest(rest, kept)

        return put_back

    # -- between two steps -----------------------------------------------------------------------------------

    @torch.no_grad()
    def take_changes(self, *, first: bool) -> None:
        """Take over what the script has changed since the last step: it is part of the state from now on.

        Args:
            first: no step of this process has been before; every worker has done alike what is done by now.

        Raises:
            BadInput: the script has changed what a run cannot change.
        """
        self.layout.check_unchanged(self.optimizer, self.placement.values)
        if first:
            self.companions.find()
            self._check_schedules()
        elif self._place_in_schedule() != self._schedule_place:
            raise BadInput(
                "scheduler.step() was called by the script",
                means="the run steps the schedule it was given in run.prepare, so it has been stepped twice",
                do="leave scheduler.step() out, or keep the schedule: run.keep['schedule'] = scheduler",
            )
        moved = self.placement.on_host([module.get_buffer(name) for module, name in self.layout.buffers])
        for committed, working in zip(self._buffers, moved, strict=True):
            committed.copy_(working)
        if not first:
            self.untrained.changed.update(self.untrained.different(caches=True))
        self.untrained.remember()

    def _place_in_schedule(self) -> str:
        """Where the schedule stands that the run steps; empty without one."""
        if self.scheduler is None or isinstance(self.scheduler, ReduceLROnPlateau):
            return ""
        return text(self.scheduler.state_dict())

    def _check_schedules(self) -> None:
        """Find schedules of the optimizer that the run does not know.

        Raises:
            BadInput: there is one.
        """
        # Parts of a schedule refer to the optimizer as the whole does.
        # By its type: to ask a stand-in of whatever it is for its class may import or warn.
        found = [some for some in gc.get_objects() if issubclass(type(some), LRScheduler)]
        mine = [some for some in found if getattr(some, "optimizer", None) is self.optimizer]
        known = [self.scheduler, *(kept for kept in self.keep.values() if isinstance(kept, LRScheduler))]
        parts = [part for some in found for part in getattr(some, "_schedulers", ())]
        for some in mine:
            if all(some is not other for other in (*known, *parts)):
                raise BadInput(
                    f"the optimizer has a schedule ({type(some).__name__}) that the run does not know",
                    means="in a worker that joins it would begin anew",
                    do="pass it: run.prepare(..., scheduler=scheduler); or keep it and step it between the "
                    "steps: run.keep['schedule'] = scheduler",
                )

    def step_over(self) -> None:
        """Let the script find the state that the step has left; what it changes now is between two steps.

        Raises:
            BadInput: it has changed something inside the step.
        """
        # Some of them may have come from other workers.
        self.restore_buffers()
        self._schedule_place = self._place_in_schedule()
        changed = self.untrained.different(caches=False)
        if changed:
            raise changed_inside(changed[0])
        self.untrained.remember()
        self.companions.check()

    def versions(self) -> list[int]:
        """Autograd's counts of changes in place, of everything that must not change inside a step."""
        counts = [parameter._version for parameter in self.layout.parameters]  # noqa: SLF001 - torch's name
        return counts + [tensor._version for tensor in self.keep.tensors()]  # noqa: SLF001

    def check_versions(self, before: list[int]) -> None:
        """Find what a microbatch has changed in place.

        Args:
            before: `versions`, before it.

        Raises:
            BadInput: it has changed something that is not changed inside a step.
        """
        now = self.versions()
        if now != before:
            changed = next(n for n, (old, new) in enumerate(zip(before, now, strict=True)) if old != new)
            places = self.layout.places
            raise changed_inside(places[changed].name if changed < len(places) else "a tensor in run.keep")

    def set_by_forward(self, attributes: Iterable[Key]) -> None:
        """Take note of plain attributes that a forward pass sets by itself: they are not carried."""
        self._set_by_forward = frozenset(attributes)

    def content(self) -> dict[str, str]:
        """Digests of parameters and of what is kept, by name: ``.data`` changes them without a count."""
        named = {place.name: p for place, p in zip(self.layout.places, self.layout.parameters, strict=True)}
        kept = {f"run.keep {place}": tensor for place, tensor in enumerate(self.keep.tensors())}
        return {
            name: content_digest(tensor) for name, tensor in (named | kept).items()
        } | self.untrained.digests()

    # -- one virtual rank ----------------------------------------------------------------------------------

    @torch.no_grad()
    def buffer_changes(self) -> list[torch.Tensor]:
        """What the last forward pass added to the buffers, which are put back as they were."""
        moved = self.placement.on_host([module.get_buffer(name) for module, name in self.layout.buffers])
        changes = [
            buffer.to(committed.dtype) - committed
            for buffer, committed in zip(moved, self._buffers, strict=True)
        ]
        self.restore_buffers()
        return changes

    @torch.no_grad()
    def rehearse(self, spare: tuple[torch.Tensor, ...]) -> None:
        """Run the optimizer once for nothing, so that its code is warm and its memory there.

        Args:
            spare: sections of an arena nobody uses now, all zeros; they are zeros again afterwards.
        """
        if isinstance(self.keeper, WholeOptimizer):
            with self.guard.stepping():
                self.keeper.rehearse(self.placement.values, self.placement.spare(spare))

    def no_changes(self) -> list[torch.Tensor]:
        """What a virtual rank without samples adds to the buffers."""
        return [torch.zeros_like(buffer) for buffer in self._buffers]

    # -- a committed step ----------------------------------------------------------------------------------

    @torch.no_grad()
    def apply(
        self,
        outcome: Outcome,
        sums: tuple[torch.Tensor, ...],
        held: frozenset[int],
        *,
        scale: float,
        virtual_ranks: int,
        skipped: bool = False,
    ) -> None:
        """Run the optimizer on the units held.

        Args:
            outcome: of the step.
            sums: sections of the summed gradients.
            held: units to update.
            scale: factor of every gradient (clipping, weights, the scaler's).
            virtual_ranks: how many had samples; buffers take the mean of their changes.
            skipped: the optimizer does not run, as the gradient overflowed. Buffers, which the forward passes
                have moved, and the schedule go on, as they do in a loop with a ``GradScaler``.
        """
        if skipped:
            self.keeper.skip(held)
        else:
            untouched = frozenset(outcome.untouched)
            gradients = self.placement.gradients(sums, self.keeper.blocks_of(held))
            with self.guard.stepping():
                self.keeper.apply(gradients, held, untouched, scale)
            self.placement.computed(self.keeper.blocks_of(held))
        self._apply_buffers(sums, held, virtual_ranks)
        if self.scaling is not None:
            self.scaling.update(overflowed=skipped)
        # Schedulers, the script's own ones too, would warn of optimizers that they have not seen stepping.
        self.optimizer._opt_called = True  # type: ignore[attr-defined]  # noqa: SLF001 - it warns otherwise
        if self.scheduler is not None and not isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step()

    def _apply_buffers(self, sums: tuple[torch.Tensor, ...], held: frozenset[int], count: int) -> None:
        for number, block in enumerate(self.layout.blocks):
            if not self.layout.is_buffers(number) or not self.keeper.keeps_buffers(number, held):
                continue
            values = self.layout.block(self.arena.tensors, number)
            change = sums[block.section][block.start : block.stop]
            if change.is_floating_point() or change.is_complex():
                values.add_(change / count)
            else:
                values.add_(torch.div(change, count, rounding_mode="floor"))
            self._settle_flags(number, change)
        self.restore_buffers()

    def _settle_flags(self, number: int, change: torch.Tensor) -> None:
        """A flag has no mean: one that any virtual rank has set is set, one that any has cleared is cleared.

        Args:
            number: of a block of buffers, whose values have taken the mean.
            change: the sum of its changes.
        """
        block = self.layout.blocks[number]
        for piece in self.layout.buffer_pieces[number]:
            if self.layout.buffer_dtypes[piece.number] == torch.bool:
                place = self.layout.buffer_places[piece.number]
                start = place.start + piece.start
                cut = slice(start - block.start, start - block.start + piece.stop - piece.start)
                values = self.layout.block(self.arena.tensors, number)[cut]
                values.copy_(torch.where(change[cut] == 0, values, (change[cut] > 0).to(values.dtype)))

    # -- moving --------------------------------------------------------------------------------------------

    def show(self, units: Iterable[int]) -> None:
        """Have the arena hold the values of these units; before anything reads them there."""
        with self.placement.aside():
            self.placement.show(self.keeper.blocks_of(units))

    def taken(self, unit: int) -> None:
        """The arena has new values of this unit: have the model use them."""
        with self.placement.aside():
            self.placement.taken(partial(self.unit_values, unit))

    def pack(self, values: Iterable[int], states: Iterable[int]) -> list[Buffer]:
        """Units as a parcel: values of some, optimizer state of others."""
        values = tuple(values)
        self.show(values)
        tensors: dict[str, torch.Tensor] = {}
        plain: dict[str, Any] = {}
        for unit in values:
            if unit == self.units - 1:
                plain["rest"], extra = self.rest()
                tensors |= {f"extra/{name}": tensor for name, tensor in extra.items()}
                if self.copies is None:
                    # Sharded, buffers lie in blocks like everything else.
                    tensors |= {f"buffer/{i}": buffer for i, buffer in enumerate(self._buffers)}
            else:
                tensors[f"value/{unit}"] = self.unit_values(unit, self.arena.tensors)
        for unit in states:
            if unit != self.units - 1:
                for key, entry in self.keeper.state_of(unit).items():
                    if isinstance(entry, torch.Tensor):
                        # A counter of an optimizer on a device may be on the host, and must be there again.
                        kind = "state" if entry.device == self.layout.device else "host"
                        tensors[f"{kind}/{unit}/{key}"] = entry.contiguous()
                    else:
                        plain[f"state/{unit}/{key}"] = entry
        with self.placement.aside():
            return parcel.pack(tensors, plain)

    @torch.no_grad()
    def unpack(self, payload: bytearray | mmap.mmap) -> None:
        """Take over what `pack` made of another worker's state."""
        tensors, plain = parcel.unpack(payload)
        states: dict[int, dict[str, Any]] = {}
        extra = {
            key.removeprefix("extra/"): tensors.pop(key) for key in [*tensors] if key.startswith("extra/")
        }
        for key, entry in (*tensors.items(), *plain.items()):
            kind, *where = key.split("/", 2)
            if kind == "value":
                self.unit_values(int(where[0]), self.arena.tensors).copy_(entry)
                self.taken(int(where[0]))
            elif kind == "buffer":
                self._buffers[int(where[0])].copy_(entry)
            elif kind in ("state", "host"):
                states.setdefault(int(where[0]), {})[where[1]] = self._placed(entry, kind)
            else:
                self.take_rest(entry, extra)
        with self.placement.aside():
            for unit, state in states.items():
                self.keeper.set_state(unit, state)
            self.placement.complete()

    def _placed(self, entry: object, kind: str) -> object:
        """An entry of the optimizer's state where it was with whoever sent it."""
        if not isinstance(entry, torch.Tensor) or kind == "host":
            return entry
        with self.placement.aside():
            return entry.to(self.layout.device)

    @property
    def nbytes(self) -> int:
        """About the size of all of it, in bytes: values, and twice as much optimizer state, as Adam's."""
        return sum(section.nbytes for section in self.layout.sections) + sum(self.keeper.unit_bytes)

    def unit_values(self, unit: int, tensors: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """The values of a unit, 1-D, in an arena of this layout."""
        return self.keeper.unit_values(unit, tensors)

    def rest(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """What every worker keeps besides blocks: as JSON, and the tensors that it refers to.

        Hyperparameters, schedule, scaler, flags of the model, what the script keeps, and those untrained
        tensors that it has changed.

        Raises:
            BadInput: something in it is neither.
        """
        tensors: dict[str, torch.Tensor] = {}
        rest = self._plain() | {
            # A copy: it is taken down in one thread and added to in another.
            "metrics": self.metrics.copy(),
            "attributes": [
                [*key, split(value, f"attributes.{key[0]}.{key[1]}", tensors)]
                for key, value in self._changed_attributes().items()
            ],
            UNTRAINED: split(self.untrained.travelling(), UNTRAINED, tensors),
        }
        kept, kept_tensors = self.keep.described()
        shared, shared_tensors = self.shared.described()
        tensors |= {f"keep/{name}": tensor for name, tensor in kept_tensors.items()} | shared_tensors
        return {**rest, "keep": kept, "optimizer": shared}, tensors

    def _plain(self) -> dict[str, Any]:
        """Hyperparameters, schedule, scaler and flags as JSON has them: little, and compared in every vote.

        Raises:
            BadInput: a hyperparameter or something of the schedule is no number, string, list or None.
        """
        groups = [
            {key: value for key, value in group.items() if key != "params"}
            for group in self.optimizer.param_groups
        ]
        plain = {
            "groups": groups,
            "schedule": self.scheduler.state_dict() if self.scheduler is not None else None,
            "scaler": self.scaling.scaler.state_dict() if self.scaling is not None else None,
            "requires_grad": _flags(parameter.requires_grad for parameter in self.layout.parameters),
            "training": _flags(module.training for module in self._modules),
        }
        try:
            return said(plain)  # type: ignore[no-any-return]
        except TypeError as error:
            raise BadInput(
                f"a hyperparameter or schedule cannot be given to a joining worker: {error}",
                means="only numbers, strings, lists and None travel; nothing is unpickled",
                do="keep other objects out of param_groups and out of the scheduler's state",
            ) from error

    def _changed_attributes(self) -> dict[Key, Any]:
        changed = Attributes(self.model).changed(since=self._attributes)
        return {key: value for key, value in changed.items() if key not in self._set_by_forward}

    def take_rest(self, rest: dict[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
        """Take over what `rest` told, on another worker or in an earlier life of the run."""
        for group, values in zip(self.optimizer.param_groups, rest["groups"], strict=True):
            for key, value in values.items():
                if isinstance(group.get(key), torch.Tensor):
                    group[key].fill_(value)
                else:
                    group[key] = restored(group.get(key), value)
        if self.scheduler is not None and rest["schedule"] is not None:
            self.scheduler.load_state_dict(restored(self.scheduler.state_dict(), rest["schedule"]))
            self._schedule_place = self._place_in_schedule()
        if self.scaling is not None and rest["scaler"] is not None:
            self.scaling.scaler.load_state_dict(rest["scaler"])
        for parameter, flag in zip(self.layout.parameters, rest["requires_grad"], strict=True):
            parameter.requires_grad_(flag == "1")
        for module, flag in zip(self._modules, rest["training"], strict=False):
            module.training = flag == "1"
        attributes = {(path, name): joined(value, tensors) for path, name, value in rest["attributes"]}
        set_attributes(self.model, {key: _owned(value) for key, value in attributes.items()})
        self.untrained.take(joined(rest[UNTRAINED], tensors))
        self.shared.take(rest["optimizer"], tensors)
        prefix = "keep/"
        kept = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
        self.keep.take(rest["keep"], kept)
        self.metrics = dict(rest["metrics"])

    # -- what all workers must have alike --------------------------------------------------------------------

    def beliefs(self) -> dict[str, str]:
        """Digests of what every worker must have alike and no block holds; compared in every vote."""
        plain = self._plain()
        names = {"groups": "hyperparameters", "schedule": "the schedule", "scaler": "the scaler"}
        names |= {"requires_grad": "requires_grad", "training": "modules in training mode"}
        found = {name: _short(text(plain[key])) for key, name in names.items()}
        return found | {"run.keep": self.keep.digest()}

    def rest_digest(self) -> tuple[str, str]:
        """Digests of the tensors that no block holds, and of state that all parameters share."""
        kept = self.keep.described()[1]
        values = {f"keep/{name}": content_digest(tensor) for name, tensor in kept.items()}
        values |= self.untrained.digests()
        shared, tensors = self.shared.described()
        states = [text(shared), *(content_digest(tensor) for tensor in tensors.values())]
        if not values and not tensors and not shared["attributes"]:
            return "", ""
        return _short(text(values)), _short(text(states))

    # -- digests -------------------------------------------------------------------------------------------

    def digest(self, block: int) -> tuple[str, str]:
        """SHA-256 of the values and of the optimizer state of a block, whoever keeps it and however."""
        values, states = hashlib.sha256(), hashlib.sha256()
        with self.placement.aside():
            self.placement.show((block,))
            values.update(raw_bytes(self.layout.block(self.arena.tensors, block)))
            for piece in self.layout.pieces[block]:
                for key, entry in sorted(self.keeper.piece_state(block, piece).items()):
                    states.update(key.encode())
                    states.update(
                        raw_bytes(entry) if isinstance(entry, torch.Tensor) else repr(entry).encode()
                    )
        return values.hexdigest(), states.hexdigest()


def changed_inside(name: str) -> BadInput:
    """The error for a change that other workers do not make alike."""
    return BadInput(
        f"{name} was changed inside a step",
        means="workers run the inner loop for other microbatches, so each would make another change",
        do="change it after the inner loop, between two steps; initialise from data before run.prepare",
    )


def _flags(values: Iterable[bool]) -> str:
    return "".join("1" if value else "0" for value in values)


def _short(words: str) -> str:
    return hashlib.sha256(words.encode()).hexdigest()[:16]


def _owned(value: Any) -> Any:  # noqa: ANN401 - a number, a string or a tensor
    return value.clone() if isinstance(value, torch.Tensor) else value


def digest_of(blocks: Mapping[int, tuple[str, str]]) -> Digest:
    """The digest of the whole state, from those of all its blocks and of what lies beside them.

    See `TrainingState.digest` and `TrainingState.rest_digest`.
    """
    pairs = [blocks[block] for block in sorted(blocks.keys() - {BESIDE})]
    values, states = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    beside = blocks.get(BESIDE, ("", ""))
    return Digest(
        parameters=hashlib.sha256("".join([*values, beside[0]]).encode()).hexdigest(),
        optimizer=hashlib.sha256("".join([*states, beside[1]]).encode()).hexdigest(),
        parameter_blocks=tuple(value[:16] for value in values),
        optimizer_blocks=tuple(value[:16] for value in states),
    )
