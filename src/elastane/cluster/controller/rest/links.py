"""Links of the OpenAPI description: the values of an answer that a following request needs.

Programs that read the description follow them, and so do tests that generate requests from it.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

ETAG = "$response.header.ETag"
NAME = "$response.body#/name"
FIRST = "$response.body#/items/0/name"


class Link(NamedTuple):
    """A link from the answer of one request to another request.

    Args:
        source: method and path of the first request, such as ``GET /v1/jobs``.
        target: method and path of the following request.
        parameters: of that request, such as ``path.job``, as runtime expressions of OpenAPI.
        body: of that request, as such an expression; empty: it has none, or the answer does not hold it.
    """

    source: str
    target: str
    parameters: Mapping[str, str]
    body: str = ""


JOB_READS = ("", "/explain", "/events", "/processes")
JOB_CHANGES = ("/scale", "/priority", "/bounds", "/pause", "/resume", "/cancel")
DOCUMENTS = ("cohorts", "teams", "priorities", "engines", "pools", "egress", "reservations", "triggers")
NODE_CHANGES = ("/drain", "/fail", "/use")


def list_links() -> Iterator[Link]:
    yield from _list_job_links()
    yield from _list_document_links()
    yield from _list_node_links()
    yield Link("POST /v1/tokens", "DELETE /v1/tokens/{token}", {"path.token": "$response.body#/token/id"})
    yield Link("GET /v1/audit", "GET /v1/audit", {"query.after": "$response.body#/after"})


def _list_job_links() -> Iterator[Link]:
    one = "/v1/jobs/{job}"
    for path in JOB_READS:
        yield Link("POST /v1/jobs", f"GET {one}{path}", {"path.job": NAME})
    for path in JOB_CHANGES:
        meant = {"path.job": NAME, "header.If-Match": ETAG}
        yield Link("POST /v1/jobs", f"POST {one}{path}", meant)
        yield Link(f"GET {one}", f"POST {one}{path}", meant)
    yield Link("GET /v1/jobs", f"GET {one}", {"path.job": FIRST})
    yield Link("GET /v1/jobs", "GET /v1/jobs", {"query.after": "$response.body#/after"})
    yield Link(
        f"GET {one}/events",
        f"GET {one}/events",
        {"path.job": "$request.path.job", "query.after": "$response.body#/after"},
    )
    yield Link(
        f"GET {one}/processes",
        f"GET {one}/logs",
        {"path.job": "$request.path.job", "query.process": "$response.body#/items/0"},
    )
    yield Link(
        f"GET {one}/logs",
        f"GET {one}/logs",
        {"path.job": "$request.path.job", "query.offset": "$response.header.Elastane-Next-Offset"},
    )


def _list_document_links() -> Iterator[Link]:
    for kind in DOCUMENTS:
        every, one = f"/v1/{kind}", f"/v1/{kind}/{{name}}"
        meant = {"path.name": NAME, "header.If-Match": ETAG}
        yield Link(f"GET {every}", f"GET {one}", {"path.name": FIRST})
        yield Link(f"PUT {one}", f"GET {one}", {"path.name": NAME})
        yield Link(f"PUT {one}", f"DELETE {one}", meant)
        yield Link(f"GET {one}", f"PUT {one}", meant, "$response.body")
    yield Link("GET /v1/rules", "PUT /v1/rules", {"header.If-Match": ETAG}, "$response.body")
    for path in ("/v1/config/diff", "/v1/config/apply", "/v1/policy/check"):
        yield Link("GET /v1/config", f"POST {path}", {}, "$response.body")


def _list_node_links() -> Iterator[Link]:
    one = "/v1/nodes/{node}"
    for path in NODE_CHANGES:
        yield Link("GET /v1/nodes", f"POST {one}{path}", {"path.node": FIRST})
    yield Link("GET /v1/nodes", f"DELETE {one}", {"path.node": FIRST})
    meant = {"path.node": NAME, "header.If-Match": ETAG}
    for before in ("/drain", "/fail"):
        yield Link(f"POST {one}{before}", f"POST {one}/use", meant)


def add_links(paths: Mapping[str, Mapping[str, Any]]) -> None:
    """Add the links to the successful answers of a description.

    Raises:
        KeyError: a link names a request that does not exist.
    """
    for link in list_links():
        source, target = _find_operation(paths, link.source), _find_operation(paths, link.target)
        described = {"operationId": target["operationId"]}
        if link.parameters:
            described["parameters"] = dict(link.parameters)
        if link.body:
            described["requestBody"] = link.body
        for status, answer in source["responses"].items():
            if status.startswith("2"):
                answer.setdefault("links", {})[target["operationId"]] = described


def _find_operation(paths: Mapping[str, Mapping[str, Any]], label: str) -> Any:
    method, _, path = label.partition(" ")
    return paths[path][method.lower()]
