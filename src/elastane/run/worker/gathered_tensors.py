"""Tensors of single microbatches that all workers need, such as predictions from which a metric is computed.

Each worker appends the tensors of its microbatches to a file of its own in the run directory, which all
machines of a run share. The sums of the round say where those of each microbatch are, with a digest. A
worker that cannot read some of them computes their microbatches again, to the same bits.
"""

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec
import safetensors
import torch
import xxhash
from safetensors.torch import load, save

from elastane.common.errors import BadInput
from elastane.run.worker.finished.safetensors_files import DTYPES
from elastane.run.worker.gangs.gang_checks import refuse_in_gang
from elastane.run.worker.values import describe_value

PREFIX = "tensors "
"""Names of other values are identifiers, so none begins like this."""
NOT_WRITTEN = -1
"""In place of a digest: the worker could not write the tensors."""
DIGEST_BITS = 52
"""The sums of a round are numbers in fp64, which have this many bits."""


class TensorPlace(msgspec.Struct, frozen=True):
    """The place of a microbatch's tensors in the file of the worker that computed it.

    Args:
        virtual_rank: the number of the microbatch.
        offset: the first byte.
        size: a number of bytes.
        digest: of these bytes.
    """

    virtual_rank: int
    worker: int
    offset: int
    size: int
    digest: int


class GatheredTensors(Mapping[str, tuple[torch.Tensor, ...]]):
    """Tensors of each microbatch by name; after the iteration every worker has those of all microbatches.

    The tensors of a name are in the order of the microbatches, on the CPU, and have the same bits on every
    worker. A microbatch that adds no tensor of a name has none in its list.

    Args:
        worker: the number of this worker.
        folders: the directories with the files of the workers; None: the process trains alone.
        processes: of each worker.
    """

    def __init__(self, worker: int, folders: "RoundFolders | None", processes: int = 1) -> None:
        self._processes = processes
        self._worker, self._folders = worker, folders
        self._own: dict[str, torch.Tensor] | None = None
        # The tensors of microbatches that this worker has, by virtual rank.
        self._present: dict[int, dict[str, torch.Tensor]] = {}
        self._all: dict[str, tuple[torch.Tensor, ...]] = {}

    def __getitem__(self, name: str) -> tuple[torch.Tensor, ...]:
        return self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def add(self, **tensors: torch.Tensor) -> None:
        """Add tensors of the current microbatch; they are copied.

        Raises:
            BadInput: safetensors cannot write a value, its name has a tensor already, or no microbatch is
                current.
        """
        refuse_in_gang(
            "outputs.add",
            "the tensors of a worker are in one file, which one process writes",
            self._processes,
        )
        if self._own is None:
            raise BadInput(
                "outputs.add was called outside the loop over the evaluation",
                means="the tensors belong to a microbatch",
                do="call it in the loop: for batch in score: score.outputs.add(logits=model(batch))",
            )
        for name, tensor in tensors.items():
            if not isinstance(tensor, torch.Tensor) or tensor.dtype not in DTYPES or name in self._own:
                fault = "a second tensor" if name in self._own else describe_value(tensor)
                raise BadInput(
                    f"outputs.add({name}=...) was given {fault}",
                    means="each microbatch has one tensor of each name, of a data type that safetensors has",
                    do="pass a tensor, once: outputs.add(logits=logits); numbers go to score.gathered",
                )
            self._own[name] = tensor.detach().to_dense().to("cpu", copy=True).contiguous()

    def begin(self) -> None:
        """Begin a microbatch."""
        self._own = {}

    def take(self, round_: int, virtual_rank: int) -> dict[str, float]:
        """End the microbatch of a virtual rank; return its terms of the sums of the round.

        If the tensors cannot be written, for example to a full disk, the other workers compute them again.
        """
        own, self._own = self._own, None
        if not own:
            return {}
        self._present[virtual_rank] = own
        if self._folders is None:
            return {}
        content = save(own)
        try:
            offset = _append(self._folders.create(round_) / str(self._worker), content)
        except OSError as error:
            sys.stderr.write(f"elastane: tensors of an evaluation cannot be written: {error}\n")
            place = TensorPlace(virtual_rank, self._worker, 0, 0, NOT_WRITTEN)
        else:
            place = TensorPlace(virtual_rank, self._worker, offset, len(content), _compute_digest(content))
        return {_encode(place): float(place.digest)}

    def collect(self, round_: int, sums: Mapping[str, float], beat: Callable[[], None]) -> list[int]:
        """Read the tensors of all microbatches; return the microbatches of those that cannot be read.

        Their tensors must be added again, each time between `begin` and `keep`.

        Args:
            sums: of the round.
            beat: called again and again, to show progress.
        """
        missing = []
        for place in filter(None, (_decode(key, digest) for key, digest in sums.items())):
            beat()
            if place.virtual_rank in self._present:
                continue
            assert self._folders is not None, "a process that trains alone has all tensors"
            try:
                self._present[place.virtual_rank] = _read(self._folders.use(round_), place)
            except (OSError, ValueError, safetensors.SafetensorError):
                missing.append(place.virtual_rank)
        return sorted(missing)

    def keep(self, virtual_rank: int) -> None:
        """End a microbatch that only this worker has computed again."""
        own, self._own = self._own, None
        self._present[virtual_rank] = own or {}

    def complete(self) -> None:
        """Order the tensors of all microbatches by name."""
        present, self._present = self._present, {}
        found: dict[str, list[torch.Tensor]] = {}
        for rank in sorted(present):
            for name, tensor in present[rank].items():
                found.setdefault(name, []).append(tensor)
        self._all = {name: tuple(tensors) for name, tensors in sorted(found.items())}


