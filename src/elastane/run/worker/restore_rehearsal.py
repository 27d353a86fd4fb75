"""``python -m elastane.run.worker.restore_rehearsal``: restore a checkpoint as a resumed run does.

The code of a worker reads each worker's share, into a training state of the same layout that never trains.
Nothing is written. The program prints one line of JSON, `elastane.run.nouns.torch_answers`.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from elastane.common.errors import BadInput
from elastane.common.memory import read_available_bytes
from elastane.run.checkpoints.catalog import Catalog
from elastane.run.checkpoints.storage.interface import Storage
from elastane.run.checkpoints.storage.urls import open_storage
from elastane.run.nouns.checkpoints import Manifest
from elastane.run.nouns.torch_answers import RestoreRehearsal, print_answer
from elastane.run.protocol.ownership import choose_holders, spread_blocks
from elastane.run.worker.checkpoints.model_description import build_stand_in, read_model_description
from elastane.run.worker.checkpoints.reader import CheckpointReader
from elastane.run.worker.checkpoints.state_reader import StateReader
from elastane.run.worker.state.model_layout import ModelLayout
from elastane.run.worker.state.placement import InPlace
from elastane.run.worker.state.training_state import TrainingState, combine_digests


def rehearse_restore(
    storage: Storage, manifest: Manifest, workers: int, copies: int | None
) -> RestoreRehearsal:
    """Restore a checkpoint on several workers, all in this process.

    Args:
        copies: the number of copies of the optimizer state; None: all.

    Raises:
        BadInput: the checkpoint does not describe its model, or the state does not fit into memory.
        Damaged: the checkpoint has changed since the write.
        StorageError: the storage does not respond.
    """
    check_memory(manifest.bytes * workers, workers)
    states = [build_empty_state(manifest, copies) for _ in range(workers)]
    blocks, numbers = len(states[0].layout.blocks), tuple(range(workers))
    if copies is None:
        units = tuple(range(states[0].units))
        shares: Sequence[tuple[int, ...]] = [units] * workers
        auditors = spread_blocks(blocks, numbers)
    else:
        holders = choose_holders(blocks, numbers, copies, {})
        shares = [
            tuple(block for block, workers in enumerate(holders) if worker in workers) for worker in numbers
        ]
        auditors = tuple(workers[0] for workers in holders)

    def restore_worker(worker: int) -> int:
        state = states[worker]
        with CheckpointReader(storage, manifest) as reader:
            return StateReader(reader, manifest).restore(state, range(state.units), shares[worker])

    with ThreadPoolExecutor(workers, "elastane-rehearsal") as pool:
        began_s = time.perf_counter()
        nbytes = sum(pool.map(restore_worker, numbers))
        seconds = time.perf_counter() - began_s
        digests = list(pool.map(lambda block: states[auditors[block]].digest(block), range(blocks)))
    return RestoreRehearsal(
        workers=workers, bytes=nbytes, seconds=seconds, digest=combine_digests(dict(enumerate(digests)))
    )


def build_empty_state(manifest: Manifest, copies: int | None) -> TrainingState:
    """Return a training state with the layout of the checkpoint, without values.

    Raises:
        BadInput: the checkpoint does not describe its layout.
    """
    outline = read_model_description(manifest)
    model, optimizer, averaged = build_stand_in(outline, manifest)
    layout = ModelLayout(model, optimizer, averaged=averaged)
    names = tuple(extent.name for extent in (*layout.extents, *layout.buffer_extents))
    if names != outline.carried:
        raise AssertionError(f"the stand-in has {names} where the model had {outline.carried}")
    return TrainingState(model, optimizer, None, layout, copies=copies, placement=InPlace(layout))


def check_memory(needed_bytes: int, workers: int) -> None:
    """Refuse a rehearsal that needs more memory than the machine has free.

    A machine that runs out of memory kills processes, perhaps those of the run itself.
    """
    available_bytes = read_available_bytes()
    if needed_bytes > available_bytes:
        raise BadInput(
            f"{workers} workers need {needed_bytes / 1e9:.1f} GB of memory; "
            f"{available_bytes / 1e9:.1f} GB are free",
            means="a rehearsal has the state of all workers in memory, as the run has",
            do="use fewer --workers, or rehearse on a larger machine",
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m elastane.run.worker.restore_rehearsal")
    parser.add_argument("--checkpoints", required=True, help="path or URL")
    parser.add_argument("--checkpoint", required=True, help="name")
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--copies", type=int)
    options = parser.parse_args()
    torch.set_num_threads(1)

    def rehearse_requested() -> RestoreRehearsal:
        catalog = Catalog(open_storage(options.checkpoints))
        return rehearse_restore(
            catalog.storage, catalog.load_manifest(options.checkpoint), options.workers, options.copies
        )

    return print_answer(rehearse_requested)


if __name__ == "__main__":
    sys.exit(main())
