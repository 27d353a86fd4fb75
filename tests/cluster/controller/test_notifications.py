"""Messages to other services: each event once, whenever a process dies; no secret is shown."""

import json
import logging
import os
import signal
import socket
import stat
import threading
from secrets import token_hex

import msgspec
import pytest
from typer.testing import CliRunner

from elastane.cli.main import app
from elastane.cluster.controller.notifications.deliveries import FIRST_PAUSE_S, MOST_WAITING
from elastane.cluster.controller.notifications.notifier import JUDGE_S, Notifier
from elastane.cluster.controller.notifications.stored_target import Message, StoredTarget
from elastane.cluster.controller.rest import notifications
from elastane.cluster.controller.rest.team_limits import MOST_TARGETS
from elastane.cluster.controller.store import history, notification_rows
from elastane.cluster.nouns.jobs import ElasticPolicy
from elastane.cluster.nouns.notifications import NotificationTarget, parse_occasions
from elastane.common.bodies import Page
from elastane.run.nouns.attempts import AttemptOutcome
from tests.waiting import WAIT_S, pause, wait_until

from .conftest import _served
from .receiver import Receiver

pytestmark = pytest.mark.processes

SECRET = token_hex(7)
TARGETS = "/notification-targets"
SLACK = "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ"


@pytest.fixture
def receiver():
    with Receiver() as started:
        yield started


class Site:
    """An API and its notifier, in one home."""

    def __init__(self, api_over, store, home):
        self.home = home
        self.api = api_over(store, home=home)
        self.store, self.clock = store, self.api.clock
        self.olga = self.api.user("operator", user="olga")
        self.notifier = self.new_notifier()

    def new_notifier(self):
        """Return the notifier of another controller, which knows only the store and the home."""
        return Notifier(self.store, self.home, self.clock)

    def add(self, url, *on, team="vision", user=None):
        answer = (user or self.olga).post(TARGETS, {"team": team, "on": list(on or ("ended",)), "url": url})
        assert answer.status_code == 201, answer.text
        return answer.json()["id"]

    def find(self, id_):
        found = msgspec.json.decode(self.olga.get(TARGETS).content, type=Page[NotificationTarget])
        return next(target for target in found.items if target.id == id_)

    def states(self, id_):
        """Return the states of the newest messages, newest first."""
        return [one["state"] for one in self.olga.get(f"{TARGETS}/{id_}/notifications").json()["items"]]

    def end_job(self, name="train", *, team="vision", why=""):
        with self.store.begin_write() as tx:
            message = f"{name} has failed: {why}"
            history.append_event(tx, "job.failed", message, self.clock.now_s, team=team, job=name)

    def look_until(self, condition, what):
        def look():
            self.notifier.look()
            pause(0.05)

        wait_until(condition, what, meanwhile=look)

    def settle(self):
        """Look until no attempt runs."""
        self.notifier.look()
        self.look_until(lambda: not self.notifier._senders, "the attempts have ended")


@pytest.fixture
def site(api_over, store, tmp_path, monkeypatch):
    # On a busy machine a process takes its time to start.
    monkeypatch.setattr(notifications, "LONGEST_S", WAIT_S)
    made = Site(api_over, store, tmp_path / "home")
    yield made
    for process, _ in made.notifier._senders.values():
        process.wait()


def test_an_event_is_sent_once_over_restarts_of_the_controller(site, receiver):
    site.end_job("before")
    id_ = site.add(f"json://127.0.0.1:{receiver.port}")
    for _ in range(3):
        site.end_job(why="<b>*boom*</b> http://evil.example")
        site.settle()
        site.notifier = site.new_notifier()
        site.settle()
    assert [text for _, text in receiver.messages] == [
        f"train has failed: b boom /b http: //evil.example (team vision). Key event:{number}"
        for number in (2, 3, 4)
    ]
    assert receiver.messages[0][0] == "Elastane: train failed"
    assert site.states(id_) == ["sent"] * 3
    assert site.find(id_).sent_s == site.clock.now_s


