"""Another server in place of the controller may send anything: the client raises its own errors."""

import httpx
import pytest

from elastane.common.bodies import Problem
from elastane.common.connections.controller_connection import (
    IncompatibleAnswer,
    _decode_refusal,
    decode_answer,
)

DEEP = b'{"x":' + b"[" * 20_000 + b"]" * 20_000 + b"}"


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"<html>", DEEP])
def test_a_malformed_answer_is_reported_as_such(content):
    answer = httpx.Response(200, request=httpx.Request("GET", "http://127.0.0.1:1/"), content=content)
    with pytest.raises(IncompatibleAnswer):
        decode_answer(answer, answer.content, Problem)


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"<html>", DEEP])
def test_a_malformed_refusal_is_still_a_refusal(content):
    answer = httpx.Response(502, request=httpx.Request("GET", "http://127.0.0.1:1/"), content=content)
    assert _decode_refusal(answer).problem.status == 502
