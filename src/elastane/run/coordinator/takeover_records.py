"""The records of a run at the beginning of a term, on a machine that shares no directory with the others."""

from elastane.common.errors import RunFailed
from elastane.common.untrusted_data import Malformed
from elastane.run.connections.endpoint import CoordinatorEndpoint, decode_endpoint, publish_endpoint
from elastane.run.connections.record_store import RecordSender, RecordStore, find_record_store
from elastane.run.nouns.record_parts import APPENDED, ENDPOINT, PRIVATE, REPLACED
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.run_files import keep_places, read_record

TIMEOUT_S = 10.0


def fetch_records(run_dir: RunDir, endpoint: CoordinatorEndpoint, from_node: str | None) -> RecordSender:
    """Fetch the records of a run if another machine was in charge; return what sends those of a term.

    The other machine may have sent a part of its first lines and died. Then the kept lines and those here
    differ behind their common beginning, although the kept endpoint is still that of this machine.

    The endpoint is the last record of a coordinator's first sending. So if that of an earlier attempt is
    kept, the records of this one are not kept whole, and this machine has them: it begins the attempt.

    Args:
        endpoint: of the coordinator of this machine, with its term, which it has claimed.
        from_node: the machine of the term before, if it was another one; None: it was this one, or there was
            none.

    Raises:
        ElastaneError: the controller does not answer, or a record is damaged.
        OSError: a record cannot be written.
    """
    store = find_record_store(run_dir, timeout_s=TIMEOUT_S)
    assert store is not None, "no process removes the file"
    kept = _read_kept_endpoint(store)
    is_of_attempt = kept is not None and kept.attempt == endpoint.attempt
    if is_of_attempt and from_node is not None:
        own = read_record(run_dir).spec
        # Each request delays the run. The secrets of an attempt do not change.
        names = store.list_records().keys() - {ENDPOINT, *PRIVATE}
        store.fetch(run_dir, [name for name in (*APPENDED, *REPLACED) if name in names])
        keep_places(run_dir, own)
    # Otherwise the endpoint of the machine that was in charge before would be sent as a sign of life.
    publish_endpoint(run_dir, endpoint)
    return RecordSender(store, run_dir, endpoint.term, anew=not is_of_attempt)


def _read_kept_endpoint(store: RecordStore) -> CoordinatorEndpoint | None:
    content = store.read(ENDPOINT)
    try:
        return None if content is None else decode_endpoint(content)
    except Malformed as error:
        raise RunFailed(f"the endpoint that {store.where} keeps is damaged: {error}") from error
