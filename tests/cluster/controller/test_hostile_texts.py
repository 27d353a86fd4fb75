"""A terminal shows names and texts of jobs, users and files as text, without their control characters."""

import re

import msgspec
import pytest
from sqlalchemy import insert, update
from typer.testing import CliRunner

from elastane.cli.jobs.job_display import describe_job_event
from elastane.cli.jobs.screen import render_screen
from elastane.cli.jobs.top import read_view
from elastane.cli.main import app
from elastane.cli.terminal import Terminal, escape_json, split_log_line
from elastane.cluster.client.context import connect
from elastane.cluster.controller.store import history, jobs
from elastane.cluster.controller.store.columns import encode_json
from elastane.cluster.controller.store.tables import decisions, documents, nodes, tokens, usage
from elastane.cluster.nouns.config import Cohort, DeclaredEngine, PriorityClass, Team, Trigger
from elastane.cluster.nouns.history import Event
from elastane.cluster.nouns.job_records import Explanation
from elastane.cluster.nouns.pools import Pool
from elastane.common.bodies import Problem
from elastane.common.connections.controller_connection import RequestRefused
from elastane.common.connections.controller_context import Context, save_context
from elastane.run.nouns.records import EventLine
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import RunRecord, RunSpec
from tests.cluster.controller import job_rows

MARK = "hostile"
EVIL = (
    f"{MARK}\x1b[2J\x1b]0;owned\x07\x1b[35;7m\x9b31m\u202ekcatta\u2066\u200b\r\nFORGED 12:00:00 job.finished"
    "\n\tFORGED\x0b\x0c\x85\u2028FORGED [bold red]x[/] [link=http://evil.example]y[/link] :warning: \\[ \x7f"
)
NOW_S = 1_800_000_000.0
STYLE = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[hl]")
"""Sequences that rich writes for the styles of the verbs, but for the one above."""


@pytest.fixture
def hostile(cluster, served, tmp_path, monkeypatch, make_spec):
    """Build a cluster with a hostile value in every text of its store, as if no check existed."""
    monkeypatch.setenv("ELASTANE_HOME", str(tmp_path / "home"))
    store = cluster.api.store
    spec = make_spec(
        "train", args=(EVIL,), working_dir="/" + EVIL, queue=EVIL, priority_class=EVIL, env={"A": EVIL}
    )
    logs = tmp_path / "run" / "logs"
    logs.mkdir(parents=True)
    (logs / "worker-0.log").write_bytes(EVIL.encode() + b"\n\xff\xfe\n")
    with store.begin_write() as tx:
        job_rows.submit(tx, make_spec("train"), "ada", NOW_S)
        job_rows.submit(tx, make_spec("over"), EVIL, NOW_S)
        told = encode_json(Explanation(sentences=(EVIL, EVIL), decided_s=NOW_S))
        values = {"spec": encode_json(spec), "queue": EVIL, "priority_class": EVIL, "explained": told}
        tx.execute(
            update(jobs.jobs).values(
                user=EVIL, why=EVIL, traceback=f"Traceback\n{EVIL}", run_dir=str(tmp_path / "run"), **values
            )
        )
        over = update(jobs.jobs).where(jobs.jobs.c.name == "over")
        tx.execute(over.values(state="failed", ended_s=NOW_S))
        for kind in ("job.crashed", EVIL):
            history.append_event(tx, kind, EVIL, NOW_S, team="vision", job="train")
        history.append_audit_line(
            tx,
            token=EVIL,
            user=EVIL,
            action=EVIL,
            target=EVIL,
            team=EVIL,
            allowed=True,
            detail=EVIL,
            now_s=NOW_S,
        )
        decision = '{"job":"train","action":"start","workers":{},"drain":{},"drainS":0,"why":[]}'
        tx.execute(
            insert(decisions).values(
                time_s=NOW_S, change=1, job="train", decision=decision, sentences=encode_json((EVIL, EVIL))
            )
        )
        tx.execute(
            insert(nodes).values(
                name=EVIL, pool=EVIL, devices=1, wanted="drain", why=EVIL, heard_s=NOW_S, version=1
            )
        )
        tx.execute(
            insert(tokens).values(
                id="tok-evil", digest=b"x", user=EVIL, role="viewer", team=EVIL, note=EVIL, created_s=NOW_S
            )
        )
        tx.execute(
            insert(usage).values(
                job=EVIL, team=EVIL, user=EVIL, pool=EVIL, terms="owned", devices=1, price=1.0,
                from_s=NOW_S - 50, until_s=NOW_S,
            )
        )  # fmt: skip
    with served(cluster.api) as url:
        save_context(Context(url=url, token=cluster.api.token("operator", user="olga"), team="vision"))
        yield cluster


def build_evil_pool():
    evil = {EVIL: EVIL}
    return Pool(name="h100", device=EVIL, devices=1, site=EVIL, labels=evil, engine=EVIL, options=evil)


@pytest.fixture
def declared(hostile):
    """Add hostile declarations to the same cluster."""
    with hostile.api.store.begin_write() as tx:
        for kind, document in (
            ("engines", DeclaredEngine(name="hpc", kind="slurm", options={EVIL: EVIL})),
            ("pools", build_evil_pool()),
            ("priorities", PriorityClass(name="high", value=1, description=EVIL)),
            ("cohorts", Cohort(name="all", parent=EVIL)),
            ("teams", Team(name="vision", cohort=EVIL)),
            ("triggers", Trigger(name="busy", metric=EVIL, above=1.0, pool=EVIL, limit=1)),
        ):
            tx.execute(
                insert(documents).values(
                    kind=kind, name=document.name, version=1, body=encode_json(document), changed_s=NOW_S
                )
            )


