"""Logs are read unchanged, and no other file is, even if a job has changed its directory."""

import os

import pytest

from elastane.cluster.nouns.job_records import ObservedJob
from tests.cluster.controller import job_rows

NOW_S = 1_800_000_000.0


@pytest.fixture
def run_dir(api, sqlite_store, make_spec, tmp_path):
    api.user().post("/jobs", make_spec())
    (tmp_path / "run" / "logs").mkdir(parents=True)
    with sqlite_store.begin_write() as tx:
        run_dir = str(tmp_path / "run")
        job_rows.observe(tx, "train", NOW_S, state="running", observed=ObservedJob(), run_dir=run_dir)
    return tmp_path / "run"


def test_a_log_is_read_from_the_end_of_the_previous_part(api, run_dir):
    ada = api.user()
    log = run_dir / "logs" / "worker-0.log"
    log.write_bytes(b"one\n\xfftwo\n")
    first = ada.get("/jobs/train/logs?limit=4&offset=0")
    assert (first.content, first.headers["Elastane-Next-Offset"]) == (b"one\n", "4")
    second = ada.get("/jobs/train/logs?offset=4")
    assert (second.content, second.headers["Elastane-Next-Offset"]) == (b"\xfftwo\n", "9")
    with log.open("ab") as more:
        more.write(b"three\n")
    assert ada.get("/jobs/train/logs?offset=9").content == b"three\n"
    assert ada.get("/jobs/train/logs?offset=-6").content == b"three\n"
    assert ada.get("/jobs/train/logs?offset=99").content == b""


def test_a_log_that_does_not_exist_is_answered_with_404(api, run_dir, make_spec):
    ada = api.user()
    ada.post("/jobs", make_spec("never-began"))
    assert ada.get("/jobs/train/logs?process=worker-7").status_code == 404
    assert ada.get("/jobs/never-began/logs").status_code == 404


@pytest.mark.parametrize("name", ["../secret", "..%2Fsecret", "worker-0.log", "secret", "worker-0%0A", ""])
def test_only_processes_have_logs(api, run_dir, name):
    (run_dir / "secret.log").write_text("hidden")
    answer = api.user().get(f"/jobs/train/logs?process={name}")
    assert answer.status_code in {404, 422}
    assert "hidden" not in answer.text


def test_no_link_leads_out_of_the_run_directory(api, run_dir, tmp_path):
    ada = api.user()
    secret = tmp_path / "secret.txt"
    secret.write_text("hidden")
    log = run_dir / "logs" / "worker-0.log"
    log.symlink_to(secret)
    assert ada.get("/jobs/train/logs").status_code == 404
    log.unlink()
    os.link(secret, log)
    assert ada.get("/jobs/train/logs").status_code == 404
    log.unlink()
    log.parent.rmdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "worker-0.log").write_text("hidden")
    log.parent.symlink_to(tmp_path / "elsewhere")
    assert ada.get("/jobs/train/logs").status_code == 404


def test_a_pipe_in_the_place_of_a_log_does_not_hang_the_controller(api, run_dir):
    os.mkfifo(run_dir / "logs" / "worker-0.log")
    assert api.user().get("/jobs/train/logs").status_code == 404
