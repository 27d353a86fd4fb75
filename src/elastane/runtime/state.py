"""What must survive: values, buffers, optimizer state, schedules; moved in units, digested in blocks."""

import hashlib
import json
import mmap
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from elastane.api.errors import BadInput
from elastane.protocol.mesh import Outcome
from elastane.runtime import parcel
from elastane.runtime.layout import ModelLayout
from elastane.runtime.memory import Arena, raw_bytes
from elastane.runtime.mesh import Buffer
from elastane.runtime.optimizers import ShardedOptimizer, WholeOptimizer

Keeper = WholeOptimizer | ShardedOptimizer


class TrainingState:
    """The state of one worker's copy of the run.

    A unit is a parameter (every worker keeps everything) or a block (sharded); the last one is the rest.

    Args:
        model: its parameters and buffers are moved into one arena, in place.
        optimizer: the user's.
        scheduler: the user's, stepped once after every training step.
        layout: of the model.
        copies: of the optimizer state; None: all.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        scheduler: LRScheduler | None,
        layout: ModelLayout,
        copies: int | None,
    ) -> None:
        self.model = model
        self.copies = copies
        self.layout = layout
        self.scheduler = scheduler
        self.optimizer = optimizer
        self.arena = Arena("values", layout.sections)
        self._move_in()
        self.keeper: Keeper = (
            WholeOptimizer(optimizer, layout)
            if copies is None
            else ShardedOptimizer(optimizer, layout, self.arena)
        )
        self.units = self.keeper.units + 1

    def _move_in(self) -> None:
        tensors = self.arena.tensors
        with torch.no_grad():
            for parameter, place in zip(self.layout.parameters, self.layout.places, strict=True):
                view = place.view(tensors)
                view.copy_(parameter)
                parameter.data = view
            self._buffers = [place.view(tensors) for place in self.layout.buffer_places]
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
            working.copy_(committed)
            # A module may have replaced its buffer by a new tensor instead of writing into it.
            module._buffers[name] = working  # noqa: SLF001 - setattr would register the same, slower

    # -- one virtual rank ----------------------------------------------------------------------------------

    @torch.no_grad()
    def buffer_changes(self) -> list[torch.Tensor]:
        """What the last forward pass added to the buffers, which are put back as they were."""
        changes = [
            module.get_buffer(name) - committed
            for (module, name), committed in zip(self.layout.buffers, self._buffers, strict=True)
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
            self.keeper.rehearse(self.arena.tensors, spare)

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
    ) -> None:
        """Run the optimizer on the units held.

        Args:
            outcome: of the step.
            sums: sections of the summed gradients.
            held: units to update.
            scale: factor of every gradient (clipping, weights).
            virtual_ranks: how many had samples; buffers take the mean of their changes.
        """
        untouched = frozenset(outcome.untouched)
        self.keeper.apply(sums, held, untouched, scale)
        self._apply_buffers(sums, held, virtual_ranks)
        if self.scheduler is not None:
            self.optimizer._opt_called = True  # type: ignore[attr-defined]  # noqa: SLF001 - it warns otherwise
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

    def pack(self, values: Iterable[int], states: Iterable[int]) -> list[Buffer]:
        """Units as a parcel: values of some, optimizer state of others."""
        tensors: dict[str, torch.Tensor] = {}
        plain: dict[str, Any] = {}
        for unit in values:
            if unit == self.units - 1:
                plain["rest"] = self._rest()
                if self.copies is None:
                    # Sharded, buffers lie in blocks like everything else.
                    tensors |= {f"buffer/{i}": buffer for i, buffer in enumerate(self._buffers)}
            else:
                tensors[f"value/{unit}"] = self.unit_values(unit, self.arena.tensors)
        for unit in states:
            if unit != self.units - 1:
                for key, entry in self.keeper.state_of(unit).items():
                    if isinstance(entry, torch.Tensor):
                        tensors[f"state/{unit}/{key}"] = entry.contiguous()
                    else:
                        plain[f"state/{unit}/{key}"] = entry
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
            elif kind == "buffer":
                self._buffers[int(where[0])].copy_(entry)
            elif kind == "state":
                states.setdefault(int(where[0]), {})[where[1]] = entry
            else:
                self._take_rest(entry)
        for unit, state in states.items():
            self.keeper.set_state(unit, state)

    def unit_values(self, unit: int, tensors: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """The values of a unit, 1-D, in an arena of this layout."""
        return self.keeper.unit_values(unit, tensors)

    def _rest(self) -> dict[str, Any]:
        groups = [
            {key: value for key, value in group.items() if key != "params"}
            for group in self.optimizer.param_groups
        ]
        schedule = self.scheduler.state_dict() if self.scheduler is not None else None
        try:
            return json.loads(json.dumps({"groups": groups, "schedule": schedule}, default=_number))  # type: ignore[no-any-return]
        except TypeError as error:
            raise BadInput(
                f"a hyperparameter or schedule cannot be given to a joining worker: {error}",
                means="only numbers, strings, lists and None travel; nothing is unpickled",
                do="keep other objects out of param_groups and out of the scheduler's state",
            ) from error

    def _take_rest(self, rest: dict[str, Any]) -> None:
        for group, values in zip(self.optimizer.param_groups, rest["groups"], strict=True):
            for key, value in values.items():
                if isinstance(group.get(key), torch.Tensor):
                    group[key].fill_(value)
                else:
                    group[key] = tuple(value) if isinstance(group.get(key), tuple) else value
        if self.scheduler is not None and rest["schedule"] is not None:
            mine = self.scheduler.state_dict()
            # Functions (LambdaLR's lambdas) are the script's own and equal everywhere; numbers travel.
            travelled = {key: value for key, value in rest["schedule"].items() if value is not None}
            self.scheduler.load_state_dict({**mine, **travelled})

    # -- digests -------------------------------------------------------------------------------------------

    def digest(self, block: int) -> tuple[str, str]:
        """SHA-256 of the values and of the optimizer state of a block, whoever keeps it and however."""
        values, states = hashlib.sha256(), hashlib.sha256()
        values.update(raw_bytes(self.layout.block(self.arena.tensors, block)))
        for piece in self.layout.pieces[block]:
            for key, entry in sorted(self.keeper.piece_state(block, piece).items()):
                states.update(key.encode())
                states.update(raw_bytes(entry) if isinstance(entry, torch.Tensor) else repr(entry).encode())
        return values.hexdigest(), states.hexdigest()


def _number(value: object) -> float | int | None:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.item()
    if callable(value):
        return None
    raise TypeError(f"{type(value).__name__} {value!r}")
