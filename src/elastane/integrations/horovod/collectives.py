"""The exchanges of tensors: allreduce, allgather and broadcast, each also asynchronous.

Each raises `HorovodInternalError` after the end of another process.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from elastane.common.errors import BadInput
from elastane.integrations.horovod.compression import Compression, NoneCompressor
from elastane.integrations.horovod.world import HorovodInternalError, rank, size


class ReduceOp(NamedTuple):
    """An operation of an allreduce, by its name in Horovod."""

    name: str


Average, Sum, Adasum = ReduceOp("Average"), ReduceOp("Sum"), ReduceOp("Adasum")
Min, Max, Product = ReduceOp("Min"), ReduceOp("Max"), ReduceOp("Product")
_IN_TORCH = {
    Average: dist.ReduceOp.SUM,
    Sum: dist.ReduceOp.SUM,
    Min: dist.ReduceOp.MIN,
    Max: dist.ReduceOp.MAX,
    Product: dist.ReduceOp.PRODUCT,
}


class Handle:
    """An exchange under way; `synchronize` waits for its result.

    Args:
        works: its parts in torch.
        finish: makes the result once all parts have ended.
    """

    def __init__(self, works: Sequence[dist.Work], finish: Callable[[], Tensor]) -> None:
        self._works, self._finish = list(works), finish

    def is_done(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def wait(self) -> Tensor:
        """Return the result.

        Raises:
            HorovodInternalError: another process has ended.
        """
        with translate_failures():
            for work in self._works:
                work.wait()
        self._works = []
        return self._finish()


@contextmanager
def translate_failures() -> Iterator[None]:
    """Raise `HorovodInternalError` for an exchange that fails because another process has ended.

    Raises:
        HorovodInternalError: the exchange failed.
    """
    try:
        yield
    # torch has no narrower type: Gloo raises RuntimeError, and DistBackendError derives from it.
    except RuntimeError as error:
        raise HorovodInternalError(str(error)) from error


def poll(handle: Handle) -> bool:
    """Return whether an exchange has ended, so that `synchronize` does not wait."""
    return handle.is_done()


def synchronize(handle: Handle) -> Tensor:
    """Wait for an exchange and return its result."""
    return handle.wait()


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[NoneCompressor] = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Return the average, or another combination, of the tensors of all processes.

    Args:
        tensor: of any shape, the same in all processes.
        average: False: the sum; the older form of ``op``.
        name: accepted for Horovod's sake: exchanges match by their order.
        compression: of the tensor while it travels.
        op: `Average` (default), `Sum`, `Min`, `Max` or `Product`.
        prescale_factor: multiplies the tensor before the exchange.
        postscale_factor: multiplies the result.

    Raises:
        BadInput: the operation is not supported.
    """
    sent, dtype = compression.compress(tensor)
    copy = sent.clone()
    reduced = _begin_allreduce(copy, _choose_op(average, op), prescale_factor, postscale_factor).wait()
    return compression.decompress(reduced, dtype)


def allreduce_async(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Begin an `allreduce` into a new tensor."""
    return _begin_allreduce(tensor.clone(), _choose_op(average, op), prescale_factor, postscale_factor)


def allreduce_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Reduce a tensor in place; see `allreduce`."""
    return allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor).wait()


