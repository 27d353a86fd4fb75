"""The messages that a target gets: which ones, in which words, when, and what follows from each attempt."""

import msgspec
import pytest

from elastane.cluster.controller.jobs.size_history import is_reclaimed
from elastane.cluster.controller.jobs.stored_job import StoredJob
from elastane.cluster.controller.notifications.deliveries import (
    AT_ONCE,
    FIRST_PAUSE_S,
    GIVEN_UP_S,
    LONGEST_PAUSE_S,
    OF_ONE_TEAM,
    Outcome,
    apply_outcome,
    choose_batches,
    record_result,
)
from elastane.cluster.controller.notifications.occasions import (
    WaitingJob,
    list_event_messages,
    list_job_messages,
    list_wait_messages,
)
from elastane.cluster.controller.notifications.stored_target import Message, StoredNotification, StoredTarget
from elastane.cluster.controller.notifications.wording import (
    LARGEST_BYTES,
    choose_fitting,
    remove_markup,
    write_body,
    write_title,
)
from elastane.cluster.nouns.history import Event
from elastane.cluster.nouns.job_records import ObservedJob
from elastane.cluster.nouns.jobs import JobSpec
from elastane.cluster.nouns.notifications import Occasion, parse_occasions
from elastane.cluster.nouns.plans import Decision, GivesWay, Suspended
from elastane.cluster.nouns.usage import Use
from elastane.common.errors import BadField


def target(*on: str, team: str = "vision", **values) -> StoredTarget:
    known = {"id": "ntf-1", "service": "json", "host": "", "user": "ada", "created_s": 0.0}
    return StoredTarget(team=team, on=parse_occasions(on or ("failed",)), **known | values)


def event(kind: str, number: int = 7, team: str = "vision", **detail) -> Event:
    return Event(id=number, time_s=1.0, kind=kind, team=team, job="train", message="train ...", detail=detail)


def keys(found) -> list[str]:
    return [message.key for message in found]


def entry(number: int = 1, text: str = "train has failed", **values) -> StoredNotification:
    message = Message(key=f"event:{number}", on="failed", job="train", text=text)
    known = {"id": number, "target": "ntf-1", "state": "waiting", "made_s": 0.0}
    return StoredNotification(message=message, **known | values)


# -- occasions ---------------------------------------------------------------------------------------------


def test_occasions_are_read_as_they_are_shown() -> None:
    written = ("failed", "ended", "reclaimed", "stuck", "stuck:90min", "waits:2h", "budget:80%")
    assert [occasion.name for occasion in parse_occasions(written)] == [
        "failed",
        "ended",
        "reclaimed",
        "stuck:30min",
        "stuck:1h30min",
        "waits:2h",
        "budget:80%",
    ]
    names = [occasion.name for occasion in parse_occasions(written)]
    assert parse_occasions(names) == parse_occasions(written)
    assert parse_occasions(("failed", " failed")) == (Occasion("failed"),)


@pytest.mark.parametrize(
    "text",
    [
        *("", "fail", "FAILED", "failed:1h", "failed\n,ended"),
        *("waits", "waits:", "waits:1s", "waits:9999d", "waits:x", "stuck:0s"),
        *("budget", "budget:80", "budget:0%", "budget:101%", "budget:1e1%", "budget:\u0663%"),
    ],
)
def test_other_occasions_are_refused(text: str) -> None:
    with pytest.raises(BadField) as refused:
        parse_occasions((text,))
    assert refused.value.do


@pytest.mark.parametrize(
    ("on", "kind", "detail", "named"),
    [
        ("failed", "job.failed", {}, "failed"),
        ("ended", "job.failed", {}, "failed"),
        ("ended", "job.finished", {}, "finished"),
        ("ended", "job.cancelled", {}, "cancelled"),
        ("reclaimed", "job.shrunk", {"reclaimed": True}, "reclaimed"),
        ("reclaimed", "job.preempted", {"reclaimed": True}, "reclaimed"),
        ("failed", "job.finished", {}, None),
        ("ended", "job.crashed", {}, None),
        ("reclaimed", "job.shrunk", {}, None),
        ("waits:2h", "job.submitted", {}, None),
    ],
)
def test_an_event_is_of_an_occasion(on: str, kind: str, detail: dict, named: str | None) -> None:
    found = list(list_event_messages(target(on), [event(kind, **detail)]))
    assert [message.on for message in found] == ([] if named is None else [named])


def test_an_event_of_two_occasions_is_one_message() -> None:
    assert keys(list_event_messages(target("ended", "failed"), [event("job.failed")])) == ["event:7"]


