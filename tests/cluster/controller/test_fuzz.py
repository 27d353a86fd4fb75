"""Requests that the description allows, and others, cause no failure, no hang and no leak."""

import itertools
import re

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)

from elastane.cluster.controller.cluster.declarations import build_config, diff_configs
from elastane.cluster.controller.rest.app import describe_api
from elastane.cluster.controller.rest.context import Rate, Settings
from elastane.cluster.controller.store import documents, nodes
from elastane.cluster.controller.store.database import Store
from elastane.cluster.nouns.config import Config, Team
from elastane.cluster.nouns.pools import Pool
from tests.cluster.controller import job_rows

NOW_S = 1_800_000_000.0
EXAMPLES = 5
HANG_S = 20
THEIRS = "other-team"
UNHURRIED = Settings(per_token=Rate(per_s=1e6, burst=10**6), per_address=Rate(per_s=1e6, burst=10**6))
INSIDES = re.compile(r'Traceback|sqlalchemy|sqlite|File "/')

turns = itertools.count()
schema = schemathesis.openapi.from_dict(describe_api())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, api_over, make_spec, served):
    """Start a cluster of two teams; return its URL, and tokens of an operator and of an admin of one team."""
    home = tmp_path_factory.mktemp("fuzz")
    store = Store(f"sqlite:///{home}/store.db")
    api = api_over(store, home=home, settings=UNHURRIED)
    config = Config(
        pools=(Pool(name="h100", device="h100", devices=8),), teams=(Team(name="vision"), Team(name=THEIRS))
    )
    with store.begin_write() as tx:
        documents.write_documents(tx, diff_configs(build_config([]), config), NOW_S)
        nodes.record_node(tx, "n1", "h100", 8, NOW_S)
        job_rows.submit(tx, make_spec("mine"), "ada", NOW_S)
        job_rows.submit(tx, make_spec("theirs", team=THEIRS), "eve", NOW_S)
    with served(api) as url:
        yield url, api.token("operator"), api.token("team-admin", "vision")
    store.close()


@pytest.mark.long
# A stream of events never ends; tests of its own watch it.
@schema.exclude(path="/v1/watch").parametrize()
@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
def test_no_generated_request_causes_a_failure_or_reveals_another_team(case, cluster):
    url, operator, admin = cluster
    # Half of the requests come from a user that may not see the other team.
    token = operator if next(turns) % 2 else admin
    answer = case.call(
        base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=HANG_S, allow_redirects=False
    )
    case.validate_response(
        answer,
        checks=[
            not_a_server_error,
            status_code_conformance,
            content_type_conformance,
            response_schema_conformance,
        ],
    )
    said = answer.content.decode()
    assert not INSIDES.search(said)
    assert operator not in said
    if token == admin and answer.status_code < 400:
        assert THEIRS not in said
