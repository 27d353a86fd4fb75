"""What must survive: values, buffers, optimizer state, schedules; moved in units, digested in blocks."""

import hashlib
import mmap
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from elastane.api.errors import BadInput
from elastane.api.records import Digest
from elastane.protocol.mesh import Outcome
from elastane.runtime import parcel
from elastane.runtime.keep import Keep
from elastane.runtime.layout import ModelLayout
from elastane.runtime.memory import raw_bytes
from elastane.runtime.mesh import Buffer
from elastane.runtime.optimizers import Keeper, ShardedOptimizer, WholeOptimizer
from elastane.runtime.placement import Placement
from elastane.runtime.plain import restored, said
from elastane.runtime.scaling import Scaling


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

    # -- one virtual rank ----------------------------------------------------------------------------------

    @torch.no_grad()
    def buffer_changes(self) -> list[torch.Tensor]:
        """What the last forward pass added to the buffers, which are put back as they were."""
        moved = self.placement.on_host([module.get_buffer(name) for module, name in self.layout.buffers])
        changes = [buffer - committed for buffer, committed in zip(moved, self._buffers, strict=True)]
        self.restore_buffers()
        return changes

    @torch.no_grad()
    def rehearse(self, spare: tuple[torch.Tensor, ...]) -> None:
        """Run the optimizer once for nothing, so that its code is warm and its memory there.

        Args:
            spare: sections of an arena nobody uses now, all zeros; they are zeros again afterwards.
        """
        if isinstance(self.keeper, WholeOptimizer):
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
            if change.is_floating_point():
                values.add_(change / count)
            else:
                values.add_(torch.div(change, count, rounding_mode="floor"))
        self.restore_buffers()

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
                plain["rest"] = self.rest()
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
                self.take_rest(entry)
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

    def rest(self) -> dict[str, Any]:
        """Hyperparameters and schedule: what every worker keeps besides tensors, as JSON has it."""
        groups = [
            {key: value for key, value in group.items() if key != "params"}
            for group in self.optimizer.param_groups
        ]
        schedule = self.scheduler.state_dict() if self.scheduler is not None else None
        scale = self.scaling.scaler.state_dict() if self.scaling is not None else None
        rest = {
            "groups": groups,
            "schedule": schedule,
            "scaler": scale,
            "keep": self.keep.said(),
            # A copy: it is taken down in one thread and added to in another.
            "metrics": self.metrics.copy(),
        }
        try:
            return said(rest)  # type: ignore[no-any-return]
        except TypeError as error:
            raise BadInput(
                f"a hyperparameter or schedule cannot be given to a joining worker: {error}",
                means="only numbers, strings, lists and None travel; nothing is unpickled",
                do="keep other objects out of param_groups and out of the scheduler's state",
            ) from error

    def take_rest(self, rest: dict[str, Any]) -> None:
        """Take over what `rest` told, on another worker or in an earlier life of the run."""
        for group, values in zip(self.optimizer.param_groups, rest["groups"], strict=True):
            for key, value in values.items():
                if isinstance(group.get(key), torch.Tensor):
                    group[key].fill_(value)
                else:
                    group[key] = restored(group.get(key), value)
        if self.scheduler is not None and rest["schedule"] is not None:
            self.scheduler.load_state_dict(restored(self.scheduler.state_dict(), rest["schedule"]))
        if self.scaling is not None and rest["scaler"] is not None:
            self.scaling.scaler.load_state_dict(rest["scaler"])
        self.keep.take(rest["keep"])
        self.metrics = dict(rest["metrics"])

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


def digest_of(blocks: Mapping[int, tuple[str, str]]) -> Digest:
    """The digest of the whole state, from those of all its blocks; see `TrainingState.digest`."""
    pairs = [blocks[block] for block in sorted(blocks)]
    values, states = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    return Digest(
        parameters=hashlib.sha256("".join(values).encode()).hexdigest(),
        optimizer=hashlib.sha256("".join(states).encode()).hexdigest(),
        parameter_blocks=tuple(value[:16] for value in values),
        optimizer_blocks=tuple(value[:16] for value in states),
    )
