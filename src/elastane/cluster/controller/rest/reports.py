"""Reports from outside of the cluster: capacity, prices, notices and metrics."""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Response
from sqlalchemy import Connection

from elastane.cluster.controller.access.roles import Target
from elastane.cluster.controller.rest.bodies import parse_body
from elastane.cluster.controller.rest.caller import ChangerParameter
from elastane.cluster.controller.rest.description import describe_route
from elastane.cluster.controller.rest.problems import make_missing_error
from elastane.cluster.controller.store import documents, history, nodes, reports
from elastane.cluster.controller.store.replies import Reply
from elastane.cluster.nouns.pools import Capacity, Metric, Notice, Price, Report
from elastane.common.errors import BadField
from elastane.common.field_checks import check_name

router = APIRouter(prefix="/v1/reports", tags=["reports"])
LONGEST_S = 366 * 24 * 3600.0


@router.post("", **describe_route(None, takes=Report, status=HTTPStatus.NO_CONTENT))
def post_report(caller: ChangerParameter, report: Annotated[Report, parse_body(Report)]) -> Response:
    """Report a pool's capacity or price, a node's end, or a metric for triggers. The newest report counts."""
    about = _check_report(report)

    def do(tx: Connection) -> Reply:
        caller.require_right("reports.write", Target(name=about))
        caller.set_detail(_describe_report(report))
        match report:
            case Notice(node=node, in_s=in_s):
                known = nodes.find_node(tx, node)
                if known is None:
                    raise make_missing_error(f"node {node}")
                gone_at_s = caller.now_s + in_s
                if known.wanted != "failed":
                    why = known.why if known.wanted == "drain" else "will be taken away"
                    nodes.update_node(tx, node, "drain", why, gone_at_s)
                    message = f"node {node} will be taken away in {in_s:g} s"
                    history.append_event(tx, "node.notice", message, caller.now_s)
            case Capacity(pool=pool) | Price(pool=pool):
                if documents.find_document(tx, "pools", pool) is None:
                    raise make_missing_error(f"pool {pool}")
                reports.write_outside_report(tx, report, caller.now_s)
            case Metric():
                reports.write_outside_report(tx, report, caller.now_s)
        return Reply(status=HTTPStatus.NO_CONTENT)

    return caller.change("report", about, do)


def _check_report(report: Report) -> str:
    """Check the fields of a report, and return its subject."""
    match report:
        case Notice(node=node, in_s=in_s):
            check_name("node", node)
            _check_range("inS", in_s)
            return f"node {node}"
        case Capacity(pool=pool, devices=devices, valid_s=valid_s):
            check_name("pool", pool)
            _check_range("devices", devices, most=1e9)
            _check_range("validS", valid_s)
            return f"pool {pool}"
        case Price(pool=pool, price=price, valid_s=valid_s):
            check_name("pool", pool)
            _check_range("price", price, most=1e9)
            _check_range("validS", valid_s)
            return f"pool {pool}"
        case Metric(metric=metric, valid_s=valid_s):
            check_name("metric", metric)
            _check_range("validS", valid_s)
            return f"metric {metric}"


def _describe_report(report: Report) -> str:
    """Describe a report for the audit log."""
    match report:
        case Notice(in_s=in_s):
            return f"will be taken away in {in_s:g} s"
        case Capacity(devices=devices, valid_s=valid_s):
            return f"at most {devices} devices, for {valid_s:g} s"
        case Price(price=price, valid_s=valid_s):
            return f"costs {price:g} an hour, for {valid_s:g} s"
        case Metric(value=value, valid_s=valid_s):
            return f"is {value:g}, for {valid_s:g} s"


def _check_range(field: str, value: float, most: float = LONGEST_S) -> None:
    if not 0 <= value <= most:
        raise BadField(field, f"{value:g} is not between 0 and {most:g}", do="write a number in this range")
