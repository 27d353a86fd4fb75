"""The links of the description lead from an answer to the next request; following them breaks nothing."""

import functools
import itertools
import sys
from collections import Counter
from random import Random
from types import SimpleNamespace

import msgspec
import pytest
import schemathesis
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.core.result import Ok
from schemathesis.core.transforms import UNRESOLVABLE
from schemathesis.generation.stateful.state_machine import StepOutput
from sqlalchemy import update

from elastane.cluster.controller.cluster.declarations import build_config, diff_configs
from elastane.cluster.controller.rest.app import describe_api
from elastane.cluster.controller.rest.context import Rate, Settings
from elastane.cluster.controller.rest.links import list_links
from elastane.cluster.controller.store import documents, jobs, nodes
from elastane.cluster.controller.store.database import Store
from elastane.cluster.nouns.config import Cohort, Config, EgressPrices, PriorityClass, Team, Trigger
from elastane.cluster.nouns.pools import Pool
from tests.cluster.controller import job_rows

NOW_S = 1_800_000_000.0
SEED, WALKS, STEPS = 14, 60, 10
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
UNHURRIED = Settings(per_token=Rate(per_s=1e6, burst=10**6), per_address=Rate(per_s=1e6, burst=10**6))
NAMES = (f"made{number}" for number in itertools.count())


@functools.cache
def build_machine():
    # A stream of events never ends; tests of its own watch it.
    schema = schemathesis.openapi.from_dict(describe_api()).exclude(path="/v1/watch")
    return schema.as_state_machine()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, api_over, make_spec, served):
    """Build a cluster with one thing of each kind."""
    home = tmp_path_factory.mktemp("links")
    store = Store(f"sqlite:///{home}/store.db")
    api = api_over(store, home=home, settings=UNHURRIED)
    config = Config(
        pools=(Pool(name="h100", device="h100", devices=8),),
        teams=(Team(name="vision"),),
        cohorts=(Cohort(name="all"),),
        priorities=(PriorityClass(name="high", value=1),),
        egress=(EgressPrices(name="berlin", prices={"*": 0.05}),),
        triggers=(Trigger(name="busy", metric="qps", above=1.0, pool="h100", limit=1),),
    )
    logs = home / "run" / "logs"
    logs.mkdir(parents=True)
    (logs / "worker-0.log").write_text("loss 3.2\n" * 100)
    with store.begin_write() as tx:
        documents.write_documents(tx, diff_configs(build_config([]), config), NOW_S)
        # Not seen for long, so that it may be forgotten.
        nodes.record_node(tx, "n1", "h100", 8, NOW_S - 1e6)
        for name in ("first", "second"):
            job_rows.submit(tx, make_spec(name), "ada", NOW_S)
        tx.execute(update(jobs.jobs).values(run_dir=str(home / "run")))
    operator = api.user("operator", user="olga")
    for verb in ("pause", "resume"):
        assert operator.post(f"/jobs/first/{verb}").is_success
    with served(api) as url:
        yield SimpleNamespace(
            store=store,
            operator=operator,
            call={"base_url": url, "headers": {"Authorization": f"Bearer {operator.token}"}, "timeout": 20},
            make_spec=make_spec,
        )
    store.close()


ONCE = {"type": "once", "start": "2030-01-01T00:00:00Z", "end": "2030-01-02T00:00:00Z"}
DOCUMENTS = {
    "cohorts": {},
    "teams": {},
    "priorities": {"value": 3},
    "engines": {"kind": "slurm", "options": {"setup": "module load cuda"}},
    "pools": {"device": "h100", "devices": 1},
    "egress": {"prices": {"boston": 0.09, "*": 0.05}},
    "reservations": {"pool": "h100", "devices": 1, "when": ONCE},
    "triggers": {"metric": "qps", "above": 1.0, "pool": "h100", "limit": 1},
}
BODIES = {
    "scale": {"maxReplicas": 3},
    "priority": {"priorityClass": "high"},
    "bounds": {"budget": 5.0},
    "drain": {"why": "new disk"},
    "fail": {},
}


