"""The store, on both databases."""

import os
import threading

import msgspec
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from elastane.cluster.controller.jobs.requests import create_job
from elastane.cluster.controller.planning import PlanOutdated, WordedDecision, write_decisions
from elastane.cluster.controller.snapshot import take_cluster_snapshot
from elastane.cluster.controller.store import documents, history, jobs, nodes, replies
from elastane.cluster.controller.store.database import Store, read_change
from elastane.cluster.controller.store.failures import StoreError, StoreOfOtherVersion
from elastane.cluster.controller.store.tables import metadata
from elastane.cluster.controller.store.tokens import make_first_token
from elastane.cluster.nouns.job_records import HeldWorkers, ObservedJob
from elastane.cluster.nouns.jobs import RunPolicy, WorkerResources
from elastane.cluster.nouns.plans import Decision, GivesWay, MinimumFits
from elastane.cluster.nouns.usage import Use
from elastane.common.errors import BadInput
from tests.cluster.controller import job_rows

NOW_S = 1_800_000_000.0


TAKEN = GivesWay(job="other", pool="h100", devices=3, because="minimum")


def decision(job, workers, drain=0):
    return WordedDecision(
        decision=Decision(
            job=job,
            action="start" if workers else "preempt",
            workers={"h100": workers} if workers else {},
            drain={"h100": drain} if drain else {},
            drain_s=60.0,
            why=(MinimumFits(node="") if workers else TAKEN,),
        ),
        sentences=("its minimum fits",),
    )


def submit(store, spec):
    with store.begin_write() as tx:
        return job_rows.submit(tx, spec, "ada", NOW_S)


def grant(store, job, workers, drain=0):
    with store.begin_write() as tx:
        write_decisions(tx, [decision(job, workers, drain)], at=read_change(tx), now_s=NOW_S)


def see(store, job, workers, state="running"):
    held = {"h100": HeldWorkers(workers=workers)} if workers else {}
    with store.begin_write() as tx:
        job_rows.observe(tx, job, NOW_S, state=state, observed=ObservedJob(held=held))


def taken(store):
    with store.begin_read() as tx:
        return take_cluster_snapshot(tx, NOW_S)


def test_the_migrations_create_exactly_the_tables_of_the_code(store):
    with store.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []


def test_only_the_owner_may_read_the_files_of_sqlite(tmp_path):
    umask = os.umask(0o022)
    try:
        store = Store(f"sqlite:///{tmp_path / 'controller.db'}")
        with store.begin_write():
            files = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
        store.close()
    finally:
        os.umask(umask)
    assert files == dict.fromkeys(("controller.db", "controller.db-wal", "controller.db-shm"), 0o600)


def test_a_reopened_store_has_all_its_content(store, store_url, make_spec):
    job = submit(store, make_spec())
    store.close()
    again = Store(store_url)
    with again.begin_read() as tx:
        assert jobs.find_job(tx, "train") == job
        assert read_change(tx) == 1
    again.close()


def test_a_store_has_one_first_token_and_another_only_on_demand(store):
    def told(**wish):
        with store.begin_write() as tx:
            return make_first_token(tx, "ada", NOW_S, **wish)

    first = told()
    assert first
    assert told() is None
    assert told(another=True) not in (None, first)


@pytest.mark.parametrize("revision", ["9999", "0012", "0001"])
def test_a_store_of_a_newer_version_or_an_early_build_is_left_alone(store, store_url, revision):
    with store.begin_write() as tx:
        tx.execute(text("UPDATE alembic_version SET version_num = :at"), {"at": revision})
    with pytest.raises(StoreOfOtherVersion, match=f"schema {revision}, which this version"):
        Store(store_url)


@pytest.mark.parametrize("table", ["events", "decisions", "usage", "egress", "audit"])
@pytest.mark.parametrize(
    "verb",
    [
        "UPDATE {0} SET id = id + 1",
        "DELETE FROM {0}",
        "INSERT INTO {0} SELECT * FROM {0} WHERE true ON CONFLICT (id) DO UPDATE SET id = excluded.id",
    ],
)
def test_history_is_neither_changed_nor_deleted(store, make_spec, table, verb):
    write_down(store, make_spec())
    with pytest.raises(StoreError, match="append-only"), store.begin_write() as tx:
        tx.execute(text(verb.format(table)))


@pytest.mark.parametrize("table", ["events", "decisions", "usage", "egress", "audit"])
def test_history_is_not_replaced_by_sqlites_insert_or_replace(sqlite_store, make_spec, table):
    replace = "INSERT OR REPLACE INTO {0} SELECT * FROM {0}"
    write_down(sqlite_store, make_spec())
    with pytest.raises(StoreError, match="append-only"), sqlite_store.begin_write() as tx:
        tx.execute(text(replace.format(table)))


