"""The optimizer that averages gradients over all processes before each step."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from elastane.common.errors import BadInput
from elastane.integrations.horovod.collectives import Average, Handle, ReduceOp, allreduce_async_, check_op
from elastane.integrations.horovod.compression import Compression, NoneCompressor
from elastane.integrations.horovod.world import size

BUCKET_BYTES = 25 * 2**20
"""Gradients travel in buckets of about this size, as in DDP: a message for each tensor would cost more."""


def DistributedOptimizer(  # noqa: N802 - scripts call it by this name
    optimizer: Optimizer,
    named_parameters: Iterable[tuple[str, nn.Parameter]] | None = None,
    compression: type[NoneCompressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: object = None,
    sparse_as_dense: bool = False,
    process_set: object = None,
) -> Optimizer:
    """Return an optimizer with the groups and the state of another; its steps average gradients first.

    Args:
        optimizer: of ``torch.optim``, or derived from it.
        named_parameters: those of the model; checked for repeated names and missing parameters.
        compression: of gradients while they travel.
        backward_passes_per_step: before each step; their gradients add up.
        op: `Average` or `Sum`.
        gradient_predivide_factor: divides gradients before the exchange, and multiplies their average.
        num_groups: for Horovod, how many messages the gradients form; here their size decides.
        groups: likewise.
        sparse_as_dense: sparse gradients become dense.
        process_set: None: all processes.

    Raises:
        BadInput: the arguments contradict each other, or name a part of the processes.
    """
    check_op(op)
    if process_set is not None:
        raise BadInput(
            "hvd.DistributedOptimizer got a process_set",
            means="elastane.integrations.horovod averages gradients over all processes",
            do="omit process_set",
        )
    if backward_passes_per_step < 1:
        raise BadInput(f"backward_passes_per_step {backward_passes_per_step} is below 1", do="use 1 or more")
    if gradient_predivide_factor != 1.0 and op is not Average:
        raise BadInput("gradient_predivide_factor needs op=hvd.Average", do="omit one of the two")
    if named_parameters is not None:
        _check_names(optimizer, list(named_parameters))
    base = type(optimizer)
    distributed: Any = type(base.__name__, (_AveragingOptimizer, base), {})
    made = distributed.__new__(distributed)
    # The new optimizer shares groups, state and hooks with the given one. A step that a schedule has put into
    # the given one would skip the exchange.
    made.__dict__.update({name: value for name, value in vars(optimizer).items() if name != "step"})
    made.begin_averaging(_GradientAverage(compression, op, gradient_predivide_factor, sparse_as_dense))
    return made  # type: ignore[no-any-return]


class _GradientAverage:
    """The exchange of all gradients of an optimizer."""

    def __init__(
        self, compression: type[NoneCompressor], op: ReduceOp, predivide: float, sparse_as_dense: bool
    ) -> None:
        self._compression, self._op = compression, op
        self._predivide, self._sparse_as_dense = predivide, sparse_as_dense

    def exchange(self, parameters: list[nn.Parameter]) -> None:
        """Replace each gradient by the average over all processes."""
        if size() == 1:
            return
        for parameter in parameters:
            if parameter.grad is None:
                # Another process may have a gradient of it, and all must exchange the same tensors.
                parameter.grad = torch.zeros_like(parameter)
            elif parameter.grad.is_sparse:
                parameter.grad = self._densify(parameter.grad)
        begun = [self._begin(bucket) for bucket in _fill_buckets([p.grad for p in parameters])]
        for bucket, sent, handle in begun:
            self._finish(bucket, sent, handle)

    def _densify(self, gradient: Tensor) -> Tensor:
        if not self._sparse_as_dense:
            raise BadInput(
                "a gradient is sparse",
                means="elastane.integrations.horovod exchanges dense tensors",
                do="pass sparse_as_dense=True to hvd.DistributedOptimizer",
            )
        return gradient.to_dense()

    def _begin(self, bucket: list[Tensor]) -> tuple[list[Tensor], Tensor, Handle]:
        flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
        sent, _ = self._compression.compress(flat)
        handle = allreduce_async_(
            sent, op=self._op, prescale_factor=1 / self._predivide, postscale_factor=self._predivide
        )
        return bucket, sent, handle

    def _finish(self, bucket: list[Tensor], sent: Tensor, handle: Handle) -> None:
        handle.wait()
        flat = self._compression.decompress(sent, bucket[0].dtype)
        begin = 0
        for gradient in bucket:
            end = begin + gradient.numel()
            gradient.copy_(flat[begin:end].view_as(gradient))
            begin = end


class _AveragingOptimizer(Optimizer):
    """Averages gradients over all processes before each step; mixed into the class of the given optimizer."""

    def begin_averaging(self, average: _GradientAverage) -> None:
        self._average, self._averages_in_step, self._averaged = average, True, False

    def synchronize(self) -> None:
        """Average the gradients now, for example to clip them before the step."""
        parameters = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        self._average.exchange(parameters)
        self._averaged = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Let `step` leave the gradients alone, because `synchronize` was called."""
        self._averages_in_step = False
        try:
            yield
        finally:
            self._averages_in_step = True

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Average the gradients unless `skip_synchronize` says otherwise, and make a step."""
        if self._averages_in_step:
            self.synchronize()
        self._averaged = False
        return super().step(closure)


def _fill_buckets(gradients: list[Tensor | None]) -> Iterator[list[Tensor]]:
    """Yield gradients of one type and device together, in order, up to a bucket's size."""
    buckets: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    filled: dict[tuple[torch.dtype, torch.device], int] = {}
    for gradient in gradients:
        assert gradient is not None, "missing gradients were replaced by zeros"
        kind = gradient.dtype, gradient.device
        buckets.setdefault(kind, []).append(gradient)
        filled[kind] = filled.get(kind, 0) + gradient.nbytes
        if filled[kind] >= BUCKET_BYTES:
            yield buckets.pop(kind)
            filled[kind] = 0
    yield from buckets.values()


def _check_names(optimizer: Optimizer, named: list[tuple[str, nn.Parameter]]) -> None:
    names = [name for name, _ in named]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise BadInput(
            f"named_parameters has {', '.join(repeated)} more than once",
            do="pass model.named_parameters(); prefix the names of several models",
        )
    known = {id(parameter) for _, parameter in named}
    missing = sum(id(p) not in known for group in optimizer.param_groups for p in group["params"])
    if missing:
        raise BadInput(
            f"named_parameters lacks {missing} parameters of the optimizer",
            do="pass the named_parameters() of every model that it trains",
        )
