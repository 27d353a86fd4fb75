"""``python -m elastane.runtime.restore_rehearsal``: restore a checkpoint as a resumed run does.

The code of a worker reads each worker's share, into a training state of the same layout that never trains.
Nothing is written. The program prints one line of JSON, `elastane.api.rehearsal`.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from elastane.api.checkpoints import Manifest
from elastane.api.errors import BadInput
from elastane.api.rehearsal import RestoreRehearsal
from elastane.protocol.ownership import choose_holders, spread_blocks
from elastane.runtime.checkpoints.contents import StateReader
from elastane.runtime.checkpoints.model_description import build_stand_in, read_model_description
from elastane.runtime.checkpoints.reader import CheckpointReader
from elastane.runtime.json_answer import print_answer
from elastane.runtime.state.model_layout import ModelLayout
from elastane.runtime.state.placement import InPlace
from elastane.runtime.state.state import TrainingState, combine_digests
from elastane.storage.catalog import Catalog
from elastane.storage.interface import Storage
from elastane.storage.urls import open_storage


def rehearse_restore(
    storage: Storage, manifest: Manifest, workers: int, copies: int | None
) -> RestoreRehearsal:
    """Restore a checkpoint on so many workers, all of them in this process.

    Args:
        storage: of the run's checkpoints.
        manifest: of the checkpoint.
        workers: how many.
        copies: of the optimizer state; None: all.

    Raises:
        BadInput: the checkpoint does not say enough, or the state does not fit the machine's memory.
        Damaged: what was read is not what was written.
        StorageError: the storage does not answer.
    """
    check_memory(manifest.bytes * workers, workers)
    states = [build_empty_state(manifest, copies) for _ in range(workers)]
    blocks, everybody = len(states[0].layout.blocks), tuple(range(workers))
    if copies is None:
        units = tuple(range(states[0].units))
        shares: Sequence[tuple[int, ...]] = [units] * workers
        auditors = spread_blocks(blocks, everybody)
    else:
        holders = choose_holders(blocks, everybody, copies, {})
        shares = [tuple(b for b, some in enumerate(holders) if worker in some) for worker in everybody]
        auditors = tuple(some[0] for some in holders)

    def restored(worker: int) -> int:
        state = states[worker]
        with CheckpointReader(storage, manifest) as reader:
            return StateReader(reader, manifest).restore(state, range(state.units), shares[worker])

    with ThreadPoolExecutor(workers, "elastane-rehearsal") as pool:
        begun = time.perf_counter()
        nbytes = sum(pool.map(restored, everybody))
        seconds = time.perf_counter() - begun
        found = list(pool.map(lambda block: states[auditors[block]].digest(block), range(blocks)))
    return RestoreRehearsal(
        workers=workers, bytes=nbytes, seconds=seconds, digest=combine_digests(dict(enumerate(found)))
    )


def build_empty_state(manifest: Manifest, copies: int | None) -> TrainingState:
    """A training state of the layout that the checkpoint has, without values.

    Raises:
        BadInput: the checkpoint does not say what layout that is.
    """
    outline = read_model_description(manifest)
    model, optimizer = build_stand_in(outline, manifest)
    layout = ModelLayout(model, optimizer)
    names = tuple(extent.name for extent in (*layout.extents, *layout.buffer_extents))
    if names != outline.carried:
        raise AssertionError(f"the stand-in has {names} where the model had {outline.carried}")
    return TrainingState(model, optimizer, None, layout, copies=copies, placement=InPlace(layout))


def check_memory(needed_bytes: int, workers: int) -> None:
    """A machine that runs out of memory kills processes, perhaps those of the run itself.

    Raises:
        BadInput: there is not so much.
    """
    with open("/proc/meminfo", encoding="ascii") as file:  # noqa: PTH123 - no path of ours
        lines = dict(line.split(":", 1) for line in file)
    available_bytes = int(lines["MemAvailable"].split()[0]) * 1024
    if needed_bytes > available_bytes:
        raise BadInput(
            f"{workers} workers would keep {needed_bytes / 1e9:.1f} GB; "
            f"{available_bytes / 1e9:.1f} GB of memory are free",
            means="a restore needs the state of every worker in memory, as the run does",
            do="use fewer --workers, or rehearse on a larger machine",
        )


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m elastane.runtime.restore_rehearsal")
    options.add_argument("--checkpoints", required=True, help="path or URL")
    options.add_argument("--checkpoint", required=True, help="name")
    options.add_argument("--workers", type=int, required=True)
    options.add_argument("--copies", type=int)
    asked = options.parse_args()
    torch.set_num_threads(1)

    def rehearsed() -> RestoreRehearsal:
        catalog = Catalog(open_storage(asked.checkpoints))
        return rehearse_restore(
            catalog.storage, catalog.load_manifest(asked.checkpoint), asked.workers, asked.copies
        )

    return print_answer(rehearsed)


if __name__ == "__main__":
    sys.exit(main())