def good_request(label, cluster):
    """Return the arguments of a successful request with links in its answer."""
    name, kind = next(NAMES), label.split("/")[2]
    match label:
        case "POST /v1/jobs":
            return {"body": msgspec.to_builtins(cluster.make_spec(name))}
        case "POST /v1/tokens":
            return {"body": {"user": "ada", "role": "viewer", "team": "vision"}}
        case "GET /v1/jobs/{job}":
            assert cluster.operator.post("/jobs", cluster.make_spec(name)).is_success
            return {"path_parameters": {"job": name}}
        case _ if "/{job}" in label:
            limit = {"query": {"limit": 1}} if "events" in label or "logs" in label else {}
            return {"path_parameters": {"job": "first"}, **limit}
        case _ if "/{node}" in label:
            with cluster.store.begin_write() as tx:
                nodes.record_node(tx, "n1", "h100", 8, NOW_S - 1e6)
            return {"path_parameters": {"node": "n1"}, "body": {"why": name}}
        case "GET /v1/nodes":
            with cluster.store.begin_write() as tx:
                nodes.record_node(tx, "n1", "h100", 8, NOW_S - 1e6)
            return {}
        case "GET /v1/jobs" | "GET /v1/audit":
            return {"query": {"limit": 1}}
        case _ if label.startswith("PUT /v1/") and kind in DOCUMENTS:
            return {"path_parameters": {"name": name}, "body": {"name": name, **DOCUMENTS[kind]}}
        case _ if kind in DOCUMENTS:
            made = cluster.operator.put(f"/{kind}/{name}", {"name": name, **DOCUMENTS[kind]})
            assert made.is_success, made.text
            return {"path_parameters": {"name": name}} if "{name}" in label else {}
        case _:
            return {}


def outgoing():
    """Return the links of the description, without those that schemathesis guesses."""
    return [
        link
        for operation in build_machine()._transitions.operations.values()
        for link in operation.outgoing
        if not link.is_inferred
    ]


def sent(operation, cluster, **arguments):
    if "body" in arguments:
        arguments["media_type"] = "application/json"
    case = operation.Case(**arguments)
    answer = case.call(**cluster.call)
    case.validate_response(answer, checks=CHECKS)
    return case, answer


def test_the_description_has_every_link_of_the_table():
    described = Counter(f"{link.source.label} -> {link.target.label}" for link in outgoing())
    assert set(described) == {f"{link.source} -> {link.target}" for link in list_links()}
    assert len(described) > 50


def resolved(link, case, answer):
    """Return the arguments of the linked request, without those that do not resolve."""
    transition = link.extract(StepOutput(answer, case))
    arguments = {}
    for container, values in transition.parameters.items():
        for name, extracted in values.items():
            if isinstance(extracted.value, Ok) and extracted.value.ok() not in {None, UNRESOLVABLE, ""}:
                place = str(getattr(container, "value", container))
                arguments.setdefault(place, {})[name] = str(extracted.value.ok())
    if transition.request_body is not None:
        arguments["body"] = transition.request_body.value.ok()
    elif (verb := link.target.path.rsplit("/", 1)[-1]) in BODIES:
        arguments["body"] = BODIES[verb]
    return arguments


def is_whole(link, arguments):
    """Return whether every value of the link resolves."""
    found = sum(len(values) for place, values in arguments.items() if place != "body")
    return found == len(link.parameters)


def test_every_link_with_resolved_values_leads_to_a_successful_request(cluster, capsys):
    followed = Counter()
    for link in outgoing():
        label = link.source.label
        request = good_request(label, cluster)
        if link.status_code == "200" and label.startswith("PUT"):
            sent(link.source, cluster, **request)  # so that the answer is outdated
        case, answer = sent(link.source, cluster, **request)
        assert answer.status_code == int(link.status_code), (link.full_name, answer.text)
        arguments = resolved(link, case, answer)
        assert is_whole(link, arguments), (link.full_name, arguments)
        _, following = sent(link.target, cluster, **arguments)
        assert 200 <= following.status_code < 300, (link.full_name, following.text)
        followed[link.full_name] += 1
    with capsys.disabled():
        sys.stdout.write(f"\n{len(followed)} of {len(outgoing())} links followed with resolved values\n")
    assert len(followed) == len(outgoing())


def test_random_walks_over_the_links_break_nothing(cluster, capsys):
    """Values of an answer may be outdated, because other links were followed before."""
    chance, followed, refused = Random(SEED), Counter(), Counter()
    leads = outgoing()
    for _ in range(WALKS):
        label = chance.choice(leads).source.label
        source = next(link.source for link in leads if link.source.label == label)
        known = [(*sent(source, cluster, **good_request(label, cluster)), label)]
        for _ in range(STEPS):
            case, answer, label = chance.choice(known)
            links_on = [
                link
                for link in leads
                if link.source.label == label and link.status_code == str(answer.status_code)
            ]
            if not links_on:
                continue
            link = chance.choice(links_on)
            arguments = resolved(link, case, answer)
            if not is_whole(link, arguments):
                continue  # an empty list, or the last page
            case, answer = sent(link.target, cluster, **arguments)
            (followed if answer.status_code < 300 else refused)[link.full_name] += 1
            known.append((case, answer, link.target.label))
    with capsys.disabled():
        sys.stdout.write(
            f"\nseed {SEED}: {len(followed)} links followed {followed.total()} times, refused "
            f"{refused.total()} times, such as with an ETag that is out of date\n"
        )
    assert len(followed) > len(leads) // 2
    assert refused
