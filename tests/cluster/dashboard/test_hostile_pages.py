"""A thousand hostile names, logs and messages in a real browser: they are shown, and stay texts."""

import time
from datetime import time as clock_time
from urllib.parse import urlencode

import msgspec
import pytest
from sqlalchemy import insert, update

from elastane.cluster.controller.store import history, tables
from elastane.cluster.controller.store.columns import encode_json
from elastane.cluster.nouns.config import Reservation, Weekly
from elastane.cluster.nouns.dashboard import DashboardSettings
from elastane.cluster.nouns.job_records import Explanation, HeldWorkers, ObservedJob
from elastane.cluster.nouns.job_workers import JobWorker
from elastane.cluster.nouns.pools import Pool
from elastane.run.nouns.records import EventLine
from elastane.run.nouns.spec import RunRecord, RunSpec
from tests.cluster.dashboard import run_records
from tests.cluster.dashboard.conftest import serve_dashboard
from tests.cluster.dashboard.hostile_texts import FIND_FOREIGN, HostileTexts, list_marks
from tests.waiting import WAIT_S, wait_until

pytestmark = pytest.mark.processes

SHOWN_KINDS = ("worker.died", "worker.joined", "warning", "resize.requested", "node.left", "message")
PAGES = (
    "/",
    "/jobs",
    "/jobs?sort=name",
    "/jobs?page=2",
    "/jobs/train",
    "/jobs/broken",
    "/usage?by=team",
    "/usage?by=user",
    "/usage?by=job",
    "/usage?by=pool",
    "/calendar",
    "/audit",
)
DECISION = '{"job":"train","action":"start","workers":{},"drain":{},"drainS":0,"why":[]}'


@pytest.fixture
def texts():
    return HostileTexts()


def write_hostile_run(root, texts) -> None:
    """Write a run with hostile names, labels, events and logs."""
    run_records.write_run(root)
    record = RunRecord(
        spec=RunSpec(name=texts.make("run"), script="/train.py"), created="2027-01-15T08:00:00Z"
    )
    (root / "run.json").write_bytes(msgspec.json.encode(record))
    labels = texts.make_many("label of a value", 12)
    lines = [
        msgspec.structs.replace(
            run_records.make_line(step), logged={label: step / 7 + n for n, label in enumerate(labels)}
        )
        for step in range(1, 41)
    ]
    (root / "ledger.jsonl").write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    events = [EventLine(time=run_records.BEGAN_S, kind="run.started", who="agent")]
    events += [
        EventLine(
            time=run_records.BEGAN_S + number,
            kind=SHOWN_KINDS[number % len(SHOWN_KINDS)],
            who=texts.make("process of a run event"),
            why=texts.make("reason of a run event"),
            step=1 + number % 40,
        )
        for number in range(150)
    ]
    means = dict.fromkeys(texts.make_many("label of an evaluation", 8), 1.0)
    events.append(
        EventLine(time=run_records.BEGAN_S + 200, kind="evaluation", detail=means, samples=8, step=30)
    )
    (root / "events.jsonl").write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in events))
    (root / "logs" / "worker-0.log").write_text("\n".join(texts.make_many("line of a log", 200)))


@pytest.fixture
def hostile(site, make_spec, tmp_path, texts, monkeypatch):
    """A site with hostile texts at every place of its store, as if nothing had been checked before."""
    now_s = site.api.clock()
    operator = site.ask("operator", user="op")
    operator.put("/pools/h100", json={"name": "h100", "device": "h100", "devices": 8}).raise_for_status()
    site.submit(*map(make_spec, ("train", "broken", *(f"job-{number}" for number in range(90)))))
    write_hostile_run(tmp_path / "train", texts)
    held = ObservedJob(held={"h100": HeldWorkers(workers=2)}, step=40, steps=100, loss=1.25)
    site.observe("train", state="running", observed=held, run_dir=str(tmp_path / "train"), workers=2)
    site.observe(
        "broken",
        state="failed",
        why=texts.make("end of a job"),
        traceback="\n".join(texts.make_many("traceback", 50)),
    )
    with site.api.store.begin_write() as tx:
        write_jobs(tx, texts, now_s)
        write_history(tx, texts, now_s)
        write_declarations(tx, texts, now_s)
    names = texts.make_many("machine of a worker", 10)
    monkeypatch.setattr(
        "elastane.cluster.controller.rest.workers._ask_workers", lambda _: list_hostile_workers(names)
    )
    return site


def write_jobs(tx, texts, now_s) -> None:
    """Give hostile texts to the jobs of the store; half of them have ended, and have a hostile name too."""
    jobs = tables.jobs
    told = Explanation(
        sentences=("It has 2.", *texts.make_many("reason of a running job", 2)), decided_s=now_s
    )
    tx.execute(update(jobs).where(jobs.c.name == "train").values(explained=encode_json(told)))
    for number in range(90):
        has_ended = number < 45
        reason = texts.make("reason of an ended job" if has_ended else "reason to wait")
        values = texts.make_fields("job", "user", "priority_class")
        values["explained"] = encode_json(Explanation(sentences=("It waits.", reason), decided_s=now_s))
        if has_ended:
            values |= {"state": "failed", "ended_s": now_s, **texts.make_fields("job", "name")}
        tx.execute(update(jobs).where(jobs.c.name == f"job-{number}").values(**values))
    for _ in range(8):
        values = texts.make_fields("agent", "engine", "pool", "node", "why")
        values |= {
            "workers": 1,
            "devices": 1,
            "key": b"x",
            "state": "running",
            "attempt": 1,
            "asked_s": now_s,
        }
        tx.execute(insert(tables.agents).values(job="train", **values))


