"""A run judged by its ledger, with the rules by which the runtime deals samples."""

from elastane.api.records import SCRIPT
from elastane.observability.coverage import SampleRules
from elastane.observability.facts import outcome_of
from elastane.observability.run_files import Recorded
from elastane.observability.verify import Verdict, verify
from elastane.protocol.cursors import stream_hash
from elastane.protocol.sampling import sample_hash, sample_index


def judged(run: Recorded) -> Verdict:
    """Whether every step, virtual rank and sample was there once."""
    outcome, _ = outcome_of(run.events, live=run.live)
    rules = SampleRules(sample_index, sample_hash, stream_hash)
    ended_at = next((e.step for e in run.events if e.kind == "run.finished" and e.who == SCRIPT), None)
    return verify(run.record.pinned, run.ledger, rules, finished=outcome == "finished", ended_at=ended_at)
