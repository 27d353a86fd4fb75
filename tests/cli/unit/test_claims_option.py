"""The place that ``--claims`` names."""

from pathlib import Path

import pytest

from elastane.cli.runs.run_spec import complete_claims_url
from elastane.common.connections.controller_context import Context, save_context
from elastane.common.errors import BadInput

URL = "https://cluster:7425"


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("ELASTANE_HOME", str(tmp_path / "home"))
    for name in ("ELASTANE_URL", "ELASTANE_TOKEN", "ELASTANE_CA"):
        monkeypatch.delenv(name, raising=False)
    save_context(Context(url=URL, token="ela_secret", team="vision"))  # noqa: S106 - of no controller


def test_a_controller_without_a_team_gets_that_of_the_login():
    assert complete_claims_url(URL) == complete_claims_url(f"{URL}/") == f"{URL}/vision"
    assert complete_claims_url(f"{URL}/speech") == complete_claims_url(f"{URL}/speech/") == f"{URL}/speech"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("https://other:7425", "there is no token for https://other:7425"),
        ("https://other:7425/vision", "there is no token for https://other:7425"),
        ("http://cluster:7425", "is not encrypted"),
        ("http://cluster:7425/vision", "is not encrypted"),
        ("https://ada:ela_secret@cluster:7425", "has a user name or a password"),
        ("https://ela_secret@cluster:7425/vision", "has a user name or a password"),
        (f"{URL}/a b", "is not a valid name"),
        (f"{URL}/vision?x=1", "is not a valid name"),
        ("https://", "is not the address of a controller"),
    ],
)
def test_an_address_that_is_not_that_of_the_login_is_refused(url, said):
    with pytest.raises(BadInput, match=said) as caught:
        complete_claims_url(url)
    assert "ela_secret" not in str(caught.value)


def test_other_places_stay_and_paths_are_absolute(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert complete_claims_url("lists") == str(Path(tmp_path, "lists"))
    assert complete_claims_url("s3://bucket/claims") == "s3://bucket/claims"
