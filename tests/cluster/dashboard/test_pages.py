"""The pages show what the API has, live, and every text as text."""

import json

import httpx
import pytest
from sqlalchemy import insert

from elastane.cluster.controller.store import history
from elastane.cluster.controller.store.columns import encode_json
from elastane.cluster.controller.store.tables import documents
from elastane.cluster.nouns.job_records import ObservedJob
from elastane.cluster.nouns.pools import Pool
from tests.waiting import WAIT_S, wait_until

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\u202e{{ 7*7 }}\x00"


def test_the_first_page_has_the_figures_the_pools_and_the_queue(site, make_spec):
    operator = site.ask("operator", user="op")
    operator.put(
        "/pools/h100", json={"name": "h100", "device": "h100", "devices": 8, "price": 2.5}
    ).raise_for_status()
    site.submit(make_spec())
    browser = site.sign_in()
    page = wait_until(
        lambda: text if "30 days" in (text := browser.get("/").text) and "train" in text else "", "figures"
    )
    for words in (
        "Queue time",
        "Utilisation",
        "Time to a target",
        "Interventions per run",
        "Goodput",
        "Cost",
    ):
        assert words in page
    assert "h100" in page
    assert 'href="/jobs/train"' in page


def test_a_change_reaches_an_open_page_without_a_list_of_all_jobs(site, make_spec, monkeypatch):
    site.submit(make_spec())
    asked = []
    browser = site.sign_in()
    wait_until(lambda: 'href="/jobs/train"' in browser.get("/jobs").text, "the jobs are read")
    handle = site.api.app.middleware_stack

    async def count(scope, receive, send):
        if scope["type"] == "http" and (scope["method"], scope["path"]) == ("GET", "/v1/jobs"):
            asked.append(scope["query_string"].decode())
        await handle(scope, receive, send)

    site.api.app.middleware_stack = count
    with httpx.stream(
        "GET", f"{site.url}/live/jobs", cookies=dict(browser.cookies), timeout=WAIT_S
    ) as stream:
        parts = read_parts(stream)
        first = next(parts)
        assert "jobs_rows" in first
        site.submit(make_spec("another"))
        wait_until(lambda: "another" in next(parts).get("jobs_rows", ""), "the new job is on the page")
    assert all("state=running" in query or "state=queued" in query for query in asked)


def read_parts(stream):
    for line in stream.iter_lines():
        if line.startswith("data: ["):
            yield {name: html for name, _, html in json.loads(line.removeprefix("data: "))}


def test_a_hostile_text_stays_a_text_on_every_page(site, make_spec, tmp_path):
    site.submit(make_spec())
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "worker-0.log").write_text(HOSTILE)
    site.observe(
        "train",
        state="failed",
        observed=ObservedJob(),
        run_dir=str(tmp_path),
        why=HOSTILE,
        traceback=HOSTILE,
    )
    with site.api.store.begin_write() as tx:
        history.append_event(tx, "job.failed", HOSTILE, site.api.clock(), team="vision", job="train")
    browser = site.sign_in()
    for path in (
        "/",
        "/jobs",
        f"/jobs?q={HOSTILE.replace(chr(0), '')}",
        "/jobs/train",
        "/jobs/train?log=worker-0",
    ):
        page = browser.get(path).text
        assert "<script>alert" not in page
        assert "<img src=x" not in page
        assert "49" not in page.partition("7*7")[0][-20:]
    assert "&lt;script&gt;alert(1)" in browser.get("/jobs/train").text


def test_a_job_that_does_not_exist_is_not_found_and_the_message_is_in_words(site):
    browser = site.sign_in()
    answer = browser.get("/jobs/nothing")
    assert answer.status_code == 404
    assert "there is no job nothing" in answer.text


@pytest.mark.parametrize(
    "path", ["/jobs/..%2f..%2fetc", "/jobs/a%00b", "/static/../app.py", "/static/nothing.js"]
)
def test_odd_addresses_are_not_found(site, path):
    assert site.sign_in().get(path).status_code in {404, 502}


def test_a_damaged_declaration_does_not_hide_the_jobs(site, make_spec):
    site.submit(make_spec())
    body = encode_json(Pool(name="not a name", device="cpu", devices=4))
    with site.api.store.begin_write() as tx:
        tx.execute(
            insert(documents).values(kind="pools", name="damaged", version=1, body=body, changed_s=1.0)
        )
    browser = site.sign_in("operator", user="olga")
    page = wait_until(
        lambda: text if 'href="/jobs/train"' in (text := browser.get("/jobs").text) else "",
        "the jobs are read",
    )
    assert "does not say all" in page
    assert "the stored record of damaged in the declared pools cannot be read" in page
    assert "does not answer" not in page


def test_a_token_that_is_revoked_ends_its_pages(site):
    browser = site.sign_in("team-admin", user="ada")
    admin = site.ask("operator", user="op")
    (token,) = [found for found in admin.get("/tokens").json()["items"] if found["user"] == "ada"]
    admin.delete(f"/tokens/{token['id']}")
    wait_until(lambda: browser.get("/").url.path == "/sign-in", "the revoked token is refused")
