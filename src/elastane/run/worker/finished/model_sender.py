"""The finished model on its way to the controller of a job, which shares no directory with this machine."""

import time
from collections.abc import Iterable

from elastane.common.errors import ElastaneError
from elastane.run.nouns.rundir import RunDir

GIVE_UP_S = 600.0
"""How long a controller may be away at the end of a run."""
AGAIN_S = 1.0


def send_model(files: RunDir, names: Iterable[str]) -> None:
    """Send the files of the finished model, the one last without which a reader finds no model.

    Args:
        names: of the files, in the run directory.

    Raises:
        OSError: the controller did not take them for `GIVE_UP_S`.
    """
    from elastane.run.connections.record_store import find_record_store

    store = find_record_store(files)
    assert store is not None, "a private directory names the store"
    markers = (files.model_files.weights.name, files.model_files.weight_index.name)
    ordered = sorted(names, key=lambda name: (name in markers, markers.index(name) if name in markers else 0))
    give_up_s = time.monotonic() + GIVE_UP_S
    while True:
        try:
            return store.send_results(files, ordered)
        except ElastaneError as error:
            if time.monotonic() > give_up_s:
                raise OSError(f"the controller of the job did not take it: {error.what}") from error
        time.sleep(AGAIN_S)