def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Begin an `allreduce` in place."""
    return _begin_allreduce(tensor, _choose_op(average, op), prescale_factor, postscale_factor)


def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
) -> list[Tensor]:
    """Return the results of an `allreduce` of each tensor."""
    handles = [allreduce_async(tensor, average, name, op) for tensor in tensors]
    return [handle.wait() for handle in handles]


def grouped_allreduce_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
) -> list[Tensor]:
    """Reduce each tensor in place; see `allreduce`."""
    handles = [allreduce_async_(tensor, average, name, op) for tensor in tensors]
    return [handle.wait() for handle in handles]


def broadcast(tensor: Tensor, root_rank: int, name: str | None = None) -> Tensor:
    """Return the tensor of one process."""
    return broadcast_async_(tensor.clone(), root_rank, name).wait()


def broadcast_(tensor: Tensor, root_rank: int, name: str | None = None) -> Tensor:
    """Replace the content of a tensor by that of one process; see `broadcast`."""
    return broadcast_async_(tensor, root_rank, name).wait()


def broadcast_async(tensor: Tensor, root_rank: int, name: str | None = None) -> Handle:
    """Begin a `broadcast` into a new tensor."""
    return broadcast_async_(tensor.clone(), root_rank, name)


def broadcast_async_(tensor: Tensor, root_rank: int, name: str | None = None) -> Handle:
    """Begin a `broadcast` in place."""
    _check_root(root_rank)
    if size() == 1:
        return Handle((), lambda: tensor)
    held = tensor.detach().contiguous()

    def finish() -> Tensor:
        if held.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(held)
        return tensor

    with translate_failures():
        return Handle([_require_work(dist.broadcast(held, src=root_rank, async_op=True))], finish)


def allgather(tensor: Tensor, name: str | None = None) -> Tensor:
    """Return the tensors of all processes, joined along the first dimension, in the order of ranks.

    Args:
        tensor: of at least one dimension; the first may differ between processes.
        name: accepted for Horovod's sake: exchanges match by their order.

    Raises:
        BadInput: the tensor has no dimension.
    """
    return allgather_async(tensor, name).wait()


def allgather_async(tensor: Tensor, name: str | None = None) -> Handle:
    """Begin an `allgather`."""
    if tensor.dim() == 0:
        raise BadInput(
            "hvd.allgather got a tensor without dimensions",
            means="the tensors of all processes are joined along their first dimension",
            do="use tensor.reshape(1)",
        )
    if size() == 1:
        copy = tensor.clone()
        return Handle((), lambda: copy)
    own = tensor.detach().contiguous()
    with translate_failures():
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(size())]
        dist.all_gather(lengths, torch.tensor([own.shape[0]]))
        # Gloo gathers tensors of one shape only.
        most = max(int(length) for length in lengths)
        padded = own.new_zeros((most, *own.shape[1:]))
        padded[: own.shape[0]] = own
        parts = [torch.empty_like(padded) for _ in range(size())]
        work = _require_work(dist.all_gather(parts, padded, async_op=True))
    return Handle([work], lambda: torch.cat([part[: int(n)] for part, n in zip(parts, lengths, strict=True)]))


def grouped_allgather(tensors: Sequence[Tensor], name: str | None = None) -> list[Tensor]:
    """Return the results of an `allgather` of each tensor."""
    handles = [allgather_async(tensor, name) for tensor in tensors]
    return [handle.wait() for handle in handles]


def reducescatter(
    tensor: Tensor,
    name: str | None = None,
    compression: type[NoneCompressor] = Compression.none,
    op: ReduceOp = Average,
) -> Tensor:
    """Return the part of an `allreduce` that belongs to this process.

    The result is cut along the first dimension, one part for each process; the first ones have a row more if
    the number of rows does not divide.

    Args:
        tensor: of at least one dimension, of the same shape in all processes.
        name: accepted for Horovod's sake: exchanges match by their order.
        compression: of the tensor while it travels.
        op: `Average` or `Sum`.

    Raises:
        BadInput: the tensor has no dimension, or the operation is not supported.
    """
    if tensor.dim() == 0:
        raise BadInput(
            "hvd.reducescatter got a tensor without dimensions",
            means="the result is cut along the first dimension",
            do="use hvd.allreduce",
        )
    reduced = allreduce(tensor, compression=compression, op=op)
    return reduced.tensor_split(size())[rank()].clone()


def barrier() -> None:
    """Wait until all processes have arrived here."""
    if size() > 1:
        with translate_failures():
            dist.barrier()


def check_op(op: ReduceOp) -> ReduceOp:
    if op not in _IN_TORCH:
        raise BadInput(
            f"hvd.{op.name} is not supported",
            means="elastane.integrations.horovod combines tensors by Average, Sum, Min, Max and Product; "
            "Adasum would weigh gradients by the number of processes, which an elastic run changes",
            do="use op=hvd.Average, and scale the learning rate in a reset callback",
        )
    return op


def _choose_op(average: bool | None, op: ReduceOp | None) -> ReduceOp:
    if average is not None and op is not None:
        raise BadInput("hvd.allreduce got both average and op", do="use only op")
    if op is None:
        return Sum if average is False else Average
    return check_op(op)


def _begin_allreduce(tensor: Tensor, op: ReduceOp, prescale: float, postscale: float) -> Handle:
    if op is Average and not (tensor.is_floating_point() or tensor.is_complex()):
        raise BadInput(
            f"hvd.allreduce cannot average a tensor of {tensor.dtype}",
            means="the average of integers is not an integer",
            do="use tensor.float(), or op=hvd.Sum",
        )
    held = tensor.detach()
    if prescale != 1.0:
        held.mul_(prescale)
    factor = postscale / size() if op is Average else postscale

    def finish() -> Tensor:
        if factor != 1.0:
            held.mul_(factor)
        return tensor

    if size() == 1:
        return Handle((), finish)
    sent = held.contiguous()

    def finish_sent() -> Tensor:
        if sent.data_ptr() != held.data_ptr():
            held.copy_(sent)
        return finish()

    with translate_failures():
        return Handle([_require_work(dist.all_reduce(sent, _IN_TORCH[op], async_op=True))], finish_sent)


def _require_work(work: dist.Work | None) -> dist.Work:
    assert work is not None, "this process is a member of the default group"
    return work


def _check_root(root_rank: int) -> None:
    if not 0 <= root_rank < size():
        raise BadInput(
            f"root_rank {root_rank} is not among the {size()} processes",
            do="use a rank from 0 to hvd.size() - 1",
        )