def test_events_that_wait_together_are_one_message(site, receiver):
    id_ = site.add(f"json://127.0.0.1:{receiver.port}")
    for number in range(3):
        site.end_job(f"train-{number}")
    site.end_job("other", team="speech")
    site.settle()
    ((title, text),) = receiver.messages
    assert title == "Elastane: 3 events"
    assert [line.split()[0] for line in text.splitlines()] == ["train-0", "train-1", "train-2"]
    assert site.find(id_).waiting == 0


def test_a_message_whose_controller_was_killed_is_not_sent_again(site, receiver):
    receiver.may_answer.clear()
    id_ = site.add(f"json://127.0.0.1:{receiver.port}")
    site.end_job()
    site.look_until(lambda: receiver.messages, "the message arrives")
    # Another controller begins while the process of the first one still waits for the answer.
    abandoned = site.notifier
    site.notifier = site.new_notifier()
    site.notifier.look()
    assert site.states(id_) == ["sending"]
    receiver.may_answer.set()
    site.look_until(lambda: site.states(id_) == ["sent"], "the receipt is read")
    assert len(receiver.messages) == 1
    for process, _ in abandoned._senders.values():
        process.wait()


def test_a_message_of_a_killed_process_is_sent_again_with_the_same_key(site, receiver):
    receiver.may_answer.clear()
    id_ = site.add(f"json://127.0.0.1:{receiver.port}")
    site.end_job()
    site.look_until(lambda: receiver.messages, "the message arrives")
    ((process, _),) = site.notifier._senders.values()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    receiver.may_answer.set()
    site.settle()
    assert (site.states(id_), site.find(id_).why) == (["waiting"], "the attempt ended without a trace")
    site.clock.now_s += FIRST_PAUSE_S
    site.settle()
    (_, first), (_, second) = receiver.messages
    assert second.splitlines()[0] == first
    assert "sent before" in second
    assert site.states(id_) == ["sent"]


def test_a_receipt_that_is_gone_means_that_the_message_may_have_arrived(site, receiver):
    id_ = site.add(f"json://127.0.0.1:{receiver.port}")
    site.end_job()
    site.notifier.look()
    for process, _ in site.notifier._senders.values():
        process.wait()
    for path in (site.home / "notifications").glob("batch-*"):
        path.unlink()
    site.notifier = site.new_notifier()
    site.notifier.look()
    assert site.states(id_) == ["waiting"]
    site.clock.now_s += FIRST_PAUSE_S
    site.settle()
    assert [("sent before" in text) for _, text in receiver.messages] == [False, True]


def test_a_service_that_refuses_is_tried_again_after_longer_pauses(site, receiver):
    receiver.status = 500
    id_ = site.add(f"json://127.0.0.1:{receiver.port}")
    site.end_job()
    site.settle()
    site.notifier.look()
    assert len(receiver.messages) == 1, "the pause has not ended"
    site.clock.now_s += FIRST_PAUSE_S
    site.settle()
    found = site.find(id_)
    assert (found.failures, found.waiting, len(receiver.messages)) == (2, 1, 2)
    assert found.retry_at_s == site.clock.now_s + 2 * FIRST_PAUSE_S
    # A redirection is a refusal too: it could lead into the network of the controller.
    receiver.status = 307
    site.clock.now_s += 2 * FIRST_PAUSE_S
    site.settle()
    assert (site.find(id_).failures, len(receiver.messages)) == (3, 3)
    # A test ends the pause.
    receiver.status = 200
    made = site.olga.post(f"{TARGETS}/{id_}/test").json()
    site.settle()
    assert site.states(id_) == ["sent", "sent"]
    assert f"Key {made['key']}" in receiver.messages[-1][1]
    assert (site.find(id_).failures, site.find(id_).why) == (0, "")


def test_a_message_is_given_up_after_a_day(site):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    id_ = site.add(f"json://127.0.0.1:{port}")
    site.end_job()
    site.settle()
    assert site.states(id_) == ["waiting"]
    site.clock.now_s += 24 * 3600
    site.settle()
    assert site.states(id_) == ["given-up"]
    assert "could not be reached" in site.find(id_).why


