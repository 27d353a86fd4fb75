"""Any bytes on a connection of a run are a message or malformed; there is no third outcome."""

import contextlib

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from elastane.common.untrusted_data import DEEPEST, Malformed
from elastane.run.agent import fork_server
from elastane.run.nouns import control
from elastane.run.nouns.records import EventLine

DECODERS = {
    "to the coordinator": control.decode_to_coordinator,
    "to a worker": control.decode_to_worker,
    "to the agent": control.decode_to_agent,
    "an answer": control.decode_answer,
    "a line of the fork server": fork_server.decode_fork_answer,
}
MESSAGES = (
    control.WorkerReport(worker=0, pid=1, host="127.0.0.1", port=2, state="ready"),
    control.AgentReport(pid=1, target=2, term=3, exits=(control.WorkerExit(worker=0, pid=1, code=-9),)),
    control.Acknowledge(step=3),
    control.WriteAgain(writers=(0, 2), blocks=((0, 1), (3, 4)), attempt=(2, 1)),
    control.Dismiss(code=0, why="it is over"),
    control.SetTarget(target=2, drain=(1,)),
    control.RunOver(code=1, traceback="x" * 100),
    control.AskResize(workers=2, limits=(1, 4)),
    control.AskStatus(),
    control.Answer(ok=True, step=3, loss=0.5),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(1 << 70), 1 << 70), st.floats(), st.text(max_size=8)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def changed_messages(draw):
    """Messages with some wrong fields or bytes."""
    document = msgspec.to_builtins(draw(st.sampled_from(MESSAGES)))
    for field in draw(st.lists(st.sampled_from(sorted(document)), max_size=3)):
        document[field] = draw(VALUES)
    text = bytearray(msgspec.json.encode(document))
    for place in draw(st.lists(st.integers(0, len(text) - 1), max_size=3)):
        text[place] = draw(st.integers(0, 255))
    return bytes(text)


@pytest.mark.parametrize("decode", DECODERS.values(), ids=DECODERS)
@settings(derandomize=True, max_examples=200)
@given(document=st.one_of(changed_messages(), st.binary(max_size=200), st.text(max_size=200)))
def test_a_document_is_a_message_or_malformed(decode, document):
    with contextlib.suppress(Malformed):
        decode(document)


@pytest.mark.parametrize("blocks", [((0, 10**6 + 1),), ((-1, 1),), ((0,),), ((0, 1, 2),)])
def test_a_span_of_impossible_blocks_is_malformed(blocks):
    order = control.WriteAgain(writers=(0,), blocks=blocks, attempt=(1, 1))
    report = control.WorkerReport(worker=0, pid=1, host="", port=2, state="finished", last_blocks=blocks)
    with pytest.raises(Malformed):
        control.decode_to_worker(control.encode(order))
    with pytest.raises(Malformed):
        control.decode_to_coordinator(control.encode(report))


@pytest.mark.parametrize("decode", DECODERS.values(), ids=DECODERS)
@settings(max_examples=10)
@given(
    levels=st.integers(DEEPEST + 1, 5_000),
    brackets=st.sampled_from(["[]", '{"x":}']),
    field=st.sampled_from(["x", "traceback", "detail", "processes", "worker"]),
)
@example(levels=1_000_000 // 8, brackets="[]", field="x")
@example(levels=1_000_000 // 8, brackets='{"x":}', field="worker")
def test_a_deeply_nested_field_is_malformed_whether_known_or_not(decode, levels, brackets, field):
    opening, closing = brackets[:-1], brackets[-1]
    deep = opening * levels + "0" + closing * levels
    text = '{"type":"AskStatus","ok":true,"' + field + '":' + deep + "}"
    with pytest.raises(Malformed):
        decode(text[: decode.at_most_bytes])


@pytest.mark.parametrize("decode", DECODERS.values(), ids=DECODERS)
def test_a_document_above_the_size_limit_is_malformed(decode):
    with pytest.raises(Malformed, match="bytes"):
        decode(b" " * (decode.at_most_bytes + 1))


def test_halves_of_surrogate_pairs_are_escaped():
    event = EventLine(time=1.0, kind="message", why="f\udcff.txt ü", detail={"\udcff": 1})
    report = control.WorkerFailed(worker=3, traceback="[Errno 2] 'f\udcff'", lost=False)
    assert msgspec.json.decode(control.encode(event))["why"] == "f\\udcff.txt ü"
    assert msgspec.json.decode(control.encode(event))["detail"] == {"\\udcff": 1}
    assert control.decode_to_coordinator(control.encode(report)).traceback == "[Errno 2] 'f\\udcff'"
