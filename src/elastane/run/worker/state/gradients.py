"""The path of gradients from autograd into the slots: during the backward pass or after it.

Peers wait for the gradients of a worker's last virtual rank, so hooks take these during the backward pass.
Hooks also take large gradients early, because their memory is needed. Else the gradients are taken after the
pass: a call of Python between two matrix products costs more than the addition of a small gradient.

A hook takes a gradient only when nothing more can be added to it. Gradients of backward passes that the
script runs itself, and of backward passes inside a backward pass (``torch.utils.checkpoint`` with
``use_reentrant=True``), accumulate in ``.grad`` until the pass that `Gradients.backward` runs ends.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, TypeAlias

import torch
import xxhash
from torch._guards import CompileContext

from elastane.common.errors import BadInput
from elastane.run.worker.exhaustion import runs_script
from elastane.run.worker.state.divided_tensors import get_local_gradient, is_shard
from elastane.run.worker.state.gradient_groups import BackwardOrder, divide_gradients
from elastane.run.worker.state.gradient_slots import GradientSlots
from elastane.run.worker.state.leaf_writer import LeafWriter, WaitingLeaf
from elastane.run.worker.state.model_layout import ModelLayout
from elastane.run.worker.state.slot_memory import Announce, HostSlots
from elastane.run.worker.state.tensor_bytes import raw_bytes

CONVERSIONS = frozenset(
    {
        *("to", "cpu", "cuda", "float", "double", "half", "bfloat16"),
        *("is_floating_point", "is_complex", "dim", "_has_compatible_shallow_copy_type"),
    }
)
"""Functions that ``Module.to`` and similar methods call on each gradient."""

Hook: TypeAlias = Callable[[torch.Tensor], None]
"""A hook on a parameter, which torch calls after it has added to ``.grad``."""
SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]


class Gradients:
    """Takes the gradients of a worker's backward passes into its slots.

    Args:
        exact: sum in the order of the fixed tree; otherwise add every gradient to one slot on arrival.
        memory: the memory in which gradients are added; None: the arenas that peers read.
    """

    def __init__(self, layout: ModelLayout, *, exact: bool, memory: HostSlots | None = None) -> None:
        self.layout = layout
        self._sources = layout.sources
        self.slots = GradientSlots(layout, memory or HostSlots(layout), exact=exact)
        self._leaf: LeafWriter | WaitingLeaf | None = None
        self._waiting: WaitingLeaf | None = None
        # No peer waits for the sums of this round.
        self._alone = False
        # Peers wait for the gradients of the current virtual rank.
        self._awaited = False
        self._touched: set[int] = set()
        # Autograd's number of the current backward pass, and its stream; None outside a backward pass.
        self._pass: int | None = None
        self._pass_stream: object = None
        # Parameters that had a gradient before the current pass, from passes that the script ran itself.
        self._begun: set[int] = set()
        self._sizes = [parameter.nbytes for parameter in layout.parameters]
        self._bytes = sum(self._sizes)
        self._order = BackwardOrder(self._sizes, self.slots.memory.early_groups)
        self._consumed = ConsumedGradient.make(self._sources)
        # What replaces a gradient that is taken: `ConsumedGradient` in the last virtual rank.
        self._replacements: Sequence[torch.Tensor | None] = self._consumed
        self._nothing = [None] * len(layout.parameters)
        # Parameters that have had a sparse gradient.
        self._sparse: set[int] = set()
        # The digests of the gradients of a virtual rank that a spot check compares, by number.
        self._fingerprints: list[str] | None = None

    @runs_script
    def backward(self, loss: torch.Tensor) -> None:
        """Run the backward pass of the current virtual rank, of a scalar; its gradients go to the slots."""
        if self._leaf is None:
            with self._observe(loss):
                loss.backward()
            if self._fingerprints is not None:
                self._fingerprints = list(self.compute_fingerprints())
                # As in a step: the script must not change gradients.
                self.mark_consumed()
            return
        with self._take_early(loss) if self._are_wanted_early() else nullcontext():
            loss.backward()
        self._take(range(len(self.layout.parameters)))

    def _are_wanted_early(self) -> bool:
        """Return whether hooks take gradients during the backward pass."""
        return self._awaited or not self.slots.memory.can_hold(self._bytes)

    @contextmanager
    def _observe(self, loss: torch.Tensor) -> Iterator[None]:
        """Note the order of gradients in the backward pass of a rehearsal, which delivers nothing."""

        def note(number: int, _parameter: torch.Tensor) -> None:
            self._order.note(
                number,
                nested=_read_current_pass() != self._pass,
                apart=self.slots.memory.get_stream() != self._pass_stream,
            )

        self._order.begin_pass()
        with self._hook(loss, {number: partial(note, number) for number in range(len(self._sizes))}):
            yield
        self._order.end_pass()

    @contextmanager
    def _take_early(self, loss: torch.Tensor) -> Iterator[None]:
        """Take gradients during a backward pass, after hooks that the script has registered."""
        parameters = self._sources
        self._begun = {n for n, parameter in enumerate(parameters) if parameter.grad is not None}
        hooks: dict[int, Hook] = {}
        for group in self._order.plan_groups():
            # Torch refuses a hook on a parameter that the script has frozen.
            last = next((number for number in reversed(group) if parameters[number].requires_grad), None)
            if last is not None:
                hooks[last] = partial(self._take_group, group)
        with self._hook(loss, hooks):
            yield

    @contextmanager
    def _hook(self, loss: torch.Tensor, hooks: Mapping[int, Hook]) -> Iterator[None]:
        """Call hooks when the gradients of parameters, by number, or parts of these are in ``.grad``."""

        def note_pass(_gradient: torch.Tensor) -> None:
            self._pass, self._pass_stream = _read_current_pass(), self.slots.memory.get_stream()

        parameters = self._sources
        handles = [
            parameters[number].register_post_accumulate_grad_hook(hook)
            for number, hook in hooks.items()
            if parameters[number].requires_grad
        ]
        if loss.requires_grad:
            handles.append(loss.register_hook(note_pass))
        try:
            yield
        finally:
            self._pass = None
            for handle in handles:
                handle.remove()

    def forget(self) -> None:
        """Drop gradients that the script computed between the steps."""
        for parameter in self._sources:
            parameter.grad = None

    def mark_consumed(self) -> None:
        """Put a `ConsumedGradient` into each ``.grad``, after the step has used the gradients."""
        for parameter, consumed in zip(self._sources, self._consumed, strict=True):
            parameter.grad = consumed

    def refuse_late_gradients(self) -> None:
        """Refuse a backward pass that the script ran itself after that of the microbatch."""
        for number, parameter in enumerate(self._sources):
            if parameter.grad is not None and parameter.grad is not self._consumed[number]:
                raise _build_late_gradient_error(self.layout.extents[number].name)

    def begin_round(self, size: int, *, alone: bool = False, copied: bool = True) -> None:
        """Forget all sums: the previous round has committed, so no worker reads them.

        Args:
            alone: see `GradientSlots.begin_round`.
            copied: likewise.
        """
        self.slots.begin_round(size, alone=alone, copied=copied)
        self._alone = alone
        self._waiting = None

    # -- one virtual rank ----------------------------------------------------------------------------------

    def begin_check(self) -> None:
        """Begin a virtual rank that is computed for a spot check: nothing is added to sums."""
        self.forget()
        self._fingerprints = [""] * len(self.layout.parameters)

    def end_check(self, buffers: Iterable[torch.Tensor]) -> tuple[str, ...]:
        """End such a virtual rank, and return its fingerprints, as `end_leaf` does.

        Raises:
            BadInput: the script ran its own backward pass after that of the virtual rank.
        """
        self.refuse_late_gradients()
        self.forget()
        return self._take_fingerprints(buffers)

    def begin_leaf(
        self, rank: int, announce: Announce | None, following: int | None = None, *, checked: bool = False
    ) -> None:
        """Begin a virtual rank: the next backward pass belongs to it.

        Args:
            announce: receives blocks as they become final; None: not the worker's last virtual rank.
            following: the virtual rank that this worker computes next; None: not known.
            checked: a spot check compares its gradients.
        """
        self._fingerprints = [""] * len(self.layout.parameters) if checked else None
        self._touched.clear()
        self.forget()
        self.slots.memory.begin_leaf()
        self._awaited = announce is not None and not self._alone
        # The script must not use gradients of any microbatch. Setting stand-ins takes time, so only the last
        # microbatch and those of the rehearsal, which are the first, show that.
        self._replacements = self._nothing if announce is None else self._consumed
        waiting, self._waiting = self._waiting, None
        if self.slots.has_sibling(rank, following):
            self._leaf = self._waiting = WaitingLeaf()
        else:
            self._leaf = LeafWriter(self.slots, rank, announce, waiting)

    def take_differences(self, differences: Iterable[Mapping[int, torch.Tensor]]) -> None:
        """Take what the inner steps of a virtual rank have changed, in place of the gradients of a pass.

        Args:
            differences: parts of those of parameters that had a gradient, by number; each goes to the slots
                before the next one is computed.
        """
        self.forget()
        for part in differences:
            for number, difference in part.items():
                self.layout.parameters[number].grad = difference
            if self._leaf is not None:
                self._take(part)
        if self._leaf is None:
            self._fingerprints = list(self.compute_fingerprints())
            self.forget()

    def compute_fingerprints(self) -> tuple[str, ...]:
        """Return digests of the gradients in ``.grad``, after a backward pass that adds nothing to sums."""
        return tuple(
            _compute_fingerprint(get_local_gradient(parameter, parameter.grad).to_dense())
            if parameter.grad is not None
            else ""
            for parameter in self._sources
        )

    def end_leaf(self, buffers: Iterable[torch.Tensor]) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """End the virtual rank: add zeros for parameters without a gradient, and the changes of buffers.

        Returns:
            The parameters that got no gradient. If a spot check compares this virtual rank, also the digest
            of each parameter's gradient (empty for those parameters), then that of each buffer's change.

        Raises:
            BadInput: the script ran its own backward pass after that of the virtual rank.
        """
        leaf = self._leaf
        assert leaf is not None, "end_leaf follows begin_leaf"
        self.refuse_late_gradients()
        self.slots.memory.wait_for_gradients()
        untouched = tuple(n for n in range(len(self.layout.parameters)) if n not in self._touched)
        for number in untouched:
            leaf.add({number: None})
        changes = list(buffers)
        leaf.finish(changes)
        self.slots.memory.end_leaf(self.slots.lock)
        self._leaf = None
        return untouched, self._take_fingerprints(changes)

    def _take_fingerprints(self, buffers: Iterable[torch.Tensor]) -> tuple[str, ...]:
        found, self._fingerprints = self._fingerprints, None
        return () if found is None else (*found, *map(_compute_fingerprint, buffers))

    def _take_group(self, group: Sequence[int], _parameter: torch.Tensor) -> None:
        """Take the gradients of a group, of which the last one is complete."""
        if _read_current_pass() != self._pass:
            # More can be added to it, and perhaps to the others.
            self._order.in_parts.update(group)
            return
        self._take(number for number in group if number not in self._begun or number == group[-1])

    def _take(self, numbers: Iterable[int]) -> None:
        """Send the complete gradients of these parameters, of those that have one, to a slot.

        Raises:
            BadInput: a parameter has got a gradient after its gradient was taken.
        """
        taken: dict[int, torch.Tensor] = {}
        parameters, consumed, replacements = self._sources, self._consumed, self._replacements
        for number in numbers:
            parameter = parameters[number]
            gradient = parameter.grad
            if gradient is None or gradient is consumed[number]:
                continue
            if number in self._touched:
                # The first part is already in a slot, and its block may be announced to the owner.
                raise _build_late_gradient_error(self.layout.extents[number].name)
            parameter.grad = replacements[number]
            # Sums are dense even for sparse gradients: a block is one slice of memory.
            taken[number] = (
                self._make_dense(number, gradient)
                if gradient.is_sparse
                else get_local_gradient(parameter, gradient)
            )
        if not taken:
            return
        leaf, memory = self._leaf, self.slots.memory
        assert leaf is not None, "only a virtual rank's gradients are delivered"
        self._touched.update(taken)
        if self._fingerprints is not None:
            for number, gradient in taken.items():
                self._fingerprints[number] = _compute_fingerprint(gradient)
        for group in divide_gradients(taken, self._sizes, memory.groups):
            memory.deliver({number: taken[number] for number in group}, leaf.add)

    def _make_dense(self, number: int, gradient: torch.Tensor) -> torch.Tensor:
        self._note_sparse(number)
        return gradient.to_dense()

    def _note_sparse(self, number: int) -> None:
        """Empty ``.grad`` before later gradients: autograd would add a sparse one to the stand-in itself."""
        parameter = self._sources[number]
        if number not in self._sparse and parameter.requires_grad:
            self._sparse.add(number)
            parameter.register_hook(partial(self._empty_gradient, number))

    def _empty_gradient(self, number: int, _gradient: torch.Tensor) -> None:
        """Empty ``.grad`` for a backward pass that the script runs itself."""
        parameter = self._sources[number]
        if parameter.grad is self._consumed[number]:
            parameter.grad = None


def _compute_fingerprint(tensor: torch.Tensor) -> str:
    return xxhash.xxh3_64_hexdigest(raw_bytes(tensor))


def _read_current_pass() -> int:
    """Return autograd's number of the current backward pass; a nested pass has its own."""
    return torch._C._current_graph_task_id()


