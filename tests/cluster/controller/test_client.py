"""The Python client against the API over a real socket."""

import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from elastane.cluster.client.cluster import Cluster
from elastane.cluster.controller.rest import bodies
from elastane.cluster.controller.rest.bodies import build_reply
from elastane.cluster.controller.rest.event_streams import Watchers
from elastane.cluster.controller.store import history, nodes
from elastane.cluster.nouns.config import Config, DeclaredEngine, Quota, SchedulingRules, Team
from elastane.cluster.nouns.pools import Capacity, Pool
from elastane.cluster.nouns.tokens import NewToken
from elastane.common.connections.controller_connection import (
    ControllerUnreachable,
    IncompatibleAnswer,
    NotFound,
    RequestRefused,
)
from elastane.common.errors import BadInput
from tests.waiting import WAIT_S

NOW_S = 1_800_000_000.0


@pytest.fixture
def url(api, served):
    with served(api) as at:
        yield at


@pytest.fixture
def operator(api, url):
    with Cluster(url, api.token("operator"), timeout_s=WAIT_S) as cluster:
        yield cluster


@pytest.fixture
def ada(api, url):
    with Cluster(url, api.token(), timeout_s=WAIT_S) as cluster:
        yield cluster


def test_a_job_is_submitted_changed_and_cancelled(ada, make_spec):
    assert ada.jobs.submit(make_spec(), key="k") == ada.jobs.submit(make_spec(), key="k")
    assert ada.jobs.scale("train", max_replicas=6).spec.elastic_policy.max_replicas == 6
    assert ada.jobs.pause("train").state == "paused"
    assert ada.jobs.resume("train").state == "queued"
    assert ada.jobs.explain("train").workers == 0
    assert ada.jobs.cancel("train").state == "cancelled"
    assert [one.kind for one in ada.jobs.events("train")] == [
        "job.submitted",
        "job.scaled",
        "job.paused",
        "job.resumed",
        "job.cancelled",
    ]


def test_lists_are_fetched_page_by_page(ada, make_spec):
    for number in range(120):
        ada.jobs.submit(make_spec(f"job-{number}"))
    assert [one.name for one in ada.jobs.list()] == [f"job-{number}" for number in range(119, -1, -1)]
    assert [one.name for one in ada.jobs.list(prefix="job-7", states=("queued",))][-1] == "job-7"


def test_a_refusal_says_which_field_and_what_to_do(ada, make_spec):
    with pytest.raises(RequestRefused) as refused:
        ada.jobs.submit(make_spec(priority_class="none-such"))
    assert refused.value.problem.field == "priorityClass"
    assert "elastane priority" in str(refused.value)
    with pytest.raises(NotFound):
        ada.jobs.get("nowhere")


def test_operators_declare_compare_and_read_usage(operator, sqlite_store):
    operator.documents.declare(Pool(name="h100", device="h100", devices=8))
    hpc = DeclaredEngine(name="hpc", kind="slurm", options={"setup": "module load cuda"})
    operator.documents.declare(hpc)
    assert operator.documents.list(DeclaredEngine) == (hpc,)
    operator.documents.remove(DeclaredEngine, "hpc")
    operator.documents.declare(Team(name="vision"))
    operator.documents.set_quota(Team, "vision", Quota(pool="h100", nominal_quota=4))
    operator.documents.set_quota(Team, "vision", Quota(pool="h100", nominal_quota=6))
    assert operator.documents.get(Team, "vision").quotas == (Quota(pool="h100", nominal_quota=6),)
    assert [one.name for one in operator.documents.list(Pool)] == ["h100"]
    operator.documents.set_rules(SchedulingRules(cooldown_s=1))
    assert operator.documents.rules().cooldown_s == 1
    assert [one.change for one in operator.documents.diff(Config(teams=()))] == ["remove"]
    assert [one.name for one in operator.documents.apply(Config(teams=()))] == ["vision"]
    assert operator.documents.list(Team) == ()
    with sqlite_store.begin_write() as tx:
        nodes.record_node(tx, "n1", "h100", 8, NOW_S)
    assert operator.nodes.drain("n1", "new disk").why == "new disk"
    assert operator.nodes.use("n1").wanted == "use"
    assert [one.name for one in operator.nodes.list()] == ["n1"]
    operator.report(Capacity(pool="h100", devices=2))
    assert operator.usage("team").rows == ()
    assert operator.usage_csv("team", "pool").startswith("team,pool,owned_device_s")
    operator.documents.remove(Pool, "h100")
    assert next(operator.audit()).action == "pools.delete"
    assert operator.version().api == "v1"


def test_tokens_are_made_used_and_revoked(operator, url):
    made = operator.tokens.make(NewToken(user="bob", role="viewer", team="vision"))
    with Cluster(url, made.secret) as bob:
        assert list(bob.jobs.list()) == []
        operator.tokens.revoke(made.token.id)
        with pytest.raises(RequestRefused, match="no valid token"):
            list(bob.jobs.list())
    assert made.token.id in {one.id for one in operator.tokens.list()}