def test_only_new_events_of_the_team_count() -> None:
    events = [event("job.failed", 6), event("job.failed", 7), event("job.failed", 8, team="speech")]
    assert keys(list_event_messages(target(last_event=6), events)) == ["event:7"]
    assert keys(list_event_messages(target(team="*", last_event=6), events)) == ["event:7", "event:8"]


def job(**values) -> StoredJob:
    spec = JobSpec(name="train", team="vision", script="/t.py", budget=10.0)
    known = {"number": 3, "name": "train", "team": "vision", "spec": spec, "state": "running"}
    return StoredJob(**known | values)


RUNNING = job(observed=ObservedJob(step=5, stepped_s=1000.0), active_since_s=900.0)


def test_a_job_is_stuck_after_a_time_without_a_step() -> None:
    stuck = target("stuck:1h")
    assert keys(list_job_messages(stuck, [RUNNING], 4599.0)) == []
    (message,) = list_job_messages(stuck, [RUNNING], 4600.0)
    assert message.key == "stuck:1h:3:1000"
    assert message.text == "train has made no step for 1 h; its last is 5 (team vision)"


@pytest.mark.parametrize(
    "changed",
    [
        # A resize, a retry and another start give it the whole time again.
        {"resized_s": 2000.0},
        {"retry_at_s": 2000.0},
        {"active_since_s": 2000.0},
        # It reports no steps, holds nothing, or its record is from before.
        {"observed": ObservedJob(step=0, stepped_s=0.0)},
        {"observed": ObservedJob(step=5, stepped_s=0.0)},
        {"state": "queued"},
        {"state": "failed"},
        {"unreadable": "damaged"},
    ],
)
def test_a_job_is_not_stuck_while_it_may_go_on(changed: dict) -> None:
    assert (
        keys(list_job_messages(target("stuck:1h"), [msgspec.structs.replace(RUNNING, **changed)], 5000.0))
        == []
    )


def test_a_job_that_is_stuck_again_is_another_message() -> None:
    later = msgspec.structs.replace(RUNNING, observed=ObservedJob(step=6, stepped_s=9000.0))
    first, second = (keys(list_job_messages(target("stuck"), [one], 90_000.0)) for one in (RUNNING, later))
    assert first != second


def test_a_part_of_a_budget_is_spent_once() -> None:
    using = (Use(pool="p", terms="owned", devices=1, price=1.0),)
    spends = job(uses=using, using_since_s=0.0, spent=7.0)
    assert keys(list_job_messages(target("budget:80%"), [spends], 3599.0)) == []
    (message,) = list_job_messages(target("budget:80%"), [spends], 3600.0)
    assert (message.key, message.on) == ("budget:80%:3:10", "budget:80%")
    assert message.text == "train has spent 8.00 of its budget of 10 (team vision)"
    more = msgspec.structs.replace(spends.spec, budget=5.0)
    again = list_job_messages(target("budget:80%"), [msgspec.structs.replace(spends, spec=more)], 3600.0)
    assert keys(again) == ["budget:80%:3:5"]


def test_each_wait_is_a_message_of_its_own() -> None:
    first = WaitingJob(name="train", team="vision", number=3, event=11, since_s=0.0)
    again = msgspec.structs.replace(first, event=40, since_s=50_000.0)
    waits = target("waits:2h", "waits:1d")
    assert keys(list_wait_messages(waits, [first], 7199.0)) == []
    assert keys(list_wait_messages(waits, [first], 7200.0)) == ["waits:2h:3:11"]
    assert keys(list_wait_messages(waits, [first], 90_000.0)) == ["waits:2h:3:11", "waits:1d:3:11"]
    assert keys(list_wait_messages(waits, [again], 60_000.0)) == ["waits:2h:3:40"]


def test_devices_are_reclaimed_for_others_only() -> None:
    taken = GivesWay(job="other", pool="p", devices=1, because="owner", team="vision")
    assert is_reclaimed(Decision(job="train", action="shrink", workers={"p": 1}, why=(taken,)))
    assert is_reclaimed(Decision(job="train", action="preempt", why=(taken,)))
    assert not is_reclaimed(Decision(job="train", action="preempt", why=(Suspended(),)))
    assert not is_reclaimed(Decision(job="train", action="keep", workers={"p": 1}, why=(taken,)))


