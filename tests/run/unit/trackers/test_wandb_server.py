"""W&B online: a server that lacks rows of a killed client gets them again, and none twice."""

import json
import os

import pytest

from elastane.run.trackers.metric_rows import select_missing
from elastane.run.trackers.wandb_store import WandbStore

from .conftest import make_line
from .wandb_server import serve_wandb

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def kept(monkeypatch):
    """A server for the client of this process, and what it keeps."""
    for name in os.environ:
        if name.startswith("WANDB_"):
            monkeypatch.delenv(name)
    with serve_wandb() as (address, found):
        monkeypatch.setenv("WANDB_BASE_URL", address)
        monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
        yield found
        import wandb

        wandb.teardown()


def feed(recorded):
    """Feed all steps that the ledger has to a new client; return what it was known to have."""
    store = WandbStore()
    known = store.open(recorded.tracked)
    rows, _ = select_missing(recorded.open_source(max(1, known.get("train/loss", 0))).read(), known)
    store.write(rows)
    view = store.describe_view()
    store.close("finished", 0)
    return known, view


def test_rows_that_the_server_lacks_are_sent_again_and_no_other(recorded, kept):
    recorded.add(*map(make_line, range(1, 6)))
    known, view = feed(recorded)
    assert known == {}
    assert view.endswith("/ada/elastane/runs/0123456789abcdef")
    [rows] = kept.rows.values()
    assert [json.loads(row)["step"] for row in rows] == [1, 2, 3, 4, 5]
    # The client was killed before it had uploaded the last rows.
    del rows[3:]
    recorded.add(*map(make_line, range(6, 8)))
    known, _ = feed(recorded)
    assert known["train/loss"] == 3
    assert [json.loads(row)["step"] for row in rows] == [1, 2, 3, 4, 5, 6, 7]
    assert [json.loads(row)["train/loss"] for row in rows] == [1 / step for step in range(1, 8)]
