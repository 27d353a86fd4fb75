"""Compare checkpoint files with raw writes and reads of the same bytes, and with `dcp.save` and `dcp.load`.

Each round measures everything once, so a slower disk affects all contestants alike.
"""

import argparse
import json
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from elastane.run.checkpoints.catalog import Catalog
from elastane.run.checkpoints.storage.local import LocalStorage
from elastane.run.nouns.checkpoints import Manifest, format_checkpoint_name, format_part_name
from elastane.run.worker.checkpoints.copier import StagingBuffer
from elastane.run.worker.checkpoints.part_encoding import EncodedPart, TensorSlice
from elastane.run.worker.checkpoints.publisher import publish_checkpoint
from elastane.run.worker.checkpoints.reader import CheckpointReader, ReadRequest
from elastane.run.worker.state.tensor_bytes import view_bytes
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from setting import Setting

FULL_BYTES = 1_200_000_000
"""100 M parameters with AdamW."""
STATE_BYTES = {"1m": 12_000_000, "10m": 120_000_000, "100m": FULL_BYTES}
LAYER = (1024, 1024)
BLOCK = 1 << 20
RAW_PIECE = 16 << 20


def make_layers(size_bytes: int) -> dict[str, torch.Tensor]:
    """Return tensors of 4 MiB, random so that no layer below can compress them."""
    count = max(1, size_bytes // (4 * LAYER[0] * LAYER[1]))
    return {f"layer{number:04}": torch.randn(LAYER) for number in range(count)}


def make_slices(state: dict[str, torch.Tensor]) -> list[TensorSlice]:
    return [
        TensorSlice(
            f"model.{key}", LAYER, (LAYER[1], 1), start, start + BLOCK, tensor.view(-1)[start : start + BLOCK]
        )
        for key, tensor in state.items()
        for start in range(0, tensor.numel(), BLOCK)
    ]


def write_raw(path: Path, state: dict[str, torch.Tensor]) -> None:
    """Write the same bytes as fast as this disk allows."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for tensor in state.values():
        view = view_bytes(tensor.view(-1))
        while view:
            view = view[os.write(fd, view[:RAW_PIECE]) :]
    os.fsync(fd)
    os.close(fd)


def read_raw(path: Path, into: dict[str, torch.Tensor]) -> None:
    with path.open("rb", buffering=0) as file:
        for tensor in into.values():
            file.readinto(view_bytes(tensor.view(-1)))


def write_with_elastane(catalog: Catalog, encoded: EncodedPart) -> Manifest:
    """Write what Elastane writes in the background; the copy was made during a step."""
    name = format_checkpoint_name(1)
    part = encoded.describe(catalog.write(name, encoded.name, encoded))
    return publish_checkpoint(catalog, Manifest(name=name, step=1, created="", parts=(part,)))


def read_with_elastane(catalog: Catalog, into: dict[str, torch.Tensor]) -> None:
    manifest = catalog.load_manifest(format_checkpoint_name(1))
    with CheckpointReader(catalog.storage, manifest) as reader:
        reader.read_many(ReadRequest(f"model.{key}", 0, t.numel(), t.view(-1)) for key, t in into.items())


def write_with_dcp(path: Path, state: dict[str, torch.Tensor]) -> None:
    save({"model": state}, checkpoint_id=path, no_dist=True)


def read_with_dcp(path: Path, into: dict[str, torch.Tensor]) -> None:
    load({"model": into}, checkpoint_id=path, no_dist=True)


def measure_seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def drop_cache(directory: Path) -> None:
    """Remove the files from the page cache, so that reads come from the disk."""
    for path in directory.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def rotate(works: dict[str, Callable[[], object]], by: int) -> dict[str, Callable[[], object]]:
    """Return the works in another order in every round: after a large write the disk is busy."""
    names = list(works)
    start = by % len(names)
    return {name: works[name] for name in (*names[start:], *names[:start])}


def measure_round(
    where: Path,
    state: dict[str, torch.Tensor],
    into: dict[str, torch.Tensor],
    staging: StagingBuffer,
    *,
    turn: int,
    cold: bool,
) -> dict[str, float]:
    """Return the seconds of each work, in one pass."""
    catalog = Catalog(LocalStorage(where / "ours"))
    copied = EncodedPart(format_part_name(0), make_slices(state))
    staging.stage(copied)
    writes: dict[str, Callable[[], object]] = {
        "raw write + fsync": lambda: write_raw(where / "raw", state),
        "write": lambda: write_with_elastane(catalog, copied),
        "dcp.save": lambda: write_with_dcp(where / "dcp", state),
    }
    reads: dict[str, Callable[[], object]] = {
        "raw read": lambda: read_raw(where / "raw", into),
        "restore": lambda: read_with_elastane(catalog, into),
        "dcp.load": lambda: read_with_dcp(where / "dcp", into),
        "verify": lambda: catalog.verify(format_checkpoint_name(1)),
    }
    took = {name: measure_seconds(work) for name, work in rotate(writes, turn).items()}
    for name, work in rotate(reads, turn).items():
        if cold:
            drop_cache(where)
        took[name] = measure_seconds(work)
    if any(not torch.equal(into[key], tensor) for key, tensor in state.items()):
        raise AssertionError("what was read is not what was written")
    took["bytes on disk / bytes of state"] = sum(
        path.stat().st_size for path in (where / "ours").rglob("*") if path.is_file()
    ) / sum(tensor.nbytes for tensor in state.values())
    shutil.rmtree(where / "ours")
    shutil.rmtree(where / "dcp")
    (where / "raw").unlink()
    return took


def measure(setting: Setting) -> dict[str, Any]:
    """Measure with a cold page cache, as after a power cut; `restore.py` measures with a warm one."""
    size_bytes = STATE_BYTES[setting.state]
    found = measure_rounds(
        size_bytes=size_bytes, rounds=setting.repetitions, directory=setting.work, cold=True
    )
    return {"bytes": size_bytes, **found}


def measure_rounds(
    *, size_bytes: int = FULL_BYTES, rounds: int = 5, directory: Path | None = None, cold: bool = False
) -> dict[str, list[float]]:
    """Return the seconds and ratios of each round.

    Args:
        size_bytes: of the state.
        rounds: how many; one more is done first and discarded.
        directory: on the disk to measure; None is a temporary one.
        cold: read from the disk instead of the page cache.
    """
    state = make_layers(size_bytes)
    into = {key: torch.zeros_like(tensor) for key, tensor in state.items()}
    staging = StagingBuffer()
    found: dict[str, list[float]] = {}
    with warnings.catch_warnings(), tempfile.TemporaryDirectory(dir=directory) as where:
        warnings.simplefilter("ignore")
        measure_round(Path(where), state, into, staging, turn=0, cold=cold)
        for turn in range(rounds):
            took = measure_round(Path(where), state, into, staging, turn=turn, cold=cold)
            took["write / raw"] = took["raw write + fsync"] / took["write"]
            took["restore / raw"] = took["raw read"] / took["restore"]
            took["restore / dcp.load"] = took["dcp.load"] / took["restore"]
            took["write / dcp.save"] = took["dcp.save"] / took["write"]
            for name, value in took.items():
                found.setdefault(name, []).append(value)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, default=FULL_BYTES, help="of state (default 1.2 GB)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path, help="on the disk to be measured")
    parser.add_argument("--cold", action="store_true", help="read from the disk, not from the page cache")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = measure_rounds(
        size_bytes=given.bytes, rounds=given.rounds, directory=given.directory, cold=given.cold
    )
    if given.json:
        print(json.dumps(found))
        return
    for name, values in found.items():
        ordered = sorted(values)
        print(
            f"{name:32} median {ordered[len(ordered) // 2]:7.3f}  from {ordered[0]:.3f} to {ordered[-1]:.3f}"
        )


if __name__ == "__main__":
    main()