# -- words -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "evil",
    [
        "<script>alert(1)</script>",
        "<!channel> <@U123> <http://evil|here>",
        "[here](http://evil.example) ![x](http://evil/x.png)",
        "*bold* _slanted_ ~gone~ `code` # title > quote | cell",
        "@everyone @here",
        "&lt;b&gt; \\*",
        "line\nline\r\x1b[31m\u202e\0\ud800",
    ],
)
def test_no_markup_of_a_job_is_left(evil: str) -> None:
    shown = remove_markup(evil)
    assert not set(shown) & set("<>&[]()!*~`#|@\\\n\r\x1b\u202e\0\ud800")
    assert "http://" not in shown
    assert "_" not in shown


def test_a_plain_reason_stays_as_it_is() -> None:
    reason = "train has failed: exit status 1, CUDA out of memory (tried 2.00 GiB) at step 17"
    assert remove_markup(reason) == reason.replace("(", "").replace(")", "").replace("  ", " ")
    assert remove_markup("train_1 and __init__ and _x") == "train_1 and init and x"
    assert remove_markup("Zu wenig Speicher für 数据") == "Zu wenig Speicher für 数据"


@pytest.mark.parametrize("character", ["x", "字", "\U0001d54f"])
def test_a_message_has_two_kilobytes_at_most(character: str) -> None:
    many = [entry(number, remove_markup(character * 5000)) for number in range(1, 200)]
    chosen = choose_fitting(many, left_out=12)
    assert chosen
    assert len(f"{write_title(chosen)}\n{write_body(chosen, 12)}".encode()) <= LARGEST_BYTES
    short = [entry(number) for number in range(1, 11)]
    assert list(choose_fitting(short)) == short


def test_a_message_names_its_events_and_doubts() -> None:
    one, two = entry(1), entry(2, again=True)
    assert write_title([one]) == "Elastane: train failed"
    assert write_title([one, two]) == "Elastane: 2 events"
    lines = write_body([one, two], left_out=3).splitlines()
    assert lines[:2] == ["train has failed. Key event:1", "train has failed. Key event:2"]
    assert lines[2].startswith("3 more were left out")
    assert "sent before" in lines[3]


# -- attempts ----------------------------------------------------------------------------------------------


def test_pauses_double_up_to_an_hour_and_end_with_a_success() -> None:
    failing, pauses = target(), []
    for _ in range(12):
        failing = apply_outcome(failing, Outcome(result="failed", why="no"), 100.0)
        pauses.append(failing.retry_at_s - 100.0)
    assert pauses[:4] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S, 8 * FIRST_PAUSE_S]
    assert pauses[-1] == LONGEST_PAUSE_S
    assert (failing.failures, failing.why) == (12, "no")
    left = msgspec.structs.replace(failing, left_out=5)
    sent = apply_outcome(left, Outcome(result="sent", left_out=3), 200.0)
    assert (sent.failures, sent.retry_at_s, sent.why, sent.sent_s, sent.left_out) == (0, 0.0, "", 200.0, 2)


def test_a_message_is_tried_for_a_day() -> None:
    sending = entry(state="sending", batch="batch-1")
    failed = Outcome(result="failed")
    again = record_result(sending, failed, GIVEN_UP_S - 1)
    assert (again.state, again.batch, again.again) == ("waiting", "", False)
    assert record_result(sending, Outcome(result="unknown"), 1.0).again
    assert record_result(sending, failed, GIVEN_UP_S).state == "given-up"
    assert record_result(sending, Outcome(result="sent"), GIVEN_UP_S).state == "sent"


def test_slow_targets_of_a_team_leave_room_for_others() -> None:
    mine = [target(id=f"ntf-{number}") for number in range(6)]
    others = [target(id=f"ntf-{number}", team=f"t{number}") for number in range(6, 12)]
    waiting = {one.id: [entry(place)] for place, one in enumerate([*mine, *others], 1)}
    chosen = choose_batches([*mine, *others], waiting, [], 0.0)
    assert [batch.target.team for batch in chosen] == ["vision"] * OF_ONE_TEAM + ["t6", "t7"]
    assert len(chosen) == AT_ONCE
    assert choose_batches(mine, waiting, mine[:OF_ONE_TEAM], 0.0) == ()


def test_a_target_that_failed_or_is_busy_waits() -> None:
    failed, busy = target(id="a", retry_at_s=10.0), target(id="b", team="t")
    waiting = {"a": [entry(1)], "b": [entry(2)]}
    assert choose_batches([failed, busy], waiting, [busy], 9.0) == ()
    assert [batch.target.id for batch in choose_batches([failed, busy], waiting, [busy], 10.0)] == ["a"]