class RoundFolders:
    """The directories in the run directory with the tensors of evaluations, one for each round.

    Args:
        root: the directory of these directories.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._used: set[int] = set()

    def use(self, round_: int) -> Path:
        """Return the directory of a round, which is removed after it."""
        self._used.add(round_)
        return self._root / str(round_)

    def create(self, round_: int) -> Path:
        """Return the directory of a round, which exists then."""
        path = self.use(round_)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def remove_before(self, round_: int) -> None:
        """Remove the directories of the rounds before a committed one; all workers have read them."""
        for done in [used for used in self._used if used < round_]:
            self._used.discard(done)
            # Every worker tries it, because the others may have died.
            shutil.rmtree(self._root / str(done), ignore_errors=True)


def drop_places(sums: Mapping[str, float]) -> dict[str, float]:
    """Return the sums without the places of tensors."""
    return {name: number for name, number in sums.items() if not name.startswith(PREFIX)}


def _encode(place: TensorPlace) -> str:
    return f"{PREFIX}{place.virtual_rank} {place.worker} {place.offset} {place.size}"


def _decode(key: str, digest: float) -> TensorPlace | None:
    if not key.startswith(PREFIX):
        return None
    rank, worker, offset, size = map(int, key.removeprefix(PREFIX).split())
    return TensorPlace(rank, worker, offset, size, int(digest))


def _append(path: Path, content: bytes) -> int:
    """Append bytes to a file; return the offset of the first one.

    Raises:
        OSError: the file cannot be written.
    """
    with path.open("ab") as file:
        offset = file.tell()
        file.write(content)
    return offset


def _read(folder: Path, place: TensorPlace) -> dict[str, torch.Tensor]:
    """Read the tensors of a microbatch.

    Raises:
        OSError: the file cannot be read.
        ValueError: it has other bytes than those that were written.
        SafetensorError: likewise.
    """
    with (folder / str(place.worker)).open("rb") as file:
        file.seek(place.offset)
        content = file.read(place.size)
    if _compute_digest(content) != place.digest:
        raise ValueError(f"{folder / str(place.worker)} has other bytes than worker {place.worker} wrote")
    return dict(load(content))


def _compute_digest(content: bytes) -> int:
    return xxhash.xxh3_64_intdigest(content) >> (64 - DIGEST_BITS)
