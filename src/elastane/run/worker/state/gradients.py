"""The path of gradients from autograd into the slots: during the backward pass or after it.

Peers wait for the gradients of a worker's last virtual rank, so hooks take these during the backward pass.
Hooks also take large gradients early, because their memory is needed. Else the gradients are taken after the
pass: a call of Python between two matrix products costs more than the addition of a small gradient.

A hook takes a gradient only when nothing more can be added to it. Gradients of backward passes that the
script runs itself, and of backward passes inside a backward pass (``torch.utils.checkpoint`` with
``use_reentrant=True``), accumulate in ``.grad`` until the pass that `Gradients.backward` runs ends.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
import xxhash
from torch._guards import CompileContext

from elastane.common.errors import BadInput
from elastane.run.worker.exhaustion import runs_script
from elastane.run.worker.state.gradient_copier import GradientsByNumber
from elastane.run.worker.state.gradient_slots import GradientSlots
from elastane.run.worker.state.leaf_writer import LeafWriter, WaitingLeaf
from elastane.run.worker.state.model_layout import ModelLayout
from elastane.run.worker.state.slot_memory import Announce, HostSlots
from elastane.run.worker.state.tensor_bytes import raw_bytes

SMALL_BYTES = 1 << 18
"""Gradients up to this size wait for others: a call of torch costs more than the addition of a small one."""
TOGETHER = 32
"""The number of small gradients that are added together; so 8 MiB wait at most."""
CONVERSIONS = frozenset(
    {
        *("to", "cpu", "cuda", "float", "double", "half", "bfloat16"),
        *("is_floating_point", "is_complex", "dim", "_has_compatible_shallow_copy_type"),
    }
)
"""Functions that ``Module.to`` and similar methods call on each gradient."""

SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]


class Gradients:
    """Takes the gradients of a worker's backward passes into its slots.

    Args:
        exact: sum in the order of the fixed tree; otherwise add every gradient to one slot on arrival.
        memory: the memory in which gradients are added; None: the arenas that peers read.
    """

    def __init__(self, layout: ModelLayout, *, exact: bool, memory: HostSlots | None = None) -> None:
        self.layout = layout
        self.slots = GradientSlots(layout, memory or HostSlots(layout), exact=exact)
        self._leaf: LeafWriter | WaitingLeaf | None = None
        self._waiting: WaitingLeaf | None = None
        # No peer waits for the sums of this round.
        self._alone = False
        # Peers wait for the gradients of the current virtual rank.
        self._awaited = False
        self._touched: set[int] = set()
        # Small gradients that wait to be added together.
        self._small: dict[int, torch.Tensor] = {}
        # Autograd's number of the current backward pass; None outside a backward pass.
        self._pass: int | None = None
        # Parameters that got their gradients in several parts: in this pass, and in any pass so far.
        self._late: set[int] = set()
        self._in_parts: set[int] = set()
        # In a rehearsal, which delivers nothing: the number of parts of each gradient.
        self._parts: Counter[int] = Counter()
        self._consumed = ConsumedGradient.make(layout.parameters)
        self._bytes = sum(parameter.nbytes for parameter in layout.parameters)
        self._hooks = [self._make_hook(number) for number in range(len(layout.parameters))]
        # Parameters that have had a sparse gradient.
        self._sparse: set[int] = set()
        # The digests of the gradients of a virtual rank that a spot check compares, by number.
        self._fingerprints: list[str] | None = None

    @runs_script
    def backward(self, loss: torch.Tensor, gradient: torch.Tensor | None = None) -> None:
        """Run the backward pass of the current virtual rank; its gradients go to the slots.

        Args:
            loss: a scalar.
            gradient: the gradient of the loss; None: 1.
        """
        self._late.clear()
        with self._take_early(loss) if self._are_wanted_early() else nullcontext():
            loss.backward(gradient)
        if self._leaf is None:
            self._in_parts |= {number for number, parts in self._parts.items() if parts > 1}
            self._parts.clear()
            if self._fingerprints is not None:
                self._fingerprints = list(self.compute_fingerprints())
                # As in a step: the script must not change gradients.
                self.mark_consumed()
            return
        self._in_parts |= self._late
        for number in range(len(self.layout.parameters)):
            self._deliver(number)
        self._add_small()

    def _are_wanted_early(self) -> bool:
        """Return whether hooks take gradients during the backward pass; in a rehearsal they count parts."""
        return self._leaf is None or self._awaited or not self.slots.memory.can_hold(self._bytes)

    @contextmanager
    def _take_early(self, loss: torch.Tensor) -> Iterator[None]:
        """Take gradients during a backward pass, after hooks that the script has registered."""

        def note_pass(_gradient: torch.Tensor) -> None:
            self._pass = _read_current_pass()

        handles = [
            parameter.register_post_accumulate_grad_hook(hook)
            for parameter, hook in zip(self.layout.parameters, self._hooks, strict=True)
            if parameter.requires_grad  # torch refuses a hook on one that the script has frozen
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
        for parameter in self.layout.parameters:
            parameter.grad = None

    def mark_consumed(self) -> None:
        """Put a `ConsumedGradient` into each ``.grad``, after the step has used the gradients."""
        for parameter, consumed in zip(self.layout.parameters, self._consumed, strict=True):
            parameter.grad = consumed

    def refuse_late_gradients(self) -> None:
        """Refuse a backward pass that the script ran itself after that of the microbatch."""
        for number, parameter in enumerate(self.layout.parameters):
            if parameter.grad is not None and parameter.grad is not self._consumed[number]:
                raise _build_late_gradient_error(self.layout.extents[number].name)

    def begin_round(self, size: int, *, alone: bool = False) -> None:
        """Forget all sums: the previous round has committed, so no worker reads them."""
        self.slots.begin_round(size, alone=alone)
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
        self._small = {}
        self.forget()
        self.slots.memory.begin_leaf()
        self._awaited = announce is not None and not self._alone
        waiting, self._waiting = self._waiting, None
        if self.slots.has_sibling(rank, following):
            self._leaf = self._waiting = WaitingLeaf()
        else:
            self._leaf = LeafWriter(self.slots, rank, announce, waiting)

    def compute_fingerprints(self) -> tuple[str, ...]:
        """Return digests of the gradients in ``.grad``, after a backward pass that adds nothing to sums."""
        return tuple(
            _compute_fingerprint(parameter.grad.to_dense()) if parameter.grad is not None else ""
            for parameter in self.layout.parameters
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

    def _make_hook(self, number: int) -> Callable[[torch.Tensor], None]:
        def take_gradient(_parameter: torch.Tensor) -> None:
            if self._leaf is None:
                self._parts[number] += 1
                return
            if number in self._touched:
                # The first part is already in a slot, and its block may be announced to the owner.
                raise _build_late_gradient_error(self.layout.extents[number].name)
            if number in self._in_parts or _read_current_pass() != self._pass:
                self._late.add(number)
            else:
                self._deliver(number)

        return take_gradient

    def _deliver(self, number: int) -> None:
        """Send the complete gradient of a parameter, if it has one, to a slot."""
        parameter, consumed = self.layout.parameters[number], self._consumed[number]
        gradient = parameter.grad
        if gradient is None or gradient is consumed:
            return
        parameter.grad = consumed
        self._touched.add(number)
        # Sums are dense even for sparse gradients: a block is one slice of memory.
        if gradient.is_sparse:
            self._note_sparse(number)
        dense = gradient.to_dense() if gradient.is_sparse else gradient
        if self._fingerprints is not None:
            self._fingerprints[number] = _compute_fingerprint(dense)
        if dense.nbytes > SMALL_BYTES or not self.slots.memory.can_wait():
            self._add({number: dense})
        else:
            self._small[number] = dense
            if len(self._small) >= TOGETHER:
                self._add_small()

    def _note_sparse(self, number: int) -> None:
        """Empty ``.grad`` before later gradients: autograd would add a sparse one to the stand-in itself."""
        parameter = self.layout.parameters[number]
        if number not in self._sparse and parameter.requires_grad:
            self._sparse.add(number)
            parameter.register_hook(partial(self._empty_gradient, number))

    def _empty_gradient(self, number: int, _gradient: torch.Tensor) -> None:
        """Empty ``.grad`` for a backward pass that the script runs itself."""
        parameter = self.layout.parameters[number]
        if parameter.grad is self._consumed[number]:
            parameter.grad = None

    def _add_small(self) -> None:
        small, self._small = self._small, {}
        if small:
            self._add(small)

    def _add(self, gradients: GradientsByNumber) -> None:
        assert self._leaf is not None, "only a virtual rank's gradients are delivered"
        self.slots.memory.deliver(gradients, self._leaf.add)


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
    def make(cls, parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Return a stand-in of each parameter's shape."""
        return [torch.Tensor._make_subclass(cls, _make_empty(parameter)) for parameter in parameters]

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