def write_down(store, spec):
    """Write a line into each table that only grows."""
    submit(store, spec)
    grant(store, "train", 1)
    with store.begin_write() as tx:
        history.append_event(tx, "job.submitted", "it was", NOW_S)
        job_rows.use(tx, "train", (Use(pool="h100", terms="owned", devices=1),), NOW_S)
        job_rows.send(tx, "train", 10**9, NOW_S)
        job_rows.use(tx, "train", (), NOW_S + 1)
        tx.execute(
            text(
                'INSERT INTO audit (time_s, token, "user", action, target, team, allowed, detail)'
                " VALUES (1, 't', 'u', 'a', 'x', '', 1, '')"
            )
        )


def test_a_failed_change_leaves_nothing_behind(store, make_spec):
    def fail():
        with store.begin_write() as tx:
            job_rows.submit(tx, make_spec(), "ada", NOW_S)
            history.append_event(tx, "job.submitted", "it was", NOW_S)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with store.begin_read() as tx:
        assert jobs.find_job(tx, "train") is None
        assert history.find_newest_event(tx) == 0
        assert read_change(tx) == 0


def test_a_taken_name_does_not_abort_the_transaction(store, make_spec):
    with store.begin_write() as tx:
        job_rows.submit(tx, make_spec(), "ada", NOW_S)
        with pytest.raises(jobs.JobNameTaken):
            job_rows.submit(tx, make_spec(), "bob", NOW_S)
        job_rows.submit(tx, make_spec("other"), "bob", NOW_S)
    with store.begin_read() as tx:
        assert {job.user for job in jobs.find_jobs(tx, ["train", "other"])} == {"ada", "bob"}


def test_an_outdated_plan_decides_nothing(store, make_spec):
    submit(store, make_spec())
    at = taken(store).change
    submit(store, make_spec("other"))
    with pytest.raises(PlanOutdated), store.begin_write() as tx:
        write_decisions(tx, [decision("train", 2)], at=at, now_s=NOW_S)
    assert taken(store).snapshot.jobs[0].holds == ()