CSV = "usage --by user --csv --from 2026-01-01"
VERBS = [
    "jobs",
    "describe train",
    "describe over",
    "explain train",
    "explain over",
    "events train",
    "logs train",
    "audit",
    "token list --all",
    "node list",
    "usage --by team --by user --by job --by pool --from 2026-01-01",
    CSV,
    "scale train --max 2",
]
OF_DECLARATIONS = [
    "top",
    "pool list",
    "pool show h100",
    "engine list",
    "engine show hpc",
    "team list",
    "team show vision",
    "cohort list",
    "priority list",
    "trigger list",
    "config show",
]


def checked(said, verb):
    """Check that the output has only printable characters, line breaks, and lines of the command."""
    left = said.replace("\r\n", "").replace("\n", "")
    assert left.isprintable(), (verb, [c for c in left if not c.isprintable()], said)
    assert not any(line.startswith("FORGED") for line in said.splitlines()), (verb, said)
    return said


def typed(verb, *more):
    done = CliRunner().invoke(app, [*verb.split(), *more])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


@pytest.mark.parametrize("verb", VERBS)
def test_no_command_prints_control_characters_of_a_text(hostile, verb, monkeypatch):
    check_verb(verb, monkeypatch)


@pytest.mark.parametrize("verb", OF_DECLARATIONS)
def test_no_command_prints_control_characters_of_a_declaration(declared, verb, monkeypatch):
    check_verb(verb, monkeypatch)


def check_verb(verb, monkeypatch):
    said = checked(typed(verb).output, verb)
    assert MARK in said, (verb, said)
    # Markup is shown, not obeyed.
    assert "bold" not in said or "[bold" in said
    if verb not in {CSV, "config show", "scale train --max 2"}:
        document = checked(typed(verb, "--json").stdout, verb)
        for line in document.splitlines():
            msgspec.json.decode(line)
    if verb != "top":  # on a terminal it would go on for ever
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.setenv("COLUMNS", "200")
        coloured = typed(verb).output
        assert "\x1b[35;7m" not in coloured
        assert "\x1b]8" not in coloured
        checked(STYLE.sub("", coloured), verb)


def test_the_screen_of_top_has_no_control_characters_of_a_text(hostile):
    with connect() as cluster:
        sight = read_view(cluster, "", 100)
    drawn = Terminal()
    with drawn.capture() as shown:
        drawn.print(render_screen(sight, EVIL, 200, 50))
    assert MARK in checked(shown.get(), "top")


def test_json_with_escapes_has_the_same_value():
    document = {"a": EVIL + "\U000e0041é", "b": "plain"}
    text = escape_json(msgspec.json.encode(document))
    assert text.isprintable()
    assert "é" in text
    assert msgspec.json.decode(text) == document


def test_a_refusal_is_printed_whatever_text_the_server_sends():
    problem = Problem(type="", title=EVIL, status=400, detail=EVIL, means=EVIL, do=EVIL, field=EVIL)
    told = str(RequestRefused(problem))
    assert len(told.splitlines()) == 3
    assert told.replace("\n", "").isprintable()


def test_an_event_is_one_line():
    event = Event(id=1, time_s=NOW_S, kind=EVIL, team=EVIL, job=EVIL, message=EVIL)
    assert describe_job_event(event, of_job=False).plain.isprintable()


@pytest.mark.parametrize("verb", ["events evil", "logs evil", "list", "ps evil", "explain evil"])
def test_no_command_prints_control_characters_of_the_files_of_a_run(tmp_path, monkeypatch, verb):
    monkeypatch.setenv("ELASTANE_HOME", str(tmp_path))
    run = RunDir(tmp_path / "runs" / "evil")
    run.logs.mkdir(parents=True)
    spec = RunSpec(name=EVIL, script=EVIL, args=(EVIL,))
    run.run.write_bytes(msgspec.json.encode(RunRecord(spec=spec, created=EVIL)))
    (run.logs / "worker-0.log").write_bytes(EVIL.encode())
    event = EventLine(time="2026-11-22T00:00:00Z", kind=EVIL, who=EVIL, why=EVIL, detail={EVIL: EVIL})
    run.events.write_bytes(msgspec.json.encode(event) + b"\n")
    done = CliRunner().invoke(app, verb.split())
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    checked(done.output, verb)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("loss 3.2", ["loss 3.2"]),
        ("", [""]),
        ("\x1b[32mgreen\x1b[0m", ["green"]),
        (" 10%|#   |\r 20%|##  |\r", [" 10%|#   |", " 20%|##  |"]),
        ("a\tb", ["a       b"]),
        ("windows\r", ["windows"]),
        ("\x1b[2Jgone", ["\\x1b[2Jgone"]),
        ("harmless\rrm -rf /", ["harmless", "rm -rf /"]),
    ],
)
def test_a_line_of_a_log_is_shown_with_escapes(line, shown):
    assert split_log_line(line) == shown


def test_a_log_can_be_printed_unchanged(hostile):
    done = CliRunner().invoke(app, ["logs", "train", "0", "--raw"])
    assert EVIL.split("\r", maxsplit=1)[0] in done.stdout