def test_a_service_that_hangs_holds_up_neither_others_nor_a_look(site, receiver, monkeypatch):
    with Receiver() as slow:
        slow.may_answer.clear()
        hangs = site.add(f"json://127.0.0.1:{slow.port}")
        site.end_job()
        with monkeypatch.context() as briefly:
            briefly.setattr("elastane.cluster.controller.notifications.notifier.LONGEST_S", 1.0)
            site.notifier.look()
        works = site.add(f"json://127.0.0.1:{receiver.port}")
        site.end_job()
        site.look_until(lambda: site.states(works) == ["sent"], "the other one gets its message")
        site.settle()
        assert site.find(hangs).why == "the service did not answer within 1 s"
        assert site.states(hangs) == ["waiting", "waiting"]


def test_a_removed_target_gets_nothing_more(site, receiver):
    receiver.may_answer.clear()
    id_ = site.add(f"json://127.0.0.1:{receiver.port}")
    site.end_job()
    site.look_until(lambda: receiver.messages, "the message arrives")
    assert site.olga.delete(f"{TARGETS}/{id_}").status_code == 204
    assert site.olga.delete(f"{TARGETS}/{id_}").status_code == 404
    receiver.may_answer.set()
    site.settle()
    site.end_job()
    site.settle()
    assert len(receiver.messages) == 1
    assert [path.name for path in (site.home / "notifications").iterdir()] == ["key"]


def test_too_many_messages_are_counted(site, monkeypatch):
    id_ = site.add(SLACK)
    monkeypatch.setattr(Notifier, "_begin_batch", lambda *_: None)
    for number in range(MOST_WAITING + 3):
        site.end_job(f"train-{number}")
    site.notifier.look()
    assert (site.find(id_).waiting, site.find(id_).left_out) == (MOST_WAITING, 3)
    site.notifier.look()
    assert site.find(id_).left_out == 3


def test_old_messages_are_forgotten_but_not_those_that_could_come_again(site, make_spec):
    id_ = site.add(SLACK)
    site.api.user(user="ada").post("/jobs", make_spec("waits"))
    with site.store.begin_write() as tx:
        target = notification_rows.find_target(tx, id_)
        known = [(f"waits:2h:1:{number}", "waits") for number in range(2)]
        known += [(f"waits:2h:1:{number}", "gone") for number in range(2, 4)]
        known += [(f"event:{number}", "gone") for number in range(notification_rows.KEPT + 2)]
        for key, job in known:
            message = Message(key=key, on="ended", job=job, text="")
            notification_rows.add_messages(tx, target, [message], site.clock.now_s)
        for entry in notification_rows.list_notifications(tx, target=id_, limit=1000):
            ended = msgspec.structs.replace(entry, state="sent", ended_s=1.0)
            notification_rows.write_notification(tx, ended)
        notification_rows.forget_old_notifications(tx)
        left = {
            entry.message.key for entry in notification_rows.list_notifications(tx, target=id_, limit=1000)
        }
    assert len(left) == notification_rows.KEPT + 2
    assert {"waits:2h:1:0", "waits:2h:1:1"} <= left


# -- events of jobs ----------------------------------------------------------------------------------------


def make_target(on, now_s=1.0, **values):
    known = {"id": "ntf-000000000001", "team": "vision", "service": "json", "host": "", "user": "ada"}
    return StoredTarget(on=parse_occasions(on), created_s=now_s, **known | values)


