"""The number, the time and the log lines of unproven connections are bounded."""

import resource

from elastane.common.connections.unproven_connections import (
    REPORT_EVERY_S,
    AdmissionRules,
    RefusalLog,
    UnprovenConnections,
)

RULES = AdmissionRules(most=3, deadline_s=10, least_s=1, descriptor_ceiling=100)


def make_three() -> UnprovenConnections[str]:
    unproven: UnprovenConnections[str] = UnprovenConnections(RULES)
    for moment, name in enumerate("abc"):
        assert unproven.add(name, float(moment), descriptor=5) is None
    return unproven


def test_one_connection_too_many_displaces_the_oldest() -> None:
    unproven = make_three()
    assert unproven.add("d", 5.0, descriptor=5) == "a"
    assert list(unproven) == ["b", "c", "d"]


def test_a_lack_of_descriptors_displaces_the_oldest_connection() -> None:
    unproven: UnprovenConnections[str] = UnprovenConnections(RULES)
    assert unproven.add("a", 0.0, descriptor=100) is None
    assert unproven.add("b", 0.0, descriptor=101) == "a"


def test_a_proven_connection_is_never_displaced() -> None:
    unproven = make_three()
    unproven.discard("a")
    assert unproven.add("d", 5.0, descriptor=5) is None
    assert unproven.add("e", 5.0, descriptor=5) == "b"


def test_full_slots_stay_closed_until_the_oldest_connection_has_had_its_minimum() -> None:
    unproven = make_three()
    assert unproven.compute_opening_s() == 1.0
    unproven.discard("b")
    assert unproven.compute_opening_s() == 0.0


def test_every_connection_has_the_same_deadline() -> None:
    unproven = make_three()
    assert unproven.compute_expiry_s() == 10.0
    assert unproven.list_expired(9.9) == ()
    assert unproven.list_expired(11.5) == ("a", "b")


def test_unproven_connections_leave_most_descriptors_to_the_process_at_any_limit() -> None:
    for limit in (64, 256, 1024, 1 << 20):
        rules = AdmissionRules.from_descriptor_limit(limit)
        assert 0 < rules.most <= limit // 8
        assert limit // 2 < rules.descriptor_ceiling < limit


def test_a_million_refusals_are_one_line_a_minute() -> None:
    refusals = RefusalLog()
    lines = [refusals.count("noise", i / 10_000) for i in range(1_000_000)]
    assert [line is not None for line in lines].count(True) == 2  # 100 seconds
    assert "600000" in [line for line in lines if line][1]


def test_a_refusal_cannot_forge_a_line_of_the_log() -> None:
    line = RefusalLog().count("bad\nworker 0: all is well\x1b[2J" + "x" * 10_000, REPORT_EVERY_S)
    assert line is not None
    assert line.isprintable()
    assert len(line) < 400


def test_the_limit_of_descriptors_may_be_unlimited(monkeypatch) -> None:
    from elastane.common.connections.patient_listener import read_descriptor_limit

    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert read_descriptor_limit() > 1000
