"""Texts that operators type and read: durations, days, times, and configurations as YAML."""

import os
from datetime import UTC, datetime, time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from typer.testing import CliRunner

from elastane.cli.main import app
from elastane.cli.operators.calendar import (
    ReservationTimes,
    build_schedule,
    format_days,
    format_next,
    format_schedule,
    parse_days,
)
from elastane.cli.operators.config import format_changes
from elastane.cli.option_values import read_duration_s, read_limit, read_past_time
from elastane.cluster.client.config_file import format_config, parse_config, read_config
from elastane.cluster.client.context import StartedController, save_running
from elastane.cluster.nouns.config import (
    DAYS,
    Change,
    Cohort,
    Config,
    DeclaredEngine,
    Once,
    PriorityClass,
    Quota,
    Reservation,
    SchedulingRules,
    Team,
    Trigger,
    Weekly,
)
from elastane.cluster.nouns.pools import Pool
from elastane.common import process_identity
from elastane.common.documents import read_yaml
from elastane.common.errors import BadInput

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("15min", 900), ("1.5 h", 5400), ("30d", 2_592_000)]
)
def test_a_duration_has_a_unit(text, seconds):
    assert read_duration_s("--valid", text) == seconds


@pytest.mark.parametrize("text", ["", "90", "soon", "-3h", "3 years", "h"])
def test_an_invalid_duration_is_refused_with_an_example(text):
    with pytest.raises(BadInput, match="--valid") as refused:
        read_duration_s("--valid", text)
    assert "15min" in refused.value.do


def test_a_past_time_is_a_date_a_time_or_a_duration_ago():
    assert read_past_time("--from", "7d", NOW) == datetime(2026, 11, 14, 12, 0, tzinfo=UTC)
    assert read_past_time("--from", "2026-11-01", NOW) == datetime(2026, 11, 1, tzinfo=UTC)
    assert read_past_time("--from", "2026-11-01T09:00+01:00", NOW) == datetime(2026, 11, 1, 8, 0, tzinfo=UTC)
    with pytest.raises(BadInput, match="invalid time for --until: 'tomorrow'"):
        read_past_time("--until", "tomorrow", NOW)
    with pytest.raises(BadInput, match="--from: '99999999999d' ago is before the year 1"):
        read_past_time("--from", "99999999999d", NOW)


def test_a_limit_is_a_number_or_unlimited():
    assert (read_limit("--borrow", "16"), read_limit("--borrow", "unlimited")) == (16, None)
    with pytest.raises(BadInput, match="--borrow: '-1'"):
        read_limit("--borrow", "-1")


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("mon-fri", DAYS[:5]),
        ("sat,sun", ("sat", "sun")),
        ("fri-mon", ("fri", "sat", "sun", "mon")),
        ("Mon, wed", ("mon", "wed")),
    ],
)
def test_days_are_a_list_or_a_range(text, days):
    assert parse_days(text) == days


@given(st.sets(st.sampled_from(DAYS), min_size=1))
def test_shown_days_are_read_back(days):
    assert set(parse_days(format_days(days))) == days