def test_a_watcher_continues_after_its_last_event(ada, api, sqlite_store, make_spec):
    ada.jobs.submit(make_spec())
    ada.jobs.pause("train")
    ada.jobs.submit(make_spec("other"))
    stream = ada.watch(job="train", after=0)
    assert [next(stream).kind, next(stream).kind] == ["job.submitted", "job.paused"]

    def happen():
        with sqlite_store.begin_write() as tx:
            history.append_event(tx, "job.grown", "it grew", NOW_S, team="vision", job="train")

    threading.Timer(0.1, happen).start()
    assert next(stream).message == "it grew"
    stream.close()


def test_a_watcher_gets_events_of_its_team_and_of_the_cluster_only(ada, sqlite_store):
    with sqlite_store.begin_write() as tx:
        history.append_event(tx, "job.submitted", "theirs", NOW_S, team="speech", job="x")
        history.append_event(tx, "node.drain", "everybody's", NOW_S)
        history.append_event(tx, "job.submitted", "ours", NOW_S, team="vision", job="y")
    stream = ada.watch(after=0)
    assert [next(stream).message for _ in range(2)] == ["everybody's", "ours"]
    stream.close()


def test_a_watcher_gets_texts_of_users_unchanged(ada, sqlite_store):
    odd = "a\u2028b\u2029c\x85d\x0ce\r\nf"
    with sqlite_store.begin_write() as tx:
        history.append_event(tx, "node.drain", odd, NOW_S)
    stream = ada.watch(after=0)
    assert next(stream).message == odd
    stream.close()


def test_a_client_continues_after_a_restart_of_the_controller(api, api_over, sqlite_store, served, make_spec):
    secret = api.token()
    with served(api) as url:
        port = int(url.rsplit(":", 1)[1])
        ada = Cluster(url, secret, timeout_s=WAIT_S)
        ada.jobs.submit(make_spec())
    again = api_over(sqlite_store)
    ended = threading.Event()

    def later():
        with served(again, port):
            ended.wait()

    restart = threading.Timer(0.5, later)
    restart.start()
    assert ada.jobs.pause("train").state == "paused"
    ada.close()
    ended.set()
    restart.join()


def test_a_watcher_without_events_misses_none_during_a_restart_of_the_controller(
    api, api_over, sqlite_store, served
):
    def happen(message):
        with sqlite_store.begin_write() as tx:
            history.append_event(tx, "node.drain", message, NOW_S)

    happen("before")
    secret, begun, told = api.token(), threading.Event(), []

    def watch(url):
        with Cluster(url, secret, timeout_s=WAIT_S) as ada:
            stream = ada.watch()
            watched = ada._read_stream

            def begins(*asked):
                for one in watched(*asked):
                    begun.set()
                    yield one

            ada._read_stream = begins
            told.append(next(stream).message)
            stream.close()

    with served(api) as url:
        watcher = threading.Thread(target=watch, args=(url,))
        watcher.start()
        assert begun.wait(WAIT_S)
    happen("meanwhile")
    with served(api_over(sqlite_store), int(url.rsplit(":", 1)[1])):
        happen("after")
        watcher.join(WAIT_S)
    assert told == ["meanwhile"]


