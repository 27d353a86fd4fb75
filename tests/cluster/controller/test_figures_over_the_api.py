"""The figures of a cluster, and the records of runs, as tokens may see them."""

import pytest

from elastane.cluster.nouns.job_records import ObservedJob
from elastane.cluster.nouns.usage import Use
from tests.cluster.controller import job_rows

NOW_S = 1_800_000_000.0


def test_the_figures_count_waits_uses_and_interventions_of_the_team(api, sqlite_store, make_spec):
    ada, operator = api.user(), api.user("operator", user="op")
    operator.put("/pools/h100", {"name": "h100", "device": "h100", "devices": 10})
    ada.post("/jobs", make_spec())
    ada.post("/jobs", make_spec("waits"))
    with sqlite_store.begin_write() as tx:
        job_rows.observe(tx, "train", NOW_S, state="running", observed=ObservedJob(), started_s=NOW_S + 30.0)
        job_rows.use(tx, "train", (Use(pool="h100", terms="owned", devices=5, price=3600.0),), NOW_S)
    api.clock.now_s = NOW_S + 100
    assert ada.post("/jobs/train/pause").status_code == 200
    found = ada.get("/figures").json()
    assert (found["started"], found["queueS"], found["queued"], found["queuedLongestS"]) == (
        1,
        30.0,
        1,
        100.0,
    )
    assert (found["usedDeviceS"], found["availableDeviceS"], found["cost"]) == (500.0, 1000.0, 500.0)
    assert (found["interventions"], found["runs"]) == (1, 1)
    other = api.user(team="speech", user="eve").get("/figures").json()
    assert (other["started"], other["queued"], other["runs"], other["cost"], other["interventions"]) == (
        0,
    ) * 5
    assert other["usedDeviceS"] == 500.0
    assert api.user("reporter", user="probe").get("/figures").status_code == 403
    assert ada.get(f"/figures?from={NOW_S + 1000}").status_code == 422


@pytest.fixture
def run_dir(api, sqlite_store, make_spec, tmp_path):
    api.user().post("/jobs", make_spec())
    (tmp_path / "run").mkdir()
    with sqlite_store.begin_write() as tx:
        run_dir = str(tmp_path / "run")
        job_rows.observe(tx, "train", NOW_S, state="running", observed=ObservedJob(), run_dir=run_dir)
    return tmp_path / "run"


def test_the_records_of_a_run_are_read_on(api, run_dir):
    ada = api.user()
    (run_dir / "ledger.jsonl").write_bytes(b"one\ntwo\n")
    first = ada.get("/jobs/train/records/ledger.jsonl?limit=4")
    assert (first.content, first.headers["Elastane-Next-Offset"]) == (b"one\n", "4")
    assert ada.get("/jobs/train/records/ledger.jsonl?offset=4").content == b"two\n"
    assert ada.get("/jobs/train/records/events.jsonl").status_code == 404
    assert api.user(team="speech", user="eve").get("/jobs/train/records/ledger.jsonl").status_code == 404


@pytest.mark.parametrize(
    "name", ["secret", "certificate.pem", "endpoint.json", "record-store.json", "..%2Fsecret"]
)
def test_no_secret_of_a_run_is_a_record_to_read(api, run_dir, name):
    (run_dir / "secret").write_text("hidden")
    answer = api.user().get(f"/jobs/train/records/{name}")
    assert answer.status_code in {404, 422}
    assert "hidden" not in answer.text


def test_a_link_in_place_of_a_record_is_not_followed(api, run_dir, tmp_path):
    (tmp_path / "secret.txt").write_text("hidden")
    (run_dir / "ledger.jsonl").symlink_to(tmp_path / "secret.txt")
    assert api.user().get("/jobs/train/records/ledger.jsonl").status_code == 404
