"""The files with the address and the secret of a coordinator are checked before they are used."""

import os

import pytest

from elastane.common.untrusted_data import Malformed
from elastane.run.connections.endpoint import (
    AnotherAttempt,
    CoordinatorEndpoint,
    publish_endpoint,
    read_endpoint,
    read_own_endpoint,
    read_secret,
)
from elastane.run.nouns.rundir import RunDir


def test_an_endpoint_becomes_a_url(tmp_path) -> None:
    (tmp_path / "endpoint.json").write_text('{"host":"127.0.0.1","port":4000}')
    assert read_endpoint(RunDir(tmp_path)).url == "ws://127.0.0.1:4000"
    assert CoordinatorEndpoint("::1", 4000).url == "ws://[::1]:4000"


def test_a_process_finds_only_coordinators_of_its_own_attempt(tmp_path) -> None:
    run_dir, endpoint = RunDir(tmp_path), CoordinatorEndpoint("127.0.0.1", 4000, attempt=1)
    publish_endpoint(run_dir, endpoint)
    assert read_own_endpoint(run_dir, 1) == endpoint
    with pytest.raises(AnotherAttempt, match=r"attempt 1 of the run has ended: .* attempt 2") as earlier:
        read_own_endpoint(run_dir, 0)
    with pytest.raises(AnotherAttempt, match=r"attempt 3 of the run has not begun: .* attempt 2") as later:
        read_own_endpoint(run_dir, 2)
    assert (earlier.value.is_later, later.value.is_later) == (True, False)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"host":"127.0.0.1"}',
        '{"host":"127.0.0.1","port":0}',
        '{"host":"127.0.0.1","port":70000}',
        '{"host":"127.0.0.1","port":1e999}',
        '{"host":"","port":1}',
        '{"host":"a/b?c=d@e","port":1}',
        '{"host":"a\\r\\nX: y","port":1}',
        '{"host":["127.0.0.1"],"port":1}',
        '{"host":"127.0.0.1","port":1,"x":' + "[" * 3000 + "]" * 3000 + "}",
        '{"host":"127.0.0.1","port":1,"x":"' + "y" * 100_000 + '"}',
        "\ud800",
    ],
)
def test_an_invalid_endpoint_is_malformed(tmp_path, text) -> None:
    (tmp_path / "endpoint.json").write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(Malformed):
        read_endpoint(RunDir(tmp_path))


@pytest.mark.parametrize("file", ["secret", "endpoint.json"])
def test_neither_file_is_read_through_a_link(tmp_path, file) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "secret").write_text("hf_private")
    (tmp_path / "endpoint.json").write_text('{"host":"127.0.0.1","port":4000}')
    (tmp_path / "run" / file).symlink_to(tmp_path / file)
    with pytest.raises(Malformed, match="symbolic link"):
        (read_secret if file == "secret" else read_endpoint)(RunDir(tmp_path / "run"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_secret_is_not_sent_to_the_address_of_another_user(tmp_path) -> None:
    (tmp_path / "secret").write_text("0f" * 32)
    (tmp_path / "endpoint.json").write_text('{"host":"127.0.0.1","port":4000}')
    assert read_secret(RunDir(tmp_path)) == "0f" * 32
    os.chown(tmp_path / "endpoint.json", 1234, 1234)
    with pytest.raises(Malformed, match="different users"):
        read_secret(RunDir(tmp_path))


def test_a_secret_is_one_word(tmp_path) -> None:
    (tmp_path / "secret").write_text("0f" * 32 + "\n")
    assert read_secret(RunDir(tmp_path)) == "0f" * 32


@pytest.mark.parametrize(
    "content", [b"", b"a b", b"a\r\nX-Header: b", b"\xff\xfe", "ü".encode(), b"x" * 5000]
)
def test_an_invalid_secret_is_malformed_and_the_error_does_not_repeat_it(tmp_path, content) -> None:
    (tmp_path / "secret").write_bytes(content)
    with pytest.raises(Malformed) as error:
        read_secret(RunDir(tmp_path))
    assert "X-Header" not in str(error.value)


def test_the_endpoint_of_a_later_term_is_not_replaced(tmp_path) -> None:
    run_dir = RunDir(tmp_path)
    second, third = (CoordinatorEndpoint("10.0.0.5", 4000 + term, term=term) for term in (2, 3))
    publish_endpoint(run_dir, third)
    publish_endpoint(run_dir, second)
    assert read_endpoint(run_dir) == third
    run_dir.endpoint.write_text("torn")
    publish_endpoint(run_dir, second)
    publish_endpoint(run_dir, third)
    assert read_endpoint(run_dir) == third