@pytest.fixture
def nobody():
    """Return an address that refuses connections."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


def test_an_unreachable_controller_is_named(nobody):
    with (
        Cluster(nobody, "ela_x", timeout_s=0.5) as cluster,
        pytest.raises(ControllerUnreachable, match=nobody) as caught,
    ):
        cluster.jobs.pause("train")
    assert "may or may not have taken effect" in caught.value.means


def test_a_request_to_an_unknown_host_fails_soon_and_has_no_effect(nobody):
    with Cluster(nobody, "ela_x", timeout_s=1e9) as cluster:
        for ask in (cluster.version, lambda: next(cluster.watch())):
            with pytest.raises(ControllerUnreachable, match=nobody) as caught:
                ask()
            assert "taken effect" not in caught.value.means


def test_an_answer_of_another_version_is_reported(ada, make_spec, monkeypatch):
    monkeypatch.setattr(
        "elastane.cluster.controller.rest.jobs.build_reply", lambda *_, **__: build_reply({"name": "train"})
    )
    with pytest.raises(IncompatibleAnswer, match="another version") as caught:
        ada.jobs.submit(make_spec())
    assert "your request was done" in caught.value.means


def test_an_unreadable_answer_to_a_read_request_does_not_claim_an_effect(
    ada, operator, make_spec, monkeypatch
):
    ada.jobs.submit(make_spec())
    operator.documents.declare(Team(name="speech"))
    monkeypatch.setattr(bodies, "build_reply", lambda *_, **__: build_reply([], version=1))
    for ask in (
        lambda: ada.jobs.get("train"),
        lambda: operator.documents.diff(Config(teams=())),
        lambda: operator.documents.check(Config(teams=())),
        lambda: operator.documents.amend(Team, "speech", lambda team: team or Team(name="speech")),
    ):
        with pytest.raises(IncompatibleAnswer, match="another version") as caught:
            ask()
        assert "done" not in caught.value.means


@pytest.fixture
def other_server():
    """Start a server that is not a controller; return its URL, its answer and the received headers."""

    class Answering(BaseHTTPRequestHandler):
        status, named, sent, said = 200, {}, [], b"hi"

        def _answer(self):
            self.sent.append(dict(self.headers))
            self.send_response(self.status)
            for name, value in self.named.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(self.said)))
            self.end_headers()
            self.wfile.write(self.said)

        do_GET = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815 - so the library calls them

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", Answering
        server.shutdown()
        thread.join()


def test_a_request_to_this_machine_uses_no_proxy(other_server, nobody, monkeypatch):
    proxy, answering = other_server
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, proxy)
    with (
        Cluster(nobody, "ela_x", timeout_s=0.2) as cluster,
        pytest.raises(ControllerUnreachable, match=nobody),
    ):
        cluster.me()
    assert not answering.sent


@pytest.mark.parametrize("token", ["ela_x\n", "ela_ß", "", "ela_x y"])
def test_a_malformed_token_is_refused_and_not_printed(nobody, token):
    with pytest.raises(BadInput, match="token") as refused:
        Cluster(nobody, token)
    assert "ela_x" not in str(refused.value)
    assert refused.value.means == "nothing was sent"


@pytest.mark.parametrize("said", [b"hi", b'"\xff"'])
@pytest.mark.parametrize("status", [200, 302, 307])
def test_an_answer_of_another_program_does_not_count_as_success(other_server, status, said):
    url, answering = other_server
    answering.said = said
    answering.status, answering.named = (
        status,
        {"Location": "https://elsewhere/", "Content-Type": "text/html"},
    )
    with Cluster(url, "ela_x", timeout_s=WAIT_S) as cluster:
        for ask in (
            lambda: cluster.tokens.revoke("tok-0123456789ab"),
            lambda: cluster.documents.declare(Team(name="vision")),
            lambda: cluster.documents.remove(Team, "vision"),
            lambda: cluster.report(Capacity(pool="h100", devices=2)),
            lambda: cluster.documents.set_rules(SchedulingRules()),
            lambda: cluster.jobs.logs("train"),
            cluster.me,
        ):
            with pytest.raises(
                (RequestRefused, IncompatibleAnswer), match=r"does not come from a controller|answered 30\d"
            ) as caught:
                ask()
            assert "proxies" in caught.value.do
    if status != 200:
        with (
            Cluster(url, "ela_x", timeout_s=WAIT_S) as cluster,
            pytest.raises(RequestRefused, match=f"answered {status}"),
        ):
            next(cluster.watch())


@pytest.mark.parametrize(
    "made", [Path.mkdir, Path.touch, lambda file: file.write_text("junk"), lambda _: None]
)
def test_an_invalid_certificate_file_is_reported(tmp_path, made):
    made(tmp_path / "ca.pem")
    with pytest.raises(BadInput, match=r"ca\.pem cannot be read as a certificate"):
        Cluster("https://127.0.0.1:1", "ela_x", verify=str(tmp_path / "ca.pem"))


def test_a_request_that_cannot_be_sent_is_reported(nobody, make_spec):
    with Cluster(nobody, "ela_x") as cluster:
        with pytest.raises(BadInput, match="is not a valid key"):
            cluster.jobs.submit(make_spec(), key="ключ")
        with pytest.raises(BadInput, match="is not valid text"):
            cluster.jobs.submit(make_spec(env={"A": "\udcff"}))


def test_a_watcher_that_finds_too_many_streams_gets_an_error_after_a_while(api, url):
    api.app.state.watchers = Watchers(most=9, most_of_one=0)
    with (
        Cluster(url, api.token(), timeout_s=0.5) as ada,
        pytest.raises(RequestRefused, match="has 0 open streams"),
    ):
        next(ada.watch())


@pytest.mark.parametrize("later", ["Wed, 21 Oct 2026 07:28:00 GMT", "-5", "nan", "²"])
def test_a_retry_after_header_without_seconds_is_ignored(other_server, later):
    url, answering = other_server
    answering.status, answering.named = 503, {"Retry-After": later.encode().decode("latin-1")}
    with Cluster(url, "ela_x", timeout_s=0.5) as cluster, pytest.raises(RequestRefused, match="answered 503"):
        cluster.me()


def test_the_identity_of_the_token_and_the_occupancy_can_be_read(ada, operator):
    operator.documents.declare(Pool(name="h100", device="h100", devices=8, spot=True, price=2.0))
    assert (ada.me().user, ada.me().role, ada.me().team) == ("ada", "submitter", "vision")
    (pool,) = ada.occupancy()
    assert (pool.pool, pool.devices, pool.used, pool.free, pool.spot) == ("h100", 8, 0, 8, True)
