"""The endpoint of the coordinator in charge, as the controller of a job keeps it."""

from elastane.common.untrusted_data import Malformed
from elastane.run.connections.endpoint import decode_endpoint, publish_endpoint
from elastane.run.connections.record_store import find_record_store
from elastane.run.nouns.record_parts import ENDPOINT
from elastane.run.nouns.rundir import RunDir


class KeptEndpoint:
    """Brings the kept endpoint into the directory of this machine.

    Args:
        run_dir: a private one.
        timeout_s: of a request.

    Raises:
        BadInput, OSError: see `find_record_store`.
    """

    def __init__(self, run_dir: RunDir, *, timeout_s: float) -> None:
        store = find_record_store(run_dir, timeout_s=timeout_s)
        assert store is not None, "a private directory names the store"
        self._run_dir, self._store = run_dir, store
        self._changed_us = 0

    def refresh(self) -> int:
        """Write the kept endpoint here if it was renewed; return when it was, 0: none is kept.

        Raises:
            ElastaneError: the controller does not answer.
            OSError: it cannot be written.
        """
        record = self._store.list_records().get(ENDPOINT)
        if record is None:
            return 0
        if record.changed_us != self._changed_us and (content := self._store.read(ENDPOINT)) is not None:
            try:
                publish_endpoint(self._run_dir, decode_endpoint(content))
            except Malformed:
                # Its coordinator sends it again.
                return record.changed_us
            self._changed_us = record.changed_us
        return record.changed_us