class TestWhen:
    before = Weekly(days=("mon",), start=time(9), end=time(18), zone="Europe/Berlin")

    def test_times_without_an_option_stay_unchanged(self):
        after = build_schedule(ReservationTimes(until="17:30"), self.before)
        assert after == Weekly(days=("mon",), start=time(9), end=time(17, 30), zone="Europe/Berlin")
        assert build_schedule(ReservationTimes(), self.before) == self.before

    def test_a_new_reservation_needs_its_times(self):
        with pytest.raises(BadInput, match="has no times"):
            build_schedule(ReservationTimes(days="mon-fri"), None)
        with pytest.raises(BadInput, match="is missing"):
            build_schedule(ReservationTimes(start="2026-12-24T08:00"), None)

    def test_weekly_and_single_times_cannot_be_mixed(self):
        with pytest.raises(BadInput, match="cannot be combined"):
            build_schedule(ReservationTimes(begin="09:00", until="10:00", start="2026-12-24"), None)

    def test_a_time_without_a_zone_is_in_the_zone_of_the_option(self):
        wish = ReservationTimes(start="2026-12-24T08:00", end="2026-12-24T12:00+00:00", zone="Europe/Berlin")
        found = build_schedule(wish, None)
        assert isinstance(found, Once)
        assert found.start.astimezone(UTC) == datetime(2026, 12, 24, 7, 0, tzinfo=UTC)
        assert found.end == datetime(2026, 12, 24, 12, 0, tzinfo=UTC)

    def test_a_schedule_is_shown_with_its_days_times_and_zone(self):
        assert format_schedule(self.before) == "mon 09:00-18:00 Europe/Berlin"
        once = Once(start=datetime(2026, 12, 24, 8, tzinfo=UTC), end=datetime(2026, 12, 25, 9, tzinfo=UTC))
        assert format_schedule(once) == "2026-12-24 08:00-2026-12-25 09:00 UTC"

    def test_the_list_of_reservations_shows_what_comes_next(self):
        reservation = Reservation(name="x", pool="p", devices=1, when=self.before)
        monday_s = datetime(2026, 11, 23, 8, 0, tzinfo=UTC).timestamp()
        assert format_next(reservation, monday_s - 3600).startswith("from ")
        assert format_next(reservation, monday_s - 300).endswith(", announced")
        assert format_next(reservation, monday_s + 60).startswith("until ")
        once = Once(start=datetime(2026, 1, 1, tzinfo=UTC), end=datetime(2026, 1, 2, tzinfo=UTC))
        assert format_next(Reservation(name="x", pool="p", devices=1, when=once), monday_s) == "over"


