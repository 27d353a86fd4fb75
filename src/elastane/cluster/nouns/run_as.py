"""The system users that run the jobs of a cluster; root chooses them with ``elastane up --run-as``."""

from collections.abc import Iterable, Mapping

import msgspec

from elastane.common.errors import BadInput


class RunAs(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """System users by team.

    Args:
        default: user of teams that ``teams`` does not name; empty: those teams cannot run jobs, unless
            ``teams`` is empty too.
        teams: the user of each team that has its own.
    """

    default: str = ""
    teams: Mapping[str, str] = {}

    @property
    def isolates(self) -> bool:
        """Whether jobs run as system users of their own; False: all run as the controller's user."""
        return bool(self.default or self.teams)

    @property
    def users(self) -> tuple[str, ...]:
        """All system users, each once, sorted."""
        return tuple(sorted({*self.teams.values(), *filter(None, (self.default,))}))

    def find_user(self, team: str) -> str:
        """Return the system user that runs the jobs of a team; empty: the controller's own.

        Raises:
            BadInput: other teams have system users, and this one has none.
        """
        user = self.teams.get(team, self.default)
        if self.isolates and not user:
            raise BadInput(
                f"team {team} has no system user, but jobs of this cluster run as that of their team",
                means="its jobs would run as the user of the controller and could read every token",
                do=f"ask the operator of the controller for: elastane up --run-as {team}=USER",
            )
        return user


def parse_run_as(words: Iterable[str]) -> RunAs:
    """Parse the words of ``--run-as``: each is ``TEAM=USER``, or ``USER`` for all other teams.

    Raises:
        BadInput: a word is neither, or two words contradict each other.
    """
    teams: dict[str, str] = {}
    default = ""
    for word in words:
        team, equals, user = word.rpartition("=")
        if not user or (equals and not team):
            raise BadInput(
                f"--run-as {word!r} lacks a team or a user", do="write TEAM=USER, or USER for all other teams"
            )
        before = teams.get(team, user) if equals else default or user
        if before != user:
            raise BadInput(
                f"--run-as names two users for {f'team {team}' if equals else 'all other teams'}: "
                f"{before} and {user}",
                do="name one",
            )
        if equals:
            teams[team] = user
        else:
            default = user
    return RunAs(default=default, teams=teams)
