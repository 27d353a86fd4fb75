"""An agent trusts the controller of its ticket, and no other; no ticket has a secret of the controller."""

import pytest

from elastane.cluster.controller.agents.site import find_site
from elastane.cluster.nouns.arrivals import Arrival
from elastane.cluster.nouns.job_tickets import JobTicket, encode_credentials
from elastane.common.connections.controller_connection import (
    ControllerConnection,
    ControllerUnreachable,
    RequestRefused,
    trust_certificate,
)
from elastane.common.errors import BadInput
from elastane.run.connections.run_certificate import create_certificate
from elastane.run.nouns.rundir import CERTIFICATE, RunDir


@pytest.fixture
def make_certificate(tmp_path):
    """Write files with a certificate that has signed itself, and its key."""

    def make(name):
        (tmp_path / name).mkdir()
        create_certificate(RunDir(tmp_path / name))
        return str(tmp_path / name / CERTIFICATE)

    return make


def arrive(url, certificate):
    ticket = JobTicket(url, "c0-1", bytes(16), certificate)
    with ControllerConnection(
        url,
        encode_credentials(ticket.key),
        verify=trust_certificate(ticket.url, ticket.certificate),
        timeout_s=5.0,
    ) as connection:
        connection.send(
            "POST", f"/agents/{ticket.agent}/arrival", body=Arrival(host="n1", version="0", process="p")
        )


def test_an_agent_trusts_the_certificate_of_its_ticket_at_any_address(
    api, served, make_certificate, tmp_path
):
    own, other = make_certificate("own"), make_certificate("other")
    with served(api, certificate=own, key=own) as url:
        site = find_site(tmp_path, url, own, isolates=False)
        assert site.url == url
        assert "BEGIN CERTIFICATE" in site.certificate
        assert "PRIVATE" not in site.certificate
        with pytest.raises(RequestRefused, match="no valid job ticket"):
            arrive(url, site.certificate)
        for wrong in (find_site(tmp_path, url, other, isolates=False).certificate, ""):
            with pytest.raises(ControllerUnreachable, match="is not trusted"):
                arrive(url, wrong)


def test_a_certificate_that_is_none_is_refused():
    with pytest.raises(BadInput, match="the certificate of the controller cannot be read"):
        trust_certificate("https://10.0.0.5:7425", "not a certificate")


@pytest.mark.parametrize("listened", ["http://0.0.0.0:7425", "http://[::]:7425"])
def test_agents_get_an_address_that_leads_here_in_place_of_any_address(listened, tmp_path, monkeypatch):
    monkeypatch.setattr("elastane.cluster.controller.agents.site.find_default_address", lambda: "fd00::7")
    assert find_site(tmp_path, listened, "", isolates=False).url == "http://[fd00::7]:7425"