def test_one_of_two_simultaneous_plans_succeeds(store, make_spec):
    submit(store, make_spec())
    at = taken(store).change
    gate, outcomes = threading.Barrier(2), []

    def decided(workers):
        gate.wait()
        try:
            with store.begin_write() as tx:
                write_decisions(tx, [decision("train", workers)], at=at, now_s=NOW_S)
            outcomes.append(workers)
        except PlanOutdated:
            outcomes.append(None)

    threads = [threading.Thread(target=decided, args=(workers,)) for workers in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count(None) == 1
    (job,) = taken(store).snapshot.jobs
    assert job.workers in outcomes


def test_a_grant_is_stored_with_its_reason_and_counted(store, make_spec):
    submit(store, make_spec())
    grant(store, "train", 1)
    grant(store, "train", 3)
    grant(store, "train", 0, drain=3)
    with store.begin_read() as tx:
        job = jobs.find_job(tx, "train")
        decided = history.list_decisions(tx, "train", 10)
    assert (job.resizes, job.preemptions, job.started_s) == (1, 1, NOW_S)
    assert job.reason.sentences == ("its minimum fits",)
    assert [sum(one.decision.workers.values()) for one in decided] == [0, 3, 1]


def test_other_reasons_alone_are_not_stored_as_a_decision(store, make_spec):
    submit(store, make_spec())
    kept = Decision(job="train", action="wait", why=(MinimumFits(node=""),))
    with store.begin_write() as tx:
        write_decisions(
            tx, [WordedDecision(decision=kept, sentences=("no room",))], at=read_change(tx), now_s=NOW_S
        )
    with store.begin_read() as tx:
        assert jobs.find_job(tx, "train").reason.sentences == ("no room",)
        assert history.list_decisions(tx, "train", 10) == ()


def test_devices_are_held_until_an_observation_shows_them_free(store, make_spec):
    submit(store, make_spec())
    grant(store, "train", 4)
    (job,) = taken(store).snapshot.jobs
    assert [(one.workers, one.starting) for one in job.holds] == [(4, 4)]
    see(store, "train", 4, state="running")
    grant(store, "train", 1, drain=3)
    (job,) = taken(store).snapshot.jobs
    assert [(one.workers, one.starting) for one in job.holds] == [(1, 0)]
    assert [(one.workers, one.deadline_s) for one in job.draining] == [(3, NOW_S + 60)]
    see(store, "train", 1)
    (job,) = taken(store).snapshot.jobs
    assert job.draining == ()


def test_workers_taken_back_before_their_arrival_are_held_and_absent(store, make_spec):
    submit(store, make_spec())
    grant(store, "train", 1)
    see(store, "train", 1, state="running")
    grant(store, "train", 4)
    (job,) = taken(store).snapshot.jobs
    assert (job.holds[0].starting, job.starting_since_s) == (3, NOW_S)
    grant(store, "train", 1, drain=3)
    (job,) = taken(store).snapshot.jobs
    assert [(one.workers, one.starting) for one in job.holds] == [(1, 0)]
    assert [one.workers for one in job.draining] == [3]
    with store.begin_read() as tx:
        assert jobs.find_job(tx, "train").observed.held == {"h100": HeldWorkers(workers=4, absent=3)}


def test_an_ended_job_is_in_no_plan_and_holds_nothing(store, make_spec):
    submit(store, make_spec())
    grant(store, "train", 2)
    with store.begin_write() as tx:
        job_rows.use(tx, "train", (Use(pool="h100", terms="owned", devices=2),), NOW_S)
    see(store, "train", 2, state="finished")
    assert taken(store).snapshot.jobs == ()
    with store.begin_read() as tx:
        job = jobs.find_job(tx, "train")
        assert history.sum_usage(tx, ("job",), 0, NOW_S + 1000, None) == ()
    assert (job.state, job.workers, job.grant.workers, job.observed.held) == ("finished", 0, {}, {})


def test_a_cancelled_job_that_holds_devices_wants_none_until_they_are_gone(store, make_spec):
    submit(store, make_spec())
    grant(store, "train", 2)
    with store.begin_write() as tx:
        assert job_rows.cancel(tx, "train", NOW_S).state == "running"
    (job,) = taken(store).snapshot.jobs
    assert (job.ends, job.spec.run_policy.suspend) == ("cancelled", False)


def test_usage_is_recorded_even_if_the_job_is_cancelled_before_the_next_decision(store, make_spec):
    """It has no workers any more, and its devices are charged until the next decision."""
    submit(store, make_spec())
    grant(store, "train", 2)
    with store.begin_write() as tx:
        job_rows.use(tx, "train", (Use(pool="h100", terms="owned", devices=2),), NOW_S)
    grant(store, "train", 0, drain=2)
    see(store, "train", 0, state="paused")
    with store.begin_write() as tx:
        assert job_rows.cancel(tx, "train", NOW_S + 100).state == "cancelled"
    with store.begin_read() as tx:
        (row,) = history.sum_usage(tx, ("job",), 0, NOW_S + 1000, None)
        assert row.owned_device_s == 200
        assert jobs.find_job(tx, "train").active_since_s is None


def test_forgetting_a_job_deletes_its_history_and_no_other(store, make_spec):
    policy = RunPolicy(ttl_seconds_after_finished=10.0)
    for name in ("train", "other"):
        submit(store, make_spec(name, run_policy=policy))
        grant(store, name, 1)
        with store.begin_write() as tx:
            history.append_event(tx, "job.submitted", "it was", NOW_S, team="vision", job=name)
    see(store, "train", 0, state="finished")
    with store.begin_read() as tx:
        assert jobs.list_due_jobs(tx, NOW_S) == ()
        (job,) = jobs.list_due_jobs(tx, NOW_S + 20)
    assert job.name == "train"
    with store.begin_write() as tx:
        jobs.forget_job(tx, msgspec.structs.replace(job, run_dir="/runs/train"), NOW_S + 20)
    with store.begin_read() as tx:
        assert jobs.find_job(tx, "train") is None
        assert history.list_events_after(tx, 0, 100, job="train") == ()
        assert history.list_decisions(tx, "train", 10) == ()
        assert len(history.list_events_after(tx, 0, 100, job="other")) == 2
        assert len(history.list_decisions(tx, "other", 10)) == 1
        assert jobs.find_left_files(tx, "train") == "/runs/train"
        assert jobs.find_left_files(tx, "other") == ""


def test_watchers_see_events_in_the_order_of_their_numbers(store):
    """With concurrent writers, a reader of the events after the last number misses none."""
    done, seen = threading.Event(), []

    def write(name):
        for number in range(20):
            with store.begin_write() as tx:
                history.append_event(tx, "note", f"{name}-{number}", NOW_S)

    def watch():
        last = 0
        while True:
            over = done.is_set()
            with store.begin_read() as tx:
                found = history.list_events_after(tx, last, 1000)
            seen.extend(one.id for one in found)
            last = seen[-1] if seen else 0
            if over:
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    writers = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    done.set()
    watcher.join()
    assert len(seen) == 80
    assert seen == sorted(set(seen))


def test_answers_to_idempotency_keys_are_deleted_after_a_week(store, api_over):
    api_over(store).token()
    with store.begin_write() as tx:
        (token,) = tx.execute(text("SELECT id FROM tokens")).scalars()
        first = replies.Reply(status=201, body=b"{}", etag='"1"')
        replies.keep_reply(tx, token, "k", b"digest", first, now_s=NOW_S)
        assert replies.find_reply(tx, token, "k") == replies.Kept(b"digest", first)
        replies.keep_reply(tx, token, "other", b"digest", first, now_s=NOW_S + replies.KEPT_S + 1)
        assert replies.find_reply(tx, token, "k") is None


def test_a_drained_node_stays_drained_when_it_is_seen_again(store):
    with store.begin_write() as tx:
        nodes.record_node(tx, "n1", "h100", 8, NOW_S)
        nodes.update_node(tx, "n1", "drain", "new disk")
        before = read_change(tx)
        nodes.record_node(tx, "n1", "h100", 8, NOW_S + 1)
        assert read_change(tx) == before
        nodes.record_node(tx, "n1", "h100", 7, NOW_S + 2)
        assert read_change(tx) == before + 1
        (node,) = nodes.list_nodes(tx)
    assert (node.wanted, node.devices, node.heard_s) == ("drain", 7, NOW_S + 2)


def test_a_reader_sees_one_state_of_the_store(store, make_spec):
    submit(store, make_spec())
    with store.begin_read() as tx:
        before = read_change(tx)
        submit(store, make_spec("other"))
        assert read_change(tx) == before
        assert len(jobs.list_planned_jobs(tx)) == 1


def test_a_reader_cannot_write(store, make_spec):
    with pytest.raises(StoreError, match=r"read-?only"), store.begin_read() as tx:
        job_rows.submit(tx, make_spec(), "ada", NOW_S)


@pytest.mark.parametrize("url", ["mysql://x/y", "sqlite://", "sqlite:///:memory:", "nonsense://"])
def test_unsuitable_databases_are_refused(url):
    with pytest.raises(BadInput):
        Store(url)


def test_an_error_names_an_unreachable_database_without_its_password():
    with pytest.raises(StoreError) as refused:
        Store("postgresql://ela:hunter2@127.0.0.1:1/none")
    assert "127.0.0.1" in str(refused.value)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("url", ["my sql://ela:hunter2@x/y", "postgresql://ela:hunter2@x:port/y"])
def test_an_unreadable_url_is_refused_without_showing_its_password(url):
    with pytest.raises(BadInput, match="not a URL of a database") as refused:
        Store(url)
    assert "hunter2" not in str(refused.value)


def test_every_write_of_a_document_raises_its_version(store):
    with store.begin_read() as tx:
        assert documents.find_document(tx, "pools", "h100") is None


def test_errors_of_the_database_are_not_swallowed(store):
    with pytest.raises(StoreError) as refused, store.begin_read() as tx:
        tx.execute(text("SELECT * FROM nowhere"))
    assert isinstance(refused.value.__cause__, DBAPIError)


# -- earlier jobs with the same program ----------------------------------------------------------------------


def end_measured(store, spec, speeds):
    job = submit(store, spec)
    observed = ObservedJob(speeds=speeds, weights=(1.0,) * len(speeds))
    with store.begin_write() as tx:
        ended = msgspec.structs.replace(job, observed=observed, state="succeeded", ended_s=NOW_S)
        jobs.update_job(tx, job, ended)


def find_prior(store, spec):
    with store.begin_read() as tx:
        earlier = jobs.find_earlier_job(tx, spec)
    return create_job(spec, "ada", NOW_S, earlier).observed.prior


def test_a_job_starts_from_the_speeds_of_the_newest_ended_job_with_its_program(store, make_spec):
    end_measured(store, make_spec("first"), ((1, 10.0),))
    end_measured(store, make_spec("second", args=("--other",)), ((1, 20.0), (2, 38.0)))
    end_measured(store, msgspec.structs.replace(make_spec("other-script"), script="/other.py"), ((1, 99.0),))
    end_measured(store, make_spec("never-measured"), ())
    submit(store, make_spec("still-running"))
    assert find_prior(store, make_spec("next")) == ((1, 20.0), (2, 38.0))


def test_a_job_of_another_team_or_with_other_devices_shows_nothing(store, make_spec):
    end_measured(store, make_spec("theirs", team="b"), ((1, 10.0),))
    end_measured(store, make_spec("larger", resources_per_worker=WorkerResources(devices=2)), ((1, 10.0),))
    assert find_prior(store, make_spec("next")) == ()
