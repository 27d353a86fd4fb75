"""The training state of a worker: values, buffers, optimizer state, schedules.

Units of it move between workers; digests cover its blocks.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from elastane.common.errors import BadInput
from elastane.run.checkpoints.rectangles import Box
from elastane.run.nouns.records import Digest
from elastane.run.protocol.layout import REPLICATED_BLOCK
from elastane.run.protocol.messages import RoundOutcome
from elastane.run.worker.gangs.data_place import DataPlace
from elastane.run.worker.links.frames import Buffer, Payload
from elastane.run.worker.state.auxiliary_modules import AuxiliaryModules
from elastane.run.worker.state.change_detector import digest_tensor
from elastane.run.worker.state.committed_buffers import CommittedBuffers
from elastane.run.worker.state.divided_tensors import count_changes, get_local
from elastane.run.worker.state.inner_optimizer import InnerOptimizer
from elastane.run.worker.state.loss_scaling import LossScaling
from elastane.run.worker.state.model_layout import ModelLayout
from elastane.run.worker.state.optimizer_guard import OptimizerGuard
from elastane.run.worker.state.optimizer_shards import OptimizerShards
from elastane.run.worker.state.payload import pack_state, unpack_state
from elastane.run.worker.state.placement import Placement
from elastane.run.worker.state.replicated_state import ReplicatedState
from elastane.run.worker.state.row_sums import update_digest
from elastane.run.worker.state.run_keep import RunKeep
from elastane.run.worker.state.sharded_optimizer import ShardedOptimizer
from elastane.run.worker.state.shared_memory import Arena
from elastane.run.worker.state.slot_memory import Sections
from elastane.run.worker.state.whole_optimizer import WholeOptimizer

OBSERVER = "activation_post_process"
"""The module with which quantization in torch watches values."""


class ModelShards(Protocol):
    """The shards of a divided model; see `local_shards.LocalShards`."""

    def place(self, places: Iterable[tuple[nn.Parameter, torch.Tensor]]) -> None: ...
    def reshard(self) -> None: ...
    def find_boxes(self, parameter: torch.Tensor) -> Sequence[Box]: ...
    def list_copies(self) -> Iterator[tuple[str, torch.Tensor]]: ...
    def describe(self) -> str: ...
    def check_data(self, places: Sequence[DataPlace]) -> None: ...


class TrainingState:
    """The state of one worker's copy of the run.

    A unit is a parameter if every worker holds all state, and a block if the state is sharded. The last unit
    is the replicated state.

    Args:
        model: the model; its parameters move, in place, into the memory of the placement.
        scheduler: the user's schedule; the run steps it once after every training step, unless the step
            needs a metric.
        copies: the number of copies of the optimizer state; None: a copy on every worker.
        scaling: the scaling of the loss; None: gradients are not scaled.
        keep: the values in ``run.keep``.
        shards: of a model that is divided among the processes of the worker; None: it is not divided.
        inner: the script's optimizer and what belongs to it, in a run of rounds: there ``optimizer`` is the
            outer one. None: ``optimizer`` is the script's.

    Attributes:
        gather_tensor: returns the whole of a tensor of a divided model, after the scripts have ended; None:
            the model is not divided.
        frozen: the parts of frozen parameters that this process has, in host memory; None: it has none.
        replicated: the state outside the blocks, which every worker holds.
        guard: refuses optimizer steps by the script.
        auxiliary_modules: modules that the script uses beside the model.
        tokenizer: the tokenizer of the model; its files are written beside the model. None: it has none.
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
        scaling: LossScaling | None = None,
        keep: RunKeep | None = None,
        shards: ModelShards | None = None,
        inner: InnerOptimizer | None = None,
    ) -> None:
        self.model = model
        self.inner = inner
        self.script_optimizer = optimizer if inner is None else inner.optimizer
        self._shards = shards
        # Threads that write checkpoints cannot ask a divided model: FSDP moves its parameters for an answer.
        self._names = None if shards is None else tuple(model.state_dict())
        self._aliases = None if shards is None else find_aliases(model)
        self.gather_tensor: Callable[[torch.Tensor], torch.Tensor] | None = None
        self.copies = copies
        self.layout = layout
        self.scaling = scaling
        self.keep = RunKeep() if keep is None else keep
        self.optimizer = optimizer
        self.placement = placement
        self.tokenizer: Any = None
        self.arena = placement.arena
        self._move_parameters()
        self.frozen = self._move_frozen() if layout.frozen_extents else None
        self.buffers = CommittedBuffers(layout, placement)
        self.shards: OptimizerShards = (
            WholeOptimizer(optimizer, layout)
            if copies is None
            else ShardedOptimizer(optimizer, layout, placement.values)
        )
        self.units = self.shards.units + 1
        self.guard = OptimizerGuard(
            self.script_optimizer, lambda other: any(value is other for value in self.keep.values()), model
        )
        own = () if inner is None or inner.averaged is None else (inner.averaged.module,)
        self.auxiliary_modules = AuxiliaryModules(
            model, lambda: (value for value in (*own, *self.keep.values()) if isinstance(value, nn.Module))
        )
        self.replicated = ReplicatedState(
            model,
            optimizer,
            layout,
            scheduler=scheduler,
            scaling=scaling,
            keep=self.keep,
            inner=None if inner is None else inner.optimizer,
        )

    def _move_parameters(self) -> None:
        with torch.no_grad():
            for parameter, extent in zip(self.layout.parameters, self.layout.extents, strict=True):
                view = extent.view(self.placement.values)
                view.copy_(parameter)
                parameter.data = view
            if self._shards is not None:
                values, extents = self.placement.values, self.layout.extents
                flat = (values[extent.section][extent.start :] for extent in extents)
                self._shards.place(zip(self.layout.parameters, flat, strict=True))
            self.placement.mark_changed(range(len(self.layout.blocks)))
            if self.inner is not None:
                self.placement.commit_values()

    @torch.no_grad()
    def _move_frozen(self) -> Arena:
        """Move the parts of frozen parameters, one by one, to memory of the placement.

        Returns:
            The arena in which other processes can read them.
        """
        layout = self.layout
        arena = Arena("frozen", layout.frozen_sections)
        sections = self.placement.allocate_frozen(arena)

        def copy_parts() -> Iterator[tuple[nn.Parameter, torch.Tensor]]:
            for parameter, extent in zip(layout.divided_frozen, layout.frozen_extents, strict=True):
                part = get_local(parameter)
                extent.view(arena.tensors).copy_(part)
                if sections is not arena.tensors:
                    extent.view(sections).copy_(part)
                yield parameter, sections[extent.section][extent.start :]

        self.get_shards().place(copy_parts())
        return arena

    def read_stored(self) -> Mapping[str, torch.Tensor]:
        """Return the tensors that a file of the model has; of a divided model only those outside blocks."""
        if self._names is None:
            return self.model.state_dict()
        untrained = self.replicated.untrained.find_tensors()
        return {name: untrained[name] for name in self._names if name in untrained}

    def list_names(self) -> tuple[str, ...]:
        """Return the names of the tensors that a file of the model has, in its order."""
        return tuple(self.model.state_dict()) if self._names is None else self._names

    def find_aliases(self) -> dict[str, str]:
        """Return the second names of tied tensors, each with the name under which a file has the tensor."""
        return find_aliases(self.model) if self._aliases is None else self._aliases

    def snapshot(self) -> Callable[[], None]:
        """Copy values, buffers and replicated state; return a function that restores them."""
        copies = [section.clone() for section in self.placement.values]
        committed = [buffer.clone() for buffer in self.buffers.tensors]
        described, tensors = self.replicated.describe()
        tensors = {name: tensor.clone() for name, tensor in tensors.items()}

        @torch.no_grad()
        def restore() -> None:
            for section, copied in zip(self.placement.values, copies, strict=True):
                section.copy_(copied)
            for buffer, copied in zip(self.buffers.tensors, committed, strict=True):
                buffer.copy_(copied)
            self.buffers.restore()
            self.replicated.load(described, tensors)
            # The round has begun, so the reactor thread may be reading.
            self.placement.synchronize()

        return restore

    # -- between two steps -----------------------------------------------------------------------------------

    @torch.no_grad()
    def adopt_changes(self, *, first: bool, begins: bool, receives: bool = False) -> None:
        """Add the changes that the script made since the last step to the state.

        Args:
            first: this process has made no step yet; until then every worker runs the same code.
            begins: the run begins with this worker, which searches for objects that joiners would lack.
            receives: state of the run may be arriving, which replaces that of the script.

        Raises:
            BadInput: the script made a change that a run does not support.
        """
        self.forget_gathered()
        self.layout.check_unchanged(self.script_optimizer, self.placement.values)
        changed = [] if first else self.replicated.untrained.find_changed(caches=True)
        if first:
            self.replicated.caches.renew()
        else:
            self.replicated.caches.begin_step(changed)
        self.replicated.remember_flags(first=first)
        if not first:
            self.replicated.check_schedule()
        elif begins:
            self.auxiliary_modules.find()
            self.replicated.check_schedules_known()
        if self._shards is not None:
            self.replicated.untrained.check_undivided(changed)
        self.buffers.commit()
        self.replicated.untrained.changed.update(changed)
        self.replicated.untrained.remember()
        if receives:
            self.placement.mark_writes()
            return
        # Peers may have read the values of the optimizer, and `.data` has no counter of changes.
        self.placement.mark_changed(range(len(self.layout.blocks)))
        if self.inner is not None:
            self.placement.commit_values()
            self.replicated.keep_plain()

    def open_to_script(self) -> None:
        """Show the script the state after the step; its changes from now on are between two steps.

        Raises:
            BadInput: the script changed something inside the step.
        """
        # Some of the buffers may have come from other workers.
        self.buffers.restore()
        self.replicated.remember_schedule()
        self.replicated.caches.end_step()
        self.replicated.remember_values()
        changed = self.replicated.untrained.find_changed(caches=False)
        if changed:
            raise build_inside_step_error(changed[0])
        self.replicated.untrained.remember()
        self.auxiliary_modules.check()

    def get_shards(self) -> ModelShards:
        """Return the shards of a divided model."""
        assert self._shards is not None, "only a divided model has shards"
        return self._shards

    def digest_copies(self) -> dict[str, str]:
        """Return digests of what other processes of the worker have too, by names that all of them use."""
        if self._shards is None:
            return {}
        return {name: digest_tensor(tensor) for name, tensor in self._shards.list_copies()}

    def forget_gathered(self) -> None:
        """Let a divided model gather its values anew: some may have come from peers since."""
        if self._shards is not None:
            self._shards.reshard()

    def read_versions(self) -> list[int]:
        """Return autograd's counts of in-place changes of tensors that must not change inside a step."""
        counts = [count_changes(source) for source in self.layout.sources]
        return counts + [tensor._version for tensor in self.keep.list_tensors()]

    def check_versions(self, before: list[int]) -> None:
        """Check that a microbatch changed nothing in place.

        Args:
            before: `read_versions` before the microbatch.

        Raises:
            BadInput: the microbatch changed a tensor that must not change inside a step.
        """
        after = self.read_versions()
        if after != before:
            changed = next(n for n, (old, new) in enumerate(zip(before, after, strict=True)) if old != new)
            extents = self.layout.extents
            raise build_inside_step_error(
                extents[changed].name if changed < len(extents) else "a tensor in run.keep"
            )

    def digest_content(self) -> dict[str, str]:
        """Return digests of parameters and of kept tensors: `read_versions` misses changes of ``.data``."""
        names = [extent.name for extent in self.layout.extents]
        parameters = dict(zip(names, map(get_local, self.layout.sources), strict=True))
        keep_tensors = {
            f"run.keep {number}": tensor for number, tensor in enumerate(self.keep.list_tensors())
        }
        digests = {name: digest_tensor(tensor) for name, tensor in (parameters | keep_tensors).items()}
        return digests | self.replicated.untrained.digest_tensors()

    # -- the rehearsal ----------------------------------------------------------------------------------

    @torch.no_grad()
    def rehearse(self, spare: tuple[torch.Tensor, ...]) -> None:
        """Run the optimizer once without effect, to warm its code up and allocate its memory.

        Args:
            spare: sections of an unused arena, all zeros; they are zeros again afterwards.
        """
        if isinstance(self.shards, WholeOptimizer):
            with self.guard.allow_steps():
                self.shards.rehearse(self.placement.values, self.placement.allocate_sums(spare))
            self.placement.mark_writes()
        if self.inner is not None:
            with self.guard.allow_steps():
                self.inner.rehearse()
            self.buffers.restore()

    # -- a committed step ----------------------------------------------------------------------------------

    @torch.no_grad()
    def apply(
        self,
        outcome: RoundOutcome,
        sums: tuple[torch.Tensor, ...],
        held: frozenset[int],
        *,
        scale: float,
        virtual_ranks: int,
        skipped: bool = False,
        schedule_steps: int = 1,
    ) -> None:
        """Run the optimizer on the units held.

        Args:
            sums: sections of the summed gradients.
            held: units to update.
            scale: the factor of every gradient (from clipping, weights and the scaler).
            virtual_ranks: the number of virtual ranks with samples; buffers take the mean of their changes.
            skipped: the optimizer does not run, because the gradient overflowed. Buffers and the schedule go
                on, as they do in a loop with a ``GradScaler``.
            schedule_steps: the steps of the schedule.
        """
        self.replicated.drop_plain()
        if self.inner is not None and self.inner.delayed:
            begun = self.arena.tensors[: self.layout.parameter_sections]
            self.replicated.keep_beginning(None if self.inner.drains else begun)
        if skipped:
            self.shards.skip(held)
        else:
            untouched = frozenset(outcome.untouched)
            gradients = self.placement.place_sums(sums, self.shards.list_blocks(held))
            with self.guard.allow_steps():
                self.shards.apply(gradients, held, untouched, scale)
            self.placement.mark_changed(self.shards.list_blocks(held))
        blocks = range(len(self.layout.blocks))
        held_buffers = [
            block
            for block in blocks
            if self.layout.is_buffers(block) and self.shards.holds_buffers(block, held)
        ]
        self.buffers.apply(sums, held_buffers, virtual_ranks)
        if self.scaling is not None:
            self.scaling.update(overflowed=skipped)
        # Otherwise schedulers, including those of the script, warn that the optimizer has not stepped.
        self.script_optimizer._opt_called = True  # type: ignore[attr-defined]
        self.replicated.step_schedule(schedule_steps)

    # -- moving --------------------------------------------------------------------------------------------

    def update_arena(self, units: Iterable[int]) -> None:
        """Copy the values of these units to the arena; call this before anything reads them there."""
        with self.placement.use_side_stream():
            self.placement.update_arena(self.shards.list_blocks(units))

    def update_model(self, unit: int) -> None:
        """Copy the new values of a unit from the arena to the model."""
        with self.placement.use_side_stream():
            self.placement.update_model(partial(self.view_values, unit))

    def settle_values(self) -> None:
        """Wait until the optimizer has computed all new values, which peers then read on the device."""
        with self.placement.use_side_stream():
            self.placement.synchronize()

    def store_values(self, unit: int, values: torch.Tensor) -> None:
        """Store the values that a unit has on a peer."""
        view = partial(self.view_values, unit)
        with self.placement.use_side_stream():
            view(self.placement.received).copy_(values)
            self.placement.end_receipt(view, self.shards.list_blocks((unit,)))

    def pack(self, values: Iterable[int], states: Iterable[int]) -> list[Buffer]:
        """Pack the values of some units and the optimizer state of others."""
        values = tuple(values)
        self.update_arena(values)
        tensors: dict[str, torch.Tensor] = {}
        plain: dict[str, Any] = {}
        for unit in values:
            if unit == self.units - 1:
                plain["rest"], extra = self.replicated.describe()
                tensors |= {f"extra/{name}": tensor for name, tensor in extra.items()}
                if self.copies is None:
                    # With shards, buffers are in blocks like all values.
                    tensors |= {f"buffer/{i}": buffer for i, buffer in enumerate(self.buffers.tensors)}
            else:
                tensors[f"value/{unit}"] = self.view_values(unit, self.arena.tensors)
        for unit in states:
            if unit != self.units - 1:
                for key, entry in self.shards.read_state(unit).items():
                    if isinstance(entry, torch.Tensor):
                        # An optimizer on a device may have a counter on the host, which must stay there.
                        kind = "state" if entry.device == self.layout.device else "host"
                        tensors[f"{kind}/{unit}/{key}"] = entry.contiguous()
                    else:
                        plain[f"state/{unit}/{key}"] = entry
        with self.placement.use_side_stream():
            return pack_state(tensors, plain)

    @torch.no_grad()
    def unpack(self, payload: Payload) -> None:
        """Load the payload that another worker made with `pack`."""
        tensors, plain = unpack_state(payload)
        states: dict[int, dict[str, Any]] = {}
        # Copies, because the replicated state holds some of them and the payload is freed.
        extra = {
            key.removeprefix("extra/"): tensors.pop(key).clone()
            for key in [*tensors]
            if key.startswith("extra/")
        }
        for key, entry in (*tensors.items(), *plain.items()):
            kind, *path = key.split("/", 2)
            if kind == "value":
                self.store_values(int(path[0]), entry)
            elif kind == "buffer":
                self.buffers.tensors[int(path[0])].copy_(entry)
            elif kind in ("state", "host"):
                states.setdefault(int(path[0]), {})[path[1]] = self._move_to_device(entry, kind)
            else:
                self.replicated.load(entry, extra)
        with self.placement.use_side_stream():
            for unit, state in states.items():
                self.shards.set_state(unit, state)
            self.placement.synchronize()

    def _move_to_device(self, entry: object, kind: str) -> object:
        """Return an entry of the optimizer's state on the kind of device that it has at the sender."""
        if not isinstance(entry, torch.Tensor) or kind == "host":
            return entry
        with self.placement.use_side_stream():
            return entry.to(self.layout.device)

    @property
    def nbytes(self) -> int:
        """An estimate of the state in bytes: values, and twice as much optimizer state, as with Adam."""
        return sum(section.nbytes for section in self.layout.sections) + sum(self.shards.unit_bytes)

    def view_values(self, unit: int, tensors: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Return the values of a unit, 1-D, in an arena of this layout."""
        return self.shards.view_values(unit, tensors)

    # -- digests -------------------------------------------------------------------------------------------

    def digest(self, block: int) -> tuple[str, str]:
        """Return the digests of a block's values and of its optimizer state; equal on all its holders.

        They are computed where the state is, see `elastane.run.worker.state.row_sums`.
        """
        values, states = hashlib.sha256(), hashlib.sha256()
        with self.placement.use_side_stream():
            update_digest(values, self.layout.view_block(self._find_committed(block), block))
            for piece in self.layout.pieces[block]:
                for key, entry in sorted(self.shards.read_piece_state(block, piece).items()):
                    states.update(key.encode())
                    if isinstance(entry, torch.Tensor):
                        update_digest(states, entry)
                    else:
                        states.update(repr(entry).encode())
        return values.hexdigest(), states.hexdigest()

    def _find_committed(self, block: int) -> Sections:
        """Return the sections with the values of a block after the last commit, where that costs no copy."""
        if self.inner is None:
            return self.placement.values
        # Inner steps change the values of the model meanwhile.
        self.placement.update_arena((block,))
        return self.arena.tensors


def find_aliases(model: nn.Module) -> dict[str, str]:
    """Return the second names of tied parameters, each with the first one."""
    first = {id(p): name for name, p in model.named_parameters()}
    parameters = model.named_parameters(remove_duplicate=False)
    return {name: first[id(p)] for name, p in parameters if first[id(p)] != name}


def build_inside_step_error(name: str) -> BadInput:
    """Return the error for a change that other workers do not make in the same way."""
    do = "change it after the inner loop, between two steps; initialise it from data before run.prepare"
    if OBSERVER in name.split("."):
        do = (
            "show the observers of the quantization some data before run.prepare, then switch them off: "
            "model.apply(torch.ao.quantization.disable_observer); the training still rounds as they have set"
        )
    return BadInput(
        f"{name} was changed inside a step",
        means="each worker runs the inner loop for different microbatches, so the changes would differ",
        do=do,
    )


def combine_digests(blocks: Mapping[int, tuple[str, str]]) -> Digest:
    """Combine the digests of all blocks and of the state outside them into the digest of the whole state.

    See `TrainingState.digest` and `ReplicatedState.digest`.
    """
    pairs = [blocks[block] for block in sorted(blocks.keys() - {REPLICATED_BLOCK})]
    values, states = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    replicated = blocks.get(REPLICATED_BLOCK, ("", ""))
    return Digest(
        parameters=hashlib.sha256("".join([*values, replicated[0]]).encode()).hexdigest(),
        optimizer=hashlib.sha256("".join([*states, replicated[1]]).encode()).hexdigest(),
        parameter_blocks=tuple(value[:16] for value in values),
        optimizer_blocks=tuple(value[:16] for value in states),
    )