names = st.sampled_from(
    ["a", "no", "on", "1e3", "12", "0x1f", "null", "~", "true", "vision", "7.5", "2026-01-01"]
)
words = names | st.text(max_size=8)
lines = words | st.lists(words, max_size=4).map("\n".join)
floats = st.floats(0.001, 1e6, allow_nan=False)
quotas = st.builds(
    Quota,
    pool=names,
    nominal_quota=st.integers(0, 99),
    borrowing_limit=st.none() | st.integers(0, 9),
    lending_limit=st.none() | st.integers(0, 9),
)
times = st.builds(time, st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
moments = st.datetimes(datetime(2020, 1, 1), datetime(2040, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
whens = st.builds(Once, start=moments, end=moments) | st.builds(
    Weekly, days=st.lists(st.sampled_from(DAYS), max_size=7).map(tuple), start=times, end=times, zone=names
)
configs = st.builds(
    Config,
    cohorts=st.none() | st.tuples(st.builds(Cohort, name=names, quotas=st.tuples(quotas), weight=floats)),
    teams=st.none() | st.just(()) | st.tuples(st.builds(Team, name=names, cohort=words)),
    priorities=st.none()
    | st.tuples(st.builds(PriorityClass, name=names, value=st.integers(-9, 9), description=words)),
    engines=st.none()
    | st.tuples(
        st.builds(
            DeclaredEngine,
            name=names,
            kind=st.just("slurm"),
            options=st.dictionaries(words, lines, max_size=2),
        )
    ),
    pools=st.none()
    | st.tuples(
        st.builds(
            Pool,
            name=names,
            device=words,
            devices=st.integers(0, 9),
            spot=st.booleans(),
            price=floats,
            labels=st.dictionaries(words, words, max_size=2),
            engine=words,
            options=st.dictionaries(words, words, max_size=2),
        )
    ),
    reservations=st.none()
    | st.tuples(st.builds(Reservation, name=names, pool=names, devices=st.integers(1, 9), when=whens)),
    triggers=st.none()
    | st.tuples(
        st.builds(
            Trigger, name=names, metric=words, above=st.none() | floats, pool=names, limit=st.integers()
        )
    ),
    rules=st.none() | st.builds(SchedulingRules, cooldown_s=floats),
)


@given(configs)
@example(Config(priorities=(PriorityClass(name="a", value=0, description="\x85"),)))
def test_a_written_configuration_is_read_back(config):
    assert parse_config(format_config(config)) == config


def test_times_of_day_may_have_quotes_and_seconds():
    text = """
reservations:
- name: inference
  pool: h100
  devices: 8
  when: {type: weekly, start: START, end: 18:00, zone: Europe/Berlin}
"""
    for start in ("9:00", "09:00", '"09:00"', "09:00:00"):
        (one,) = parse_config(text.replace("START", start)).reservations or ()
        assert one.when == Weekly(start=time(9), end=time(18), zone="Europe/Berlin")


def test_unquoted_words_in_yaml_stay_texts():
    assert read_yaml("{a: no, b: on, c: 12:30, d: 012, e: 1.5, f: true, g: ~, h: 2026-01-01}") == {
        "a": "no",
        "b": "on",
        "c": "12:30",
        "d": 12,
        "e": 1.5,
        "f": True,
        "g": None,
        "h": "2026-01-01",
    }


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("teams: [{name: a, wieght: 2}]", r"teams\[0\].wieght: a configuration has no such field"),
        ("- a", "is not a configuration"),
        ("", "is not a configuration"),
        ("teams: [", "is not YAML"),
        ("pools: []\nteams: []\npools: []", "has pools twice: on lines 1 and 3"),
        ("version: 2", "has version 2"),
        (
            "reservations: [{name: a, pool: p, devices: 1, when: {type: weekly, end: 9:00}}]",
            r"reservations\[0\].when.start: is missing",
        ),
        ("pools: [{name: a}]", r"pools\[0\].device: is missing"),
        ("a: !!python/object/apply:os.system [ls]", "is not YAML"),
    ],
)
def test_an_invalid_configuration_is_refused_with_its_file(tmp_path, text, what):
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    with pytest.raises(BadInput, match=what) as refused:
        read_config(str(file))
    assert "cluster.yaml" in refused.value.what
    assert refused.value.do


def test_changes_are_shown_by_field():
    quota = {"pool": "h100", "nominalQuota": 8, "borrowingLimit": None}
    before = {"name": "vision", "weight": 1.0, "quotas": [quota]}
    after = {"name": "vision", "weight": 2.5, "quotas": [quota | {"nominalQuota": 4, "borrowingLimit": 2}]}
    changes = [
        Change(kind="teams", name="vision", change="change", before=before, after=after),
        Change(kind="teams", name="new", change="add", after={"name": "new", "quotas": [], "cohort": "c"}),
        Change(kind="pools", name="old", change="remove", before={"name": "old", "devices": 3}),
    ]
    assert format_changes(changes) == [
        (
            "~ team vision: weight 1 -> 2.5, quotas.h100.nominalQuota 8 -> 4, "
            "quotas.h100.borrowingLimit none -> 2"
        ),
        "+ team new: cohort c",
        "- pool old",
    ]


def test_up_beside_a_running_controller_prints_its_address(tmp_path, monkeypatch):
    monkeypatch.setenv("ELASTANE_HOME", str(tmp_path))
    own = os.getpid()
    save_running(
        StartedController(
            url="http://127.0.0.1:7425", pid=own, started=process_identity.read_start_time(own) or 0
        )
    )
    answer = CliRunner().invoke(app, ["up", "--detach"])
    assert answer.exit_code == 2
    assert "a controller already runs here (http://127.0.0.1:7425" in answer.stderr
    assert "elastane down" in answer.stderr


@pytest.mark.parametrize("words", [("config", "diff"), ("submit", "--dry-run"), ("launch", "--config_file")])
def test_a_document_without_an_end_is_refused(elastane, script, words, tmp_path) -> None:
    endless = tmp_path / "endless.yaml"
    endless.symlink_to("/dev/zero")
    refused = elastane(*words, endless, *((script,) if words[0] == "launch" else ()))
    assert refused.exit_code == 2
    assert "has more than" in refused.stderr
