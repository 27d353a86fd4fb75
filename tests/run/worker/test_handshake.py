"""A proof is valid for one receiver, in one handshake, in one direction."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastane.common.untrusted_data import Malformed
from elastane.run.worker.links.handshake import (
    Agreement,
    Credentials,
    Handshake,
    Hello,
    Process,
    Proof,
    decode_handshake,
)
from elastane.run.worker.links.memory_mark import MARK_BYTES

SECRET = b"secret"
HERE = ("127.0.0.1", 4000)
ELSEWHERE = ("127.0.0.1", 5000)


def describe_process(worker: int) -> Process:
    return Process(100 + worker, 3, 4, 5, bytes([worker]) * MARK_BYTES)


def build_credentials(worker: int, secret: bytes = SECRET, *, reads: bool = True) -> Credentials:
    return Credentials(worker, secret, describe_process(worker), lambda _process: reads)


def build_acceptor(worker: int = 0, address=HERE, secret: bytes = SECRET) -> Handshake:
    return Handshake(build_credentials(worker, secret), address, None)


def build_dialler(worker: int = 2, peer: int = 0, address=HERE, secret: bytes = SECRET) -> Handshake:
    return Handshake(build_credentials(worker, secret), address, peer)


def shake_hands(first: Handshake, second: Handshake) -> list[bytes]:
    """Exchange messages until one side has none to send; return all of them."""
    messages = [first.begin()]
    listener, speaker = second, first
    while messages[-1]:
        messages.append(listener.receive(messages[-1]))
        listener, speaker = speaker, listener
    return messages


def test_two_workers_of_a_run_prove_themselves_to_each_other() -> None:
    two, zero = build_dialler(), build_acceptor()
    shake_hands(two, zero)
    assert (zero.proven.worker, zero.proven.process) == (2, describe_process(2))
    assert (two.proven.worker, two.proven.process) == (0, describe_process(0))


def test_a_wrong_secret_proves_nothing_in_either_direction() -> None:
    pairs = (
        (build_dialler(secret=b"guess"), build_acceptor()),
        (build_dialler(), build_acceptor(secret=b"guess")),
    )
    for two, zero in pairs:
        with pytest.raises(Malformed):
            shake_hands(two, zero)
        assert zero.proven is None
        assert two.proven is None


def test_a_replayed_handshake_is_refused() -> None:
    two, zero = build_dialler(), build_acceptor()
    messages = shake_hands(two, zero)
    again = build_acceptor()
    again.receive(messages[0])
    with pytest.raises(Malformed):
        again.receive(messages[2])


def test_a_reflected_proof_is_refused() -> None:
    """A stranger connects to the worker that has dialled it, and sends its messages back to it."""
    two = build_dialler(worker=2, peer=0)
    with pytest.raises(Malformed):
        two.receive(two.begin())
    reflected = build_acceptor(worker=2)
    with pytest.raises(Malformed):
        reflected.receive(two.begin())


def test_a_proof_for_one_worker_is_refused_by_another_one() -> None:
    """A stranger listens where worker 0 did, is dialled, and relays the messages to worker 1."""
    two = build_dialler(worker=2, peer=0)
    one = build_acceptor(worker=1)
    answer = one.receive(two.begin())
    with pytest.raises(Malformed):
        two.receive(answer)
    # It may claim to be worker 0: the dialler's proof names worker 0, and worker 1 refuses it.
    forged = msgspec.structs.replace(decode_handshake(answer), worker=0)
    proof = two.receive(msgspec.msgpack.encode(forged))
    with pytest.raises(Malformed):
        one.receive(proof)


def test_a_handshake_relayed_from_another_address_is_refused() -> None:
    """A stranger at another port stands between the dialler and the real acceptor."""
    two, zero = build_dialler(address=ELSEWHERE), build_acceptor(address=HERE)
    proof = two.receive(zero.receive(two.begin()))
    with pytest.raises(Malformed):
        zero.receive(proof)
    assert zero.proven is None


def test_an_acceptor_proves_nothing_before_the_dialler_has_proved_itself() -> None:
    zero = build_acceptor()
    answer = decode_handshake(zero.receive(build_dialler().begin()))
    assert isinstance(answer, Hello)
    with pytest.raises(Malformed):
        zero.receive(msgspec.msgpack.encode(Proof(describe_process(1), True, bytes(32))))


def test_the_proof_covers_the_description_of_the_process() -> None:
    two, zero = build_dialler(), build_acceptor()
    proof = decode_handshake(two.receive(zero.receive(two.begin())))
    other = msgspec.structs.replace(proof, process=describe_process(1))
    with pytest.raises(Malformed):
        zero.receive(msgspec.msgpack.encode(other))


def test_the_proof_covers_what_the_prover_can_read() -> None:
    two, zero = build_dialler(), build_acceptor()
    proof = decode_handshake(zero.receive(two.receive(zero.receive(two.begin()))))
    with pytest.raises(Malformed):
        two.receive(msgspec.msgpack.encode(msgspec.structs.replace(proof, reads=False)))


@pytest.mark.parametrize("dialler_reads", [True, False])
@pytest.mark.parametrize("acceptor_reads", [True, False])
def test_workers_share_memory_only_if_each_can_read_that_of_the_other(dialler_reads, acceptor_reads) -> None:
    two = Handshake(build_credentials(2, reads=dialler_reads), HERE, 0)
    zero = Handshake(build_credentials(0, reads=acceptor_reads), HERE, None)
    shake_hands(two, zero)
    assert two.proven.shared == zero.proven.shared == (dialler_reads and acceptor_reads)


def test_an_agreement_without_a_proof_or_on_unreadable_memory_is_refused() -> None:
    agreement = msgspec.msgpack.encode(Agreement(True))
    zero = build_acceptor()
    zero.receive(build_dialler().begin())
    with pytest.raises(Malformed):
        zero.receive(agreement)
    two, blind = build_dialler(), Handshake(build_credentials(0, reads=False), HERE, None)
    blind.receive(two.receive(blind.receive(two.begin())))
    with pytest.raises(Malformed):
        blind.receive(agreement)
    assert zero.proven is None
    assert blind.proven is None


def test_only_workers_with_higher_numbers_dial() -> None:
    for worker in (0, 1):
        with pytest.raises(Malformed):
            build_acceptor(worker=1).receive(build_dialler(worker=worker, peer=1).begin())


MESSAGE = st.one_of(
    st.binary(max_size=300),
    st.builds(
        lambda worker, nonce: msgspec.msgpack.encode(["Hello", worker, nonce]),
        st.one_of(st.integers(-(1 << 63), (1 << 64) - 1), st.none(), st.text(max_size=3)),
        st.binary(max_size=40),
    ),
    st.builds(
        lambda process, reads, proof: msgspec.msgpack.encode(["Proof", process, reads, proof]),
        st.lists(st.one_of(st.integers(-(1 << 63), (1 << 64) - 1), st.binary(max_size=16)), max_size=5),
        st.booleans(),
        st.binary(max_size=40),
    ),
    st.booleans().map(lambda shared: msgspec.msgpack.encode(["Agreement", shared])),
    st.integers(1, 400).map(lambda levels: b"\x91" * levels + b"\xc0"),
)


@settings(derandomize=True, max_examples=300)
@given(messages=st.lists(MESSAGE, min_size=1, max_size=4), dialled=st.booleans())
def test_any_message_without_the_secret_is_malformed_and_proves_nothing(messages, dialled) -> None:
    side = build_dialler() if dialled else build_acceptor()
    for message in messages:
        try:
            side.receive(message)
        except Malformed:
            break
    assert side.proven is None