def test_jobs_that_lose_devices_spend_wait_are_stuck_and_fail_are_messages(
    cluster, make_spec, tmp_path, monkeypatch
):
    monkeypatch.setattr(Notifier, "_begin_batch", lambda *_: None)
    store = cluster.api.store
    operator, ada = cluster.api.user("operator", user="olga"), cluster.api.user()
    operator.put("/pools/local", {"name": "local", "device": "cpu", "devices": 4, "price": 3600.0})
    for name, value in (("low", -100), ("high", 100)):
        operator.put(f"/priorities/{name}", {"name": name, "value": value})
    on = ("reclaimed", "budget:1%", "waits:1min", "stuck:1min", "failed")
    with store.begin_write() as tx:
        notification_rows.insert_target(tx, make_target(on))
    notifier = Notifier(store, tmp_path / "home", cluster.clock)

    def find(occasion):
        notifier.look()
        with store.begin_read() as tx:
            found = notification_rows.list_notifications(tx, target="ntf-000000000001")
        return [entry.message for entry in found if entry.message.on == occasion]

    ada.post("/jobs", make_spec("first", priority_class="low", budget=10_000.0))
    cluster.until(lambda: cluster.workers("first") == 4)
    cluster.until(lambda: find("budget:1%"))
    assert not find("reclaimed")
    ada.post("/jobs", make_spec("second", priority_class="high", elastic_policy=fixed(3)))
    cluster.until(lambda: cluster.workers("second") == 3)
    (lost,) = find("reclaimed")
    assert (lost.job, "second" in lost.text) == ("first", True)
    ada.post("/jobs", make_spec("third", priority_class="low", elastic_policy=fixed(4)))
    cluster.world.running["first"].speed = 0.0
    cluster.until(lambda: find("waits:1min") and find("stuck:1min"), 200)
    assert [message.job for message in find("waits:1min")] == ["third"]
    assert [message.job for message in find("stuck:1min")] == ["first"]
    cluster.world.running["second"].end(AttemptOutcome(2, "no such file"))
    cluster.until(lambda: find("failed"))
    assert [message.text for message in find("failed")] == ["second has failed: no such file (team vision)"]
    counts = [len(find(occasion)) for occasion in ("reclaimed", "budget:1%", "waits:1min", "stuck:1min")]
    assert counts == [1, 1, 1, 1]


def fixed(workers):
    return ElasticPolicy(min_replicas=workers, max_replicas=workers)


# -- rights and secrets ------------------------------------------------------------------------------------


def test_only_the_team_and_its_admins_can_use_a_target(site):
    ann = site.api.user("team-admin", user="ann")
    id_ = site.add(SLACK, user=ann)
    refused = {
        ("submitter", "vision"): (403, 403, 403),
        ("viewer", "vision"): (403, 403, 403),
        ("team-admin", "speech"): (404, 404, 200),
        ("reporter", ""): (404, 403, 403),
    }
    for (role, team), expected in refused.items():
        user = site.api.user(role, team=team, user="eve")
        new = {"team": "vision", "on": ["failed"], "url": SLACK}
        asked = (user.post(TARGETS, new), user.delete(f"{TARGETS}/{id_}"), user.get(TARGETS))
        assert tuple(one.status_code for one in asked) == expected, role
        assert id_ not in asked[2].text
        assert user.post(f"{TARGETS}/{id_}/test").status_code in (403, 404)
        assert user.get(f"{TARGETS}/{id_}/notifications").status_code in (403, 404)
    assert [one["id"] for one in ann.get(TARGETS).json()["items"]] == [id_]
    every = ann.post(TARGETS, {"team": "*", "on": ["failed"], "url": SLACK})
    assert every.status_code == 403


@pytest.mark.parametrize(
    "url",
    [
        "json://127.0.0.1:7/",
        f"{SLACK}/?template=/etc/passwd",
        "workflows://evil.example:443/643e69f83c8944/deadbeef/",
    ],
)
def test_only_operators_choose_a_host_that_the_controller_connects_to(site, url):
    ann = site.api.user("team-admin", user="ann")
    refused = ann.post(TARGETS, {"team": "vision", "on": ["failed"], "url": url})
    assert refused.status_code == 403
    assert "an operator" in refused.text


@pytest.mark.parametrize("url", ["syslog://x", "file:///etc/passwd", "https://example.org/x", "slack://x y"])
def test_services_that_are_none_or_act_on_this_machine_are_refused(site, url):
    refused = site.olga.post(TARGETS, {"team": "vision", "on": ["failed"], "url": url})
    assert refused.status_code == 422
    assert refused.json()["do"]


def test_a_team_has_a_limited_number_of_targets(site):
    with site.store.begin_write() as tx:
        for number in range(MOST_TARGETS):
            made = make_target(("failed",), id=f"ntf-{number:012x}")
            notification_rows.insert_target(tx, made)
    refused = site.olga.post(TARGETS, {"team": "vision", "on": ["failed"], "url": SLACK})
    assert refused.status_code == 409


