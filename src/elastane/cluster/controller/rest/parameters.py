"""Parameters of several endpoints, their patterns, and descriptions of the patterns."""

from typing import Annotated

from fastapi import Path, Query

from elastane.cluster.controller.rest.logs import PROCESS
from elastane.cluster.nouns.agents import AGENT_ID
from elastane.common import field_checks

AGENT = rf"^{AGENT_ID}$"
DIGEST = r"^[0-9a-f]{64}$"
NAME = rf"^{field_checks.NAME.pattern}$"

RECORD = r"^[A-Za-z][A-Za-z.]{0,63}$"

Name = Annotated[str, Path(pattern=NAME, max_length=100)]
Agent = Annotated[str, Path(pattern=AGENT, max_length=40)]
Record = Annotated[str, Path(pattern=RECORD)]
Digest = Annotated[str, Path(pattern=DIGEST, max_length=64, description="Of the code.")]
Limit = Annotated[int, Query(ge=1, le=1000, description="Largest number of items.")]
After = Annotated[
    int | None, Query(ge=0, le=2**62, description="Where the page begins: `after` of the previous page.")
]
LIST_KEY = rf"^{field_checks.NAME.pattern}/{field_checks.NAME.pattern}$"
AfterList = Annotated[
    str,
    Query(
        pattern=rf"{LIST_KEY}|^$",
        max_length=201,
        description="Where the page begins: `after` of the previous page.",
    ),
]
NAME_OR_NONE = rf"{NAME}|^$"
NameFilter = Annotated[str, Query(pattern=NAME_OR_NONE, max_length=100)]
PREFIX = r"^[A-Za-z0-9._-]*$"
PrefixFilter = Annotated[str, Query(pattern=PREFIX, max_length=100)]
USER = r"^[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}$"
USER_OR_NONE = rf"{USER}|^$"
UserFilter = Annotated[str, Query(pattern=USER_OR_NONE, max_length=100)]
TOKENS = r"^tok-[0-9a-f]{12}$"
TARGETS = r"^ntf-[0-9a-f]{12}$"
NotificationTargetId = Annotated[str, Path(pattern=TARGETS, max_length=20)]
EVENT = r"^\d{0,18}$"
PRINTABLE = r"^[!-~]*$"

_NAME = "letters, digits, dots, dashes and underscores, up to 100, the first a letter or digit: train-2"
_USER = "letters, digits and any of ._@+-, up to 100, the first a letter or digit: ada@example.org"
WORDS = {
    NAME: _NAME,
    NAME_OR_NONE: _NAME,
    rf"{LIST_KEY}|^$": "a team, a slash and the name of a list: vision/train-0123456789ab",
    PREFIX: "letters, digits, dots, dashes and underscores: train-",
    USER_OR_NONE: _USER,
    AGENT: "the agent's id, which its ticket has: c0a1b2-7",
    RECORD: "the name of a record: run.json",
    DIGEST: "the digest of the code, which elastane submit --ship-code computes: 64 digits of 0-9 and a-f",
    TOKENS: "the token's id, as `elastane token list` shows it: tok-0123456789ab",
    TARGETS: "the target's id, as `elastane notify list` shows it: ntf-0123456789ab",
    EVENT: "the number of an event: 42",
    PRINTABLE: "letters, digits and signs without spaces: 1f0e-2",
    PROCESS: "agent, coordinator, fork-server or worker-N, as the list of processes names it: worker-0",
}
"""The description of each pattern, with an example."""