def _build_late_gradient_error(name: str) -> BadInput:
    return BadInput(
        f"{name} got another gradient after its gradient of this microbatch was complete",
        means="workers sum gradients during the backward pass, so a later part would be lost",
        do="call your own loss.backward() before step.backward(loss), or add the losses; "
        "use torch.utils.checkpoint with use_reentrant=False",
    )


# -- the tensor in ``.grad`` of a trained parameter after the run has taken its gradient -----------------


class ConsumedGradient(torch.Tensor):
    """A stand-in for a gradient that the run has taken; it refuses every use by the script.

    It is sparse and without elements: if the script runs a backward pass of its own, autograd puts a dense
    gradient in its place.
    """

    @classmethod
    def make(cls, parameters: Iterable[torch.Tensor]) -> "list[torch.Tensor | None]":
        """Return a stand-in of each parameter's shape; None for a divided one: torch refuses a stand-in."""
        return [
            None if is_shard(parameter) else torch.Tensor._make_subclass(cls, _make_empty(parameter))
            for parameter in parameters
        ]

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        _types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", str(func))
        # The compiler reads .grad of the parameters that it compiles for, and Module.to converts .grad.
        with torch._C.DisableTorchFunctionSubclass():
            if name in CONVERSIONS or CompileContext.try_get() is not None:
                return func(*args, **(kwargs or {}))
            if func == SET_DATA and args[1].is_sparse:
                return None  # Module.to sets the converted tensor
            if name == "share_memory_":
                return args[0]  # it has no memory
        raise BadInput(
            f"the script used .grad of a trained parameter ({name.strip('_')}), as clip_grad_norm_, "
            "clip_grad_value_, zero_grad and GradScaler.unscale_ do",
            means="the run takes the gradient of each microbatch, sums the gradients of all workers and "
            "steps the optimizer; .grad is empty then, so a change there would have no effect",
            do="to clip, write run.prepare(model, optimizer, clip_grad_norm=1.0); leave zero_grad out; "
            "to change a gradient while it is computed, use parameter.register_hook(function)",
        )


def _make_empty(parameter: torch.Tensor) -> torch.Tensor:
    """Return a sparse tensor of zeros."""
    indices = torch.empty((parameter.dim(), 0), dtype=torch.int64, device=parameter.device)
    values = torch.empty(0, dtype=parameter.dtype, device=parameter.device)
    return torch.sparse_coo_tensor(indices, values, parameter.shape, check_invariants=False)