def test_a_url_is_nowhere(site, receiver, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    receiver.status = 500
    hidden = (SECRET, "h1dd3nPath", "h1dd3nQuery")
    id_ = site.add(f"json://ada:{SECRET}@127.0.0.1:{receiver.port}/{hidden[1]}?+X-Key={hidden[2]}")
    for url in (f"jsons://ada:{SECRET}@[", f"nothing://{SECRET}", f"syslog://{SECRET}"):
        refused = site.olga.post(TARGETS, {"team": "vision", "on": ["failed"], "url": url})
        assert refused.status_code == 422
        assert SECRET not in refused.text
    wrong = site.olga.post(TARGETS, {"team": "vision", "on": ["no"], "url": f"json://{SECRET}"})
    assert (wrong.status_code, SECRET in wrong.text) == (422, False)
    site.end_job()
    site.settle()
    assert site.find(id_).host == "127.0.0.1"
    shown = [site.olga.get(path).text for path in (TARGETS, f"{TARGETS}/{id_}/notifications", "/audit")]
    assert id_ in shown[2]
    assert "json at 127.0.0.1, on ended" in shown[2]
    with site.store.begin_read() as tx:
        events = history.list_events_after(tx, 0, 1000)
    written = [path.read_bytes() for path in site.home.parent.rglob("*") if path.is_file()]
    everything = [*shown, caplog.text, *capfd.readouterr(), msgspec.json.encode(events).decode()]
    for secret in hidden:
        assert all(secret not in text for text in everything)
        assert all(secret.encode() not in content for content in written)
    key = site.home / "notifications" / "key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    # Without the key, the URL is lost, and the list says what to do about it.
    key.unlink()
    site.clock.now_s += FIRST_PAUSE_S
    site.settle()
    assert site.find(id_).why == "the URL of the target cannot be read"


def test_nothing_is_judged_more_often_than_needed(site, make_spec, monkeypatch):
    site.add(SLACK, "waits:5min")
    site.api.user(user="ada").post("/jobs", make_spec("waits"))
    monkeypatch.setattr(Notifier, "_begin_batch", lambda *_: None)
    site.notifier.look()
    site.clock.now_s += 300
    site.notifier.look()
    (target,) = site.olga.get(TARGETS).json()["items"]
    assert target["waiting"] == 1
    site.clock.now_s += JUDGE_S
    site.notifier.look()
    assert site.find(target["id"]).waiting == 1


# -- the command line --------------------------------------------------------------------------------------


@pytest.fixture
def terminal(site, monkeypatch, tmp_path):
    monkeypatch.setenv("ELASTANE_HOME", str(tmp_path / "own"))
    monkeypatch.delenv("ELASTANE_CA", raising=False)
    looking = threading.Thread(target=site.notifier.run)
    with _served(site.api) as url:
        monkeypatch.setenv("ELASTANE_URL", url)
        monkeypatch.setenv("ELASTANE_TOKEN", site.olga.token)
        looking.start()

        def run(*words, stdin=None, code=0):
            done = CliRunner().invoke(app, ["notify", *words], input=stdin)
            assert done.exit_code == code, done.output
            return done

        try:
            yield run
        finally:
            site.notifier.close()
            looking.join()


def test_a_target_is_added_tested_listed_and_removed_on_the_command_line(terminal, receiver):
    url = f"json://ada:{SECRET}@127.0.0.1:{receiver.port}/"
    added = terminal("add", "--team", "vision", "--on", "failed,waits:2h", "-", stdin=f"{url}\n").stdout
    assert "json at 127.0.0.1, on failed, waits:2h" in added
    id_ = added.partition(":")[0]
    assert "has taken the test message" in terminal("test", id_).stdout
    receiver.status = 500
    refused = terminal("test", id_, code=1)
    assert "it has refused the message" in refused.stderr
    listed = terminal("list").stdout
    assert f"{id_}  vision" in listed
    assert "failed 1 times" in listed
    assert SECRET not in added + listed + refused.output
    assert json.loads(terminal("remove", id_, "--json").stdout) == {"removed": id_}
    assert json.loads(terminal("list", "--json").stdout) == []
    assert "not an occasion" in terminal("add", "--team", "v", "--on", "no", url, code=2).stderr
