"""Rights to see and change something: sessions, page tokens, origins, names of the server, and roles."""

import re

import httpx
import pytest

FORM = re.compile(r'action="/jobs/train/(\w+)".*?name="page_token" value="(\w+)"', re.DOTALL)


def test_without_a_session_every_page_leads_to_the_sign_in_and_back(site):
    browser = site.open()
    answer = browser.get("/jobs?q=a%20b&state=running")
    assert answer.url.path == "/sign-in"
    assert 'value="/jobs?q=a%20b&amp;state=running"' in answer.text
    assert browser.get("/live/jobs").content == b""


@pytest.mark.parametrize(
    "then", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:x"]
)
def test_signing_in_never_leads_to_another_server(site, then):
    answer = httpx.post(f"{site.url}/sign-in", data={"token": site.api.token(), "next": then})
    assert (answer.status_code, answer.headers["Location"]) == (303, "/")


def test_a_wrong_token_gets_no_session(site):
    browser = site.open()
    for token in ("ela_wrong", "", "a b", "x\ny"):
        answer = browser.post("/sign-in", data={"token": token})
        assert answer.status_code == 403
        assert "not known here" in answer.text
    assert not browser.cookies


def test_the_cookie_is_for_this_server_only_and_no_script_reads_it(site):
    answer = httpx.post(f"{site.url}/sign-in", data={"token": site.api.token()})
    cookie = answer.headers["Set-Cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "ela_" not in cookie


def test_a_link_on_another_site_leads_to_the_page_at_the_second_try(site):
    browser = site.open()
    answer = browser.get("/jobs?q=x", headers={"Sec-Fetch-Site": "cross-site"})
    assert 'content="0; url=/jobs?q=x"' in answer.text


def test_every_answer_forbids_foreign_scripts_and_frames(site):
    browser = site.sign_in()
    for path in ("/", "/jobs", "/nothing", "/static/live.js", "/sign-in"):
        headers = browser.get(path).headers
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["X-Content-Type-Options"] == "nosniff"


def test_a_name_that_others_gave_this_address_is_refused(site):
    browser = site.sign_in()
    assert browser.get("/", headers={"Host": "evil.example"}).status_code == 421
    port = browser.base_url.port
    assert browser.get("/", headers={"Host": f"localhost:{port}"}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}],
)
def test_a_form_on_another_site_changes_nothing(site, make_spec, headers):
    site.submit(make_spec())
    browser = site.sign_in()
    tokens = dict(FORM.findall(browser.get("/jobs/train").text))
    answer = browser.post("/jobs/train/cancel", data={"page_token": tokens["cancel"]}, headers=headers)
    assert answer.status_code == 403
    assert site.read("train")["wanted"] == "run"


def test_a_change_needs_the_token_of_its_form(site, make_spec):
    site.submit(make_spec())
    browser = site.sign_in()
    tokens = dict(FORM.findall(browser.get("/jobs/train").text))
    assert tokens.keys() == {"scale", "priority", "pause", "cancel"}
    for forged in ("", tokens["pause"], "0" * 64):
        answer = browser.post("/jobs/train/cancel", data={"page_token": forged})
        assert "nothing was done" in answer.text
    assert site.read("train")["wanted"] == "run"
    answer = browser.post("/jobs/train/scale", data={"page_token": tokens["scale"], "min": "2", "max": "3"})
    assert "train may now have 2 to 3 workers." in answer.text
    assert "train may now" not in browser.get("/jobs/train").text
    policy = site.read("train")["spec"]["elasticPolicy"]
    assert (policy["minReplicas"], policy["maxReplicas"]) == (2, 3)


def test_a_field_that_is_no_number_is_explained(site, make_spec):
    site.submit(make_spec())
    browser = site.sign_in()
    token = dict(FORM.findall(browser.get("/jobs/train").text))["scale"]
    answer = browser.post("/jobs/train/scale", data={"page_token": token, "min": "<b>", "max": "9" * 400})
    assert "this is not a number of workers" in answer.text


def test_a_viewer_is_offered_no_change_and_a_forged_one_is_refused(site, make_spec):
    site.submit(make_spec())
    viewer, other = site.sign_in("viewer", user="eve"), site.sign_in("submitter", user="bob")
    for browser in (viewer, other):
        assert FORM.findall(browser.get("/jobs/train").text) == []
    # The page tokens of its own session are all that an attacker with this role could have.
    (session,) = [found for found in _list_sessions(site) if find_user(site, found.token) == "eve"]
    token = session.make_page_token("/jobs/train/cancel")
    answer = viewer.post("/jobs/train/cancel", data={"page_token": token})
    assert "may not" in answer.text or "not allowed" in answer.text
    assert site.read("train")["wanted"] == "run"


def test_a_team_sees_no_job_of_another_team(site, make_spec):
    site.submit(make_spec())
    stranger = site.sign_in("viewer", team="speech", user="eve")
    answer = stranger.get("/jobs/train")
    assert answer.status_code == 404
    assert "train" not in stranger.get("/jobs").text.replace("elastane submit train.py", "")


def test_signing_out_ends_the_session_for_every_copy_of_the_cookie(site):
    browser = site.sign_in()
    copied = dict(browser.cookies)
    browser.post("/sign-out")
    answer = httpx.get(site.url, cookies=copied, follow_redirects=True)
    assert answer.url.path == "/sign-in"


def find_user(site, token):
    return httpx.get(f"{site.api_url}/v1/me", headers={"Authorization": f"Bearer {token}"}).json()["user"]


def _list_sessions(site):
    return list(site.sessions._found.values())
