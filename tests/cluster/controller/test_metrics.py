"""The metrics of the controller, its probes, and the page of its API."""

import asyncio
import math
from typing import get_args

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from elastane.cluster.controller.metrics import definitions
from elastane.cluster.controller.metrics.meters import (
    COUNTED_EVENTS,
    MOST_JOBS,
    MOST_POOLS,
    MOST_TEAMS,
    OTHERS,
    BoundedNames,
)
from elastane.cluster.nouns.controller import Check
from elastane.cluster.nouns.job_records import ENDED, State
from elastane.cluster.nouns.pools import NodeWanted
from elastane.cluster.nouns.usage import Terms
from elastane.common.exposition import encode_readings


def ask(api, path, secret="", **headers):
    async def asked():
        transport = httpx.ASGITransport(app=api.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://cluster") as client:
            auth = {"Authorization": f"Bearer {secret}"} if secret else {}
            return await client.get(path, headers=auth | headers)

    return asyncio.run(asked())


def scrape(api, query=""):
    """Return the samples of a scrape, by name and labels; these are in the order of their names."""
    answer = ask(api, f"/metrics{query}", api.token("scraper", user="prometheus"))
    assert answer.status_code == 200
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def submit(cluster, name, **fields):
    spec = {
        "name": name,
        "team": "vision",
        "script": "/train.py",
        "elasticPolicy": {"minReplicas": 2, "maxReplicas": 4},
    }
    answer = cluster.api.user().post("/jobs", spec | fields)
    assert answer.status_code == 201, answer.text


@pytest.fixture
def busy(cluster):
    """A cluster of four devices. Its first job trains, and the second one waits."""
    operator = cluster.api.user("operator", user="olga")
    assert operator.put("/pools/a100", {"name": "a100", "device": "a100", "devices": 4}).is_success
    scrape(cluster.api)
    submit(cluster, "first")
    cluster.until(lambda: cluster.workers("first") == 4)
    submit(cluster, "second", elasticPolicy={"minReplicas": 4, "maxReplicas": 4})
    cluster.pass_time(30)
    return cluster


def test_a_scrape_shows_jobs_and_devices_as_they_are(busy):
    found = scrape(busy.api)
    assert found["elastane_jobs", "running", "vision"] == 1
    assert found["elastane_jobs", "queued", "vision"] == 1
    assert found["elastane_queue_oldest_seconds", "vision"] == 30
    assert found["elastane_pool_devices", "a100"] == 4
    assert found["elastane_pool_devices_free", "a100"] == 0
    assert found["elastane_team_devices_used", "a100", "vision"] == 4
    assert sum(value for key, value in found.items() if key[0] == "elastane_pool_devices_used") == 4
    assert found["elastane_job_workers", "first", "vision"] == 4
    assert found["elastane_job_workers_wanted", "first", "vision"] == 4
    assert found["elastane_job_step", "first", "vision"] > 10
    # It waits, so it has no series of its own.
    assert not any("second" in key for key in found)


def test_counters_and_histograms_count_each_thing_once(busy):
    for _ in range(2):
        found = scrape(busy.api)
        assert found["elastane_job_events_total", "submitted", "vision"] == 2
        assert found["elastane_job_events_total", "started", "vision"] == 1
        assert found["elastane_job_events_total", "running", "vision"] == 1
        assert found["elastane_queue_time_seconds_count", "vision"] == 1
        assert found["elastane_queue_time_seconds_sum", "vision"] <= 2
    busy.world.running["first"].steps = busy.world.running["first"].step
    busy.until(lambda: busy.workers("second") == 4)
    found = scrape(busy.api)
    assert found["elastane_job_events_total", "finished", "vision"] == 1
    assert found["elastane_queue_time_seconds_count", "vision"] == 2
    assert found["elastane_queue_time_seconds_sum", "vision"] >= 30


def test_device_seconds_add_up_over_scrapes_as_the_accounts_have_them(busy):
    begin = busy.clock()
    before = scrape(busy.api)
    for _ in range(5):
        busy.pass_time(10)
        after = scrape(busy.api)
    used = sum_use(after) - sum_use(before)
    assert used == pytest.approx(4 * (busy.clock() - begin))


def sum_use(found):
    return sum(value for key, value in found.items() if key[0] == "elastane_device_use_seconds_total")


def test_the_loop_measures_plans_and_arrivals(busy):
    meters = busy.loop._meters
    assert sum(meters.plan_times.read().counts) >= 2
    arrivals = meters.arrival_times.read()
    assert sum(arrivals.counts) == 1
    assert 3 <= arrivals.sum <= 10, "four workers arrive, one a second"


def test_an_operator_can_leave_out_the_series_of_jobs(busy):
    found = scrape(busy.api, "?jobs=false")
    assert not any(key[0].startswith("elastane_job_") and "first" in key for key in found)
    assert found["elastane_jobs", "running", "vision"] == 1


@pytest.mark.parametrize("role", ["viewer", "submitter", "team-admin", "reporter"])
def test_only_scrapers_and_operators_read_metrics(api, role):
    assert ask(api, "/metrics").status_code == 401
    refused = ask(api, "/metrics", api.token(role))
    assert refused.status_code == 403
    assert ask(api, "/metrics", api.token("operator")).status_code == 200
    scraper = api.user("scraper")
    for path in ("/jobs", "/usage", "/config", "/audit", "/nodes", "/tokens", "/pools"):
        assert scraper.get(path).status_code == 403


def test_names_of_teams_are_limited_and_keep_their_labels():
    names = BoundedNames()
    first = [names.bound_team(f"team{number}") for number in range(MOST_TEAMS + 5)]
    assert first[-5:] == [OTHERS] * 5
    assert len(set(first)) == MOST_TEAMS + 1
    assert names.bound_team("team7") == "team7"


def test_no_cluster_has_more_than_5000_series():
    most = {
        "team": MOST_TEAMS + 1,
        "pool": MOST_POOLS + 1,
        "state": len(get_args(State)) - len(ENDED),
        "event": len(COUNTED_EVENTS),
        "terms": len(get_args(Terms)),
        "wanted": len(get_args(NodeWanted)),
        "check": len(get_args(Check)),
        "version": 1,
        "job_name": MOST_JOBS,
    }
    total = 0
    for metric in definitions.CLUSTER_METRICS:
        # Each job has one team.
        labels = [label for label in metric.labels if label != "team" or "job_name" not in metric.labels]
        total += math.prod(most[label] for label in labels) * (len(metric.bounds) + 3 if metric.bounds else 1)
    assert 4000 < total <= 5000


def test_labels_of_hostile_names_stay_in_their_line():
    body, _ = encode_readings({definitions.JOBS: {('a"} 1\nevil', "running"): 1.0}})
    families = list(text_string_to_metric_families(body.decode()))
    assert [family.name for family in families] == ["elastane_jobs"]
    assert families[0].samples[0].labels["team"] == 'a"} 1\nevil'


def test_a_store_that_cannot_be_used_leaves_the_metrics_of_health(api):
    secret = api.token("scraper")
    api.store.soundness.condition.report("integrity", "the store is damaged", "restore it", log=False)
    found = {
        sample.labels["check"]: sample.value
        for family in text_string_to_metric_families(ask(api, "/metrics", secret).text)
        for sample in family.samples
        if family.name == "elastane_check_failing"
    }
    assert found["integrity"] == 1
    assert found["writing"] == 0


def test_probes_need_no_token_and_say_what_fails(api):
    assert ask(api, "/healthz").text == "ok\n"
    assert ask(api, "/readyz").text == "ok\n"
    condition = api.store.soundness.condition
    condition.report("turns", "the latest cycle failed", "read the log", log=False)
    # It still answers requests, and agents need its answers.
    assert ask(api, "/readyz").status_code == 200
    condition.report("age", "the store is an older one", "restore it", log=False)
    ready = ask(api, "/readyz")
    assert (ready.status_code, ready.text) == (503, "age: the store is an older one\n")
    assert ask(api, "/healthz").status_code == 200


def test_the_page_of_the_api_loads_nothing_from_elsewhere(api):
    page = ask(api, "/docs")
    assert page.status_code == 200
    assert "//" not in page.text.replace("<!doctype", "")
    for path in ("/docs/swagger-ui.css", "/docs/swagger-ui-bundle.js", "/docs/start.js"):
        assert path in page.text
        file = ask(api, path)
        assert file.status_code == 200
        assert file.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
    assert "unsafe" not in page.headers["content-security-policy"]
    assert ask(api, "/docs/redoc.standalone.js").status_code == 422


def test_prometheus_finds_the_pages_of_running_jobs_at_the_address_that_it_asked(busy):
    scraper = busy.api.user("scraper", user="prometheus")
    (target,) = scraper.get("/scrape-targets").json()
    assert target == {
        "targets": ["cluster"],
        "labels": {
            "__metrics_path__": "/v1/jobs/first/metrics",
            "job_name": "first",
            "team": "vision",
        },
    }
    # The world of this test has no coordinators.
    answer = scraper.get("/jobs/first/metrics")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
    assert scraper.get("/jobs/none/metrics").status_code == 404
    assert busy.api.user("viewer", team="speech", user="eve").get("/jobs/first/metrics").status_code == 404
    assert busy.api.user("viewer").get("/jobs/first/metrics").status_code == 503
    assert busy.api.user("viewer").get("/scrape-targets").status_code == 403
