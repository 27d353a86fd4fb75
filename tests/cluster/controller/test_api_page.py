"""The page about the API agrees with the description and with the answers of the API."""

import re
from pathlib import Path

from elastane.cluster.controller.rest.app import describe_api

PAGE = (Path(__file__).parents[3] / "docs" / "api.md").read_text()
ROW = re.compile(r"^\| `(GET|POST|PUT|DELETE) (/v1/[^`]*)` \| ([\d, ]+) \| (.*) \|$", re.MULTILINE)
MENTION = re.compile(r"`(GET|POST|PUT|DELETE)\s+(/v1/[^`? ]*)")
PLACES = re.compile(r"/(JOB|NAME|NODE|TOKEN|KIND|TEAM|LIST|DIGEST|TARGET)\b")


def read_description():
    """Return the summary and the successful statuses of each request, by method and path."""
    return {
        (method.upper(), path): (
            operation["summary"],
            {status for status in operation["responses"] if status.startswith("2")},
        )
        for path, operations in describe_api()["paths"].items()
        for method, operation in operations.items()
    }


def test_the_page_lists_each_request_with_its_statuses_and_its_summary():
    listed = {
        (method, path): (summary, set(statuses.split(", ")))
        for method, path, statuses, summary in ROW.findall(PAGE)
    }
    assert listed == read_description()


def test_every_request_that_the_page_mentions_exists():
    known = read_description()
    for method, path in MENTION.findall(PAGE):
        pattern = re.escape(PLACES.sub("/{}", path)).replace(r"\{\}", r"\{\w+\}")
        assert any(method == verb and re.fullmatch(pattern, one) for verb, one in known), (method, path)


def test_the_page_explains_every_status_of_a_problem(api):
    explained = {int(status) for status in re.findall(r"^\| (\d{3}) \|", PAGE, re.MULTILINE)}
    assert explained == {400, 401, 403, 404, 405, 409, 412, 413, 422, 429, 431, 500, 503, 507}
    ada = api.user()
    for status, answer in (
        (400, ada.ask("POST", "/jobs", raw=b"{")),
        (401, api.with_secret("ela_x").get("/me")),
        (403, ada.get("/audit")),
        (404, ada.get("/jobs/none")),
        (405, ada.delete("/jobs")),
        (413, ada.ask("POST", "/jobs", raw=b" " * 2**23)),
        (422, ada.post("/jobs", {"name": "x"})),
    ):
        assert answer.status_code == status
        assert answer.headers["Content-Type"] == "application/problem+json"


def test_the_page_lists_the_requests_that_need_no_token(api):
    stranger = api.with_secret("")
    free = {
        path
        for path, operations in describe_api()["paths"].items()
        for method, operation in operations.items()
        if not operation.get("security")
    }
    assert free == {"/v1/health", "/v1/version"}
    (sentence,) = re.findall(r"Only (.*?) need no token", PAGE, re.DOTALL)
    assert set(re.findall(r"`(/v1/[^`]*)`", sentence)) == free | {"/v1/openapi.json"}
    for path in [*free, "/v1/openapi.json"]:
        assert stranger.get(path.removeprefix("/v1")).status_code == 200
    for method, path in read_description():
        if path not in free:
            here = re.sub(r"\{\w+\}", "x", path.removeprefix("/v1"))
            assert stranger.ask(method, here, {}).status_code in {401, 422, 429}, (method, path)