def write_history(tx, texts, now_s) -> None:
    """Write hostile events, decisions, audit lines and uses."""
    for _ in range(50):
        event = texts.make_fields("event", "kind", "message")
        history.append_event(tx, *event.values(), now_s, team="vision", job="train")
    for _ in range(20):
        sentences = encode_json((texts.make("decision"),))
        values = {"time_s": now_s, "change": 1, "decision": DECISION, "sentences": sentences}
        tx.execute(insert(tables.decisions).values(job="train", **values))
    for _ in range(60):
        fields = texts.make_fields("audit", "user", "action", "target", "team", "detail")
        history.append_audit_line(tx, token="", allowed=True, now_s=now_s, **fields)
    for _ in range(20):
        values = texts.make_fields("usage", "job", "team", "user", "pool") | {"terms": "owned", "devices": 1}
        values |= {"price": 1.0, "from_s": time.time() - 5000, "until_s": time.time() - 50}
        tx.execute(insert(tables.usage).values(**values))
        values = texts.make_fields("egress", "job", "team", "user", "source", "target") | {
            "sent_bytes": 10**9
        }
        values |= {"price": 1.0, "from_s": time.time() - 5000, "until_s": time.time() - 50}
        tx.execute(insert(tables.egress).values(**values))


def write_declarations(tx, texts, now_s) -> None:
    """Write a pool with hostile words; the names of declarations are checked when they are read."""
    pool = Pool(name="a100", devices=4, **texts.make_fields("pool", "device", "site"))
    when = Weekly(start=clock_time(9), end=clock_time(18), zone="Europe/Berlin")
    reservation = Reservation(name="inference", pool="a100", devices=1, when=when)
    for kind, document in (("pools", pool), ("reservations", reservation)):
        values = {"kind": kind, "name": document.name, "version": 1, "body": encode_json(document)}
        tx.execute(insert(tables.documents).values(changed_s=now_s, **values))


async def list_hostile_workers(names):
    return tuple(
        JobWorker(worker=number, node=name, state=name, activity={"wait": 100})
        for number, name in enumerate(names)
    )


@pytest.fixture
def open_watched(chromium):
    """Open a page that takes all its parts from the stream, as changes do, and notes what it should not."""
    context = chromium.new_context(viewport={"width": 1366, "height": 860})
    context.set_default_timeout(WAIT_S * 1000)
    # The first parts of the stream then replace those of the page.
    context.add_init_script(
        "document.addEventListener('DOMContentLoaded', () => "
        "document.querySelectorAll('.part').forEach((part) => { part.dataset.digest = ''; }));"
    )
    page = context.new_page()
    page.trouble = []
    page.on("pageerror", lambda error: page.trouble.append(str(error)))
    page.on("console", lambda line: page.trouble.append(line.text) if line.type == "error" else None)
    page.on("dialog", lambda dialog: (page.trouble.append(dialog.message), dialog.dismiss()))
    page.on("popup", lambda _: page.trouble.append("a window was opened"))
    yield page
    context.close()


def read_page(page, url) -> str:
    """Return all texts of a page after its parts have come over the stream, and refuse foreign elements."""
    page.goto(url)
    wait_until(
        lambda: page.locator(".part[data-digest='']").count() == 0, f"{url} has its parts from the stream"
    )
    if url.endswith("/jobs/train"):
        # The page does not wait for the answer of the run itself, which names machines.
        page.locator("table.workers .machine").first.wait_for()
    for svg in page.locator("svg#chart, svg.small").all()[:4]:
        svg.hover()
    for mark in page.locator("svg#chart .mark").all()[:3]:
        mark.hover(force=True)
        page.mouse.move(0, 0)
    assert page.evaluate(FIND_FOREIGN) == [], url
    assert page.trouble == [], url
    return page.evaluate("document.documentElement.textContent + ' ' + document.title")


def test_a_thousand_hostile_texts_are_shown_and_none_is_more_than_a_text(
    hostile, texts, open_watched, tmp_path
):
    page = open_watched
    page.goto(f"{hostile.url}/sign-in")
    page.get_by_label("Your token").fill(hostile.api.token("operator", user="olga"))
    page.keyboard.press("Enter")
    page.wait_for_url(f"{hostile.url}/")
    page.get_by_text("Reading the jobs").wait_for(state="detached")
    read = [read_page(page, f"{hostile.url}{path}") for path in PAGES]
    with serve_dashboard(DashboardSettings(run_dir=str(tmp_path / "train")), key="k") as (url, _):
        page.goto(f"{url}/sign-in?key=k")
        read.append(read_page(page, f"{url}/"))
    shown = set(list_marks(read))
    assert shown <= texts.places.keys()
    assert len(shown) >= 1000
    # Every kind of place is on some page; only the reason of a job that has ended is on none.
    assert set(texts.places.values()) - {texts.places[number] for number in shown} == {
        "reason of an ended job"
    }


def test_a_hostile_address_is_a_text_too(hostile, texts, open_watched):
    page = open_watched
    page.goto(f"{hostile.url}/sign-in")
    for name in ("next", "key"):
        page.goto(f"{hostile.url}/sign-in?{urlencode({name: texts.make('address')})}")
        assert page.evaluate(FIND_FOREIGN) == []
    page.get_by_label("Your token").fill(texts.make("token"))
    page.keyboard.press("Enter")
    page.get_by_text("This token is not known here").wait_for()
    assert page.evaluate(FIND_FOREIGN) == []
