"""The rights of every role, action and target."""

from typing import get_args

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from elastane.cluster.controller.access.roles import (
    EVERY_TEAM,
    READS,
    Action,
    Allowed,
    Denied,
    Principal,
    Target,
    authorize,
    list_visible_teams,
)
from elastane.cluster.nouns.tokens import Role

ID = "tok-1"
names = st.sampled_from(["vision", "speech", "robots"])
actions = st.sampled_from(get_args(Action))
roles = st.sampled_from(get_args(Role))


@st.composite
def principals(draw, role=roles):
    drawn = draw(role)
    team = "" if drawn in {"operator", "reporter", "scraper"} else draw(names | st.just(EVERY_TEAM))
    return Principal(token=ID, user=draw(st.sampled_from(["ada", "bob"])), role=drawn, team=team)


targets = st.builds(
    Target,
    name=st.just("job x"),
    team=names | st.just("") | st.just(EVERY_TEAM),
    user=st.sampled_from(["", "ada", "bob", "vision+ci", "speech+ci", "+ci", "*+ci"]),
    role=st.none() | roles,
)


@given(principals(), actions, targets)
def test_things_of_another_team_are_neither_changed_nor_shown(principal, action, target):
    if principal.role == "operator" or not target.team or principal.team in {target.team, EVERY_TEAM}:
        return
    assert authorize(principal, action, target) == Denied(
        f"{target.name} belongs to another team", visible=False
    )


@given(principals(), actions, targets)
def test_a_viewer_changes_nothing(principal, action, target):
    if principal.role == "viewer" and authorize(principal, action, target) == Allowed():
        assert action in READS


@given(principals(), actions, targets)
def test_a_reporter_only_reports(principal, action, target):
    if principal.role == "reporter":
        assert (authorize(principal, action, target) == Allowed()) == (
            action == "reports.write" and not target.team
        )


@given(principals(), actions, targets)
def test_a_scraper_only_reads_metrics(principal, action, target):
    if principal.role == "scraper":
        assert (authorize(principal, action, target) == Allowed()) == (
            action == "metrics.read" and not target.team
        )


@given(principals(role=st.just("submitter")), targets)
def test_a_submitter_changes_only_the_jobs_of_its_user(principal, target):
    if authorize(principal, "job.change", target) == Allowed():
        assert target.user == principal.user


@given(principals(), targets)
def test_only_an_operator_gives_a_role_in_another_team(principal, target):
    if principal.role == "operator" or authorize(principal, "tokens.write", target) != Allowed():
        return
    assert principal.role == "team-admin"
    assert target.role not in {"operator", "reporter", "scraper"}
    assert target.team
    assert principal.team in {target.team, EVERY_TEAM}


@given(principals(), targets)
def test_only_an_operator_makes_a_token_for_any_user(principal, target):
    if principal.role == "operator" or authorize(principal, "tokens.write", target) != Allowed():
        return
    assert target.user in {"", principal.user} or target.user.startswith(f"{target.team}+")


@given(principals(), actions, targets)
def test_a_hidden_target_is_shown_only_with_the_right(principal, action, target):
    match authorize(principal, action, msgspec.structs.replace(target, hidden=True)):
        case Denied(visible=visible):
            assert not visible
        case Allowed():
            assert authorize(principal, action, target) == Allowed()


@given(principals(), actions, targets)
def test_only_operators_change_things_of_the_cluster(principal, action, target):
    if target.team or principal.role in {"operator", "reporter", "scraper"}:
        return
    if authorize(principal, action, target) == Allowed():
        assert action == "documents.read"


@given(principals(), targets)
def test_the_visible_teams_are_those_with_readable_jobs(principal, target):
    if target.team in {"", EVERY_TEAM}:
        return
    teams = list_visible_teams(principal)
    listed = teams is None or target.team in teams
    allowed = authorize(principal, "job.read", target) == Allowed()
    assert listed == allowed


@given(principals(), actions, targets)
def test_a_denial_has_a_reason_and_is_hidden_without_the_right_to_read(principal, action, target):
    match authorize(principal, action, target):
        case Denied(reason, visible, ask):
            assert reason
            assert not (principal.role == "team-admin" and "admin" in ask)
            if visible and target.team:
                assert authorize(principal, "job.read", target) == Allowed()
        case Allowed():
            pass
