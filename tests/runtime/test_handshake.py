"""A proof is worth something to one receiver, in one handshake, in one direction."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastane.api.untrusted_data import Malformed
from elastane.runtime.links.handshake import (
    Credentials,
    Handshake,
    Hello,
    Process,
    Proof,
    decode_handshake,
)

SECRET = b"secret"
HERE = ("127.0.0.1", 4000)
ELSEWHERE = ("127.0.0.1", 5000)


def credentials(worker: int, secret: bytes = SECRET) -> Credentials:
    return Credentials(worker, secret, Process(100 + worker, 3, 4))


def acceptor(worker: int = 0, address=HERE, secret: bytes = SECRET) -> Handshake:
    return Handshake(credentials(worker, secret), address, None)


def dialler(worker: int = 2, peer: int = 0, address=HERE, secret: bytes = SECRET) -> Handshake:
    return Handshake(credentials(worker, secret), address, peer)


def shake(first: Handshake, second: Handshake) -> list[bytes]:
    """Everything that is said, in turn, until somebody has nothing to say."""
    said = [first.begin()]
    listener, speaker = second, first
    while said[-1]:
        said.append(listener.receive(said[-1]))
        listener, speaker = speaker, listener
    return said


def test_two_workers_of_a_run_prove_themselves_to_each_other() -> None:
    two, zero = dialler(), acceptor()
    shake(two, zero)
    assert (zero.proven.worker, zero.proven.process) == (2, Process(102, 3, 4))
    assert (two.proven.worker, two.proven.process) == (0, Process(100, 3, 4))


def test_a_wrong_secret_proves_nothing_in_either_direction() -> None:
    for two, zero in ((dialler(secret=b"guess"), acceptor()), (dialler(), acceptor(secret=b"guess"))):
        with pytest.raises(Malformed):
            shake(two, zero)
        assert zero.proven is None
        assert two.proven is None


def test_a_replayed_handshake_is_refused() -> None:
    two, zero = dialler(), acceptor()
    said = shake(two, zero)
    again = acceptor()
    again.receive(said[0])
    with pytest.raises(Malformed):
        again.receive(said[2])


def test_a_reflected_proof_is_refused() -> None:
    """A stranger connects to the worker that has dialled it, and sends back what that one says."""
    two = dialler(worker=2, peer=0)
    with pytest.raises(Malformed):
        two.receive(two.begin())
    mirrored = acceptor(worker=2)
    with pytest.raises(Malformed):
        mirrored.receive(two.begin())


def test_a_proof_for_one_worker_is_refused_by_another_one() -> None:
    """A stranger listens where worker 0 did, is dialled, and passes on to worker 1 what it hears."""
    two = dialler(worker=2, peer=0)
    one = acceptor(worker=1)
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
    two, zero = dialler(address=ELSEWHERE), acceptor(address=HERE)
    proof = two.receive(zero.receive(two.begin()))
    with pytest.raises(Malformed):
        zero.receive(proof)
    assert zero.proven is None


def test_an_acceptor_proves_nothing_before_the_dialler_has_proved_itself() -> None:
    zero = acceptor()
    answer = decode_handshake(zero.receive(dialler().begin()))
    assert isinstance(answer, Hello)
    with pytest.raises(Malformed):
        zero.receive(msgspec.msgpack.encode(Proof(Process(1, 2, 3), bytes(32))))


def test_the_proof_covers_the_description_of_the_process() -> None:
    two, zero = dialler(), acceptor()
    proof = decode_handshake(two.receive(zero.receive(two.begin())))
    other = msgspec.structs.replace(proof, process=Process(1, 3, 4))
    with pytest.raises(Malformed):
        zero.receive(msgspec.msgpack.encode(other))


def test_only_workers_with_higher_numbers_dial() -> None:
    for worker in (0, 1):
        with pytest.raises(Malformed):
            acceptor(worker=1).receive(dialler(worker=worker, peer=1).begin())


SAID = st.one_of(
    st.binary(max_size=300),
    st.builds(
        lambda worker, nonce: msgspec.msgpack.encode(["Hello", worker, nonce]),
        st.one_of(st.integers(-(1 << 63), (1 << 64) - 1), st.none(), st.text(max_size=3)),
        st.binary(max_size=40),
    ),
    st.builds(
        lambda process, proof: msgspec.msgpack.encode(["Proof", process, proof]),
        st.lists(st.integers(-(1 << 63), (1 << 64) - 1), max_size=4),
        st.binary(max_size=40),
    ),
    st.integers(1, 400).map(lambda levels: b"\x91" * levels + b"\xc0"),
)


@settings(derandomize=True, max_examples=300, deadline=None)
@given(said=st.lists(SAID, min_size=1, max_size=4), dialled=st.booleans())
def test_any_message_without_the_secret_is_malformed_and_proves_nothing(said, dialled) -> None:
    side = dialler() if dialled else acceptor()
    for message in said:
        try:
            side.receive(message)
        except Malformed:
            break
    assert side.proven is None
