"""A claim list in a controller's store: lost replies, refusals, tokens, and answers that are no claims."""

import pytest

from elastane.common.connections.controller_context import Context, save_context
from elastane.run.machines.claims.place import ClaimsUnavailable, ClaimsUnusable
from elastane.run.machines.claims.urls import open_claim_list

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.mark.parametrize("status", [500, 502, 503, 507, 409, 429])
def test_an_answer_that_may_change_is_an_outage_that_passes(controller, term, status):
    listed = controller.open()
    listed.claim(1, term())
    controller.server.statuses = [status] * 2
    assert listed.claim(2, record := term(2)).holds(record)
    assert controller.server.statuses == []


def test_an_answer_that_does_not_come_from_a_controller_claims_nothing(controller, term):
    controller.server.statuses = [200] * 1000
    with pytest.raises(ClaimsUnavailable, match="does not come from a controller"):
        controller.open(wait_s=1.0).claim(1, term())
    controller.server.statuses = []
    assert controller.open().read() == ()


def test_a_token_that_lacks_the_right_is_refused_and_a_new_one_counts_at_once(controller, term, monkeypatch):
    listed = controller.open()
    monkeypatch.setenv("ELASTANE_TOKEN", controller.server.make_token("viewer"))
    assert listed.read() == ()
    with pytest.raises(ClaimsUnusable, match="may not change claim lists"):
        listed.claim(1, term())
    monkeypatch.setenv("ELASTANE_TOKEN", controller.server.make_token(team="speech"))
    with pytest.raises(ClaimsUnusable, match="there is no claim list train"):
        listed.read()
    monkeypatch.setenv("ELASTANE_TOKEN", "ela_" + "x" * 43)
    with pytest.raises(ClaimsUnusable, match="no valid token"):
        listed.read()
    monkeypatch.setenv("ELASTANE_TOKEN", controller.server.make_token())
    assert listed.claim(1, record := term()).holds(record)


def test_the_saved_token_is_only_for_its_own_controller(controller, monkeypatch):
    token = controller.server.make_token()
    monkeypatch.delenv("ELASTANE_URL")
    monkeypatch.delenv("ELASTANE_TOKEN")
    with pytest.raises(ClaimsUnusable, match="no cluster is configured"):
        controller.open().read()
    save_context(Context(url="https://other:7425", token=token))
    with pytest.raises(ClaimsUnusable, match="there is no token for http") as caught:
        controller.open().read()
    assert "elastane login http" in caught.value.do
    assert token not in str(caught.value)
    save_context(Context(url=controller.server.url, token=token))
    assert controller.open().read() == ()


@pytest.mark.parametrize("url", ["https://host:1", "https://host:1/team", "https://host:1//list", "http://"])
def test_a_url_without_a_team_or_a_list_is_refused(url):
    with pytest.raises(ClaimsUnusable, match="does not name a claim list"):
        open_claim_list(url)
