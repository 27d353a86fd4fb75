"""Kill a process that writes into a store again and again at random moments, and check the store after each.

Run it as ``python -m tests.cluster.controller.store_kills URL ROUNDS SEED``. If a promise is broken, it
prints the promise, the round and the seed, and exits with 1.
"""

import itertools
import os
import random
import signal
import sys
import time

import msgspec
from sqlalchemy import func, select, text

from elastane.cluster.controller.planning import WordedDecision, write_decisions
from elastane.cluster.controller.store import history, rows, tables
from elastane.cluster.controller.store.database import Store, read_change
from elastane.cluster.nouns.job_records import HeldWorkers, ObservedJob
from elastane.cluster.nouns.jobs import JobSpec
from elastane.cluster.nouns.plans import Decision, MinimumFits
from elastane.cluster.nouns.usage import Use
from tests.cluster.controller import job_rows

ID = "tok-1"
LONGEST_S = 0.05


def write_for_ever(url, prefix, seed, acknowledged):
    """Make transactions of every kind, and write each promise into the pipe."""
    store, drawn = Store(url), random.Random(seed)
    os.write(acknowledged, b"open\n")
    names = []
    for number in itertools.count():
        now_s = time.time()
        with store.begin_write() as tx:
            if not names or drawn.random() < 0.4:
                verb, name = "submit", f"{prefix}-{number}"
                job_rows.submit(tx, JobSpec(name=name, team="t", script="x.py"), "ada", now_s)
                names.append(name)
            else:
                verb, name = drawn.choice(["grown", "finish"]), drawn.choice(names)
                if verb == "grown":
                    workers = drawn.randint(0, 4)
                    one = Decision(
                        job=name,
                        action="grow",
                        workers={"p": workers} if workers else {},
                        why=(MinimumFits(node=""),),
                    )
                    write_decisions(
                        tx, [WordedDecision(decision=one, sentences=("so",))], at=read_change(tx), now_s=now_s
                    )
                    job_rows.use(tx, name, (Use(pool="p", terms="owned", devices=workers),), now_s)
                else:
                    observed = ObservedJob(held={"p": HeldWorkers(workers=1)})
                    job_rows.observe(tx, name, now_s, state="finished", observed=observed)
                    names.remove(name)
            if verb != "grown":
                # Of which deciding tells by itself.
                history.append_event(tx, f"job.{verb}", name, now_s, team="t", job=name)
            history.append_audit_line(
                tx,
                token=ID,
                user="ada",
                action=verb,
                target=name,
                team="t",
                allowed=True,
                detail="",
                now_s=now_s,
            )
        os.write(acknowledged, f"{verb} {name}\n".encode())


def look(url, promised, changes):
    """Check the store, and return the number of its last change.

    Raises:
        AssertionError: a promise is broken.
    """
    store = Store(url)
    with store.begin_read() as tx:
        if store.engine.dialect.name == "sqlite":
            assert tx.execute(text("PRAGMA integrity_check")).scalar_one() == "ok"
        told = [
            f"{one.kind.removeprefix('job.')} {one.job}"
            for one in history.list_events_after(tx, 0, 1_000_000)
        ]
        lines = tx.execute(select(tables.audit.c.action, tables.audit.c.target).order_by(tables.audit.c.id))
        audited = [f"{action} {target}" for action, target in lines]
        assert told == audited, "an event without its line in the audit log, or the other way round"
        missing = set(promised) - set(told)
        assert not missing, f"promised and lost: {missing}"
        submitted = [one.removeprefix("submit ") for one in told if one.startswith("submit ")]
        found = tx.execute(select(tables.jobs)).all()
        assert sorted(submitted) == sorted(row.name for row in found), "a job lost, or there twice"
        assert read_change(tx) == len(told), "a change that was not counted, or counted without being made"
        assert read_change(tx) >= changes, "the count of changes went back"
        last = dict(
            tx.execute(
                select(tables.decisions.c.job, tables.decisions.c.decision).where(
                    tables.decisions.c.id.in_(
                        select(func.max(tables.decisions.c.id)).group_by(tables.decisions.c.job)
                    )
                )
            ).all()
        )
        for row in found:
            job = rows.decode_job(row)
            decided = msgspec.json.decode(last[job.name], type=Decision).workers if job.name in last else {}
            expected = {} if job.state == "finished" else decided
            assert job.grant.workers == expected, f"{job.name} has what nobody decided"
            assert job.workers == sum(expected.values())
            intervals = tx.execute(
                select(tables.usage).where(tables.usage.c.job == job.name).order_by(tables.usage.c.from_s)
            ).all()
            for one, following in itertools.pairwise(intervals):
                assert one.until_s <= following.from_s, f"usage of {job.name} was counted twice"
            assert not intervals or intervals[-1].until_s <= row.using_since_s
        number = read_change(tx)
    store.close()
    return number


def main(url, rounds, seed):
    drawn = random.Random(seed)
    promised, changes = [], 0
    Store(url).close()
    for round_ in range(rounds):
        mine, theirs = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(mine)
            try:
                write_for_ever(url, f"r{round_}", drawn.random(), theirs)
            finally:
                os._exit(1)
        os.close(theirs)
        pipe = os.fdopen(mine)
        # Some are killed while they open the store, the others in one of their first transactions.
        heard = [pipe.readline() for _ in range(drawn.choice([0, 1, 2, 4, 8, 16]))]
        time.sleep(drawn.uniform(0, LONGEST_S))  # not a wait: the instant is drawn
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WTERMSIG(status) == signal.SIGKILL, f"round {round_}: the writer ended by itself"
        with pipe:
            told = "".join([*heard, pipe.read()]).splitlines()
            promised += [line for line in told if line != "open"]
        try:
            changes = look(url, promised, changes)
        except AssertionError as wrong:
            sys.exit(f"round {round_} of seed {seed}: {wrong}")
    sys.stdout.write(f"{rounds} kills, {changes} changes, {len(promised)} of them promised\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
