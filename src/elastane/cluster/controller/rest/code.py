"""Code that jobs bring with them: users send its archive before the job, and agents get that of their job."""

import errno
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import IO

from anyio import to_thread
from fastapi import APIRouter, Response
from fastapi.responses import FileResponse
from sqlalchemy import Connection
from starlette.requests import ClientDisconnect

from elastane.cluster.controller.access.roles import EVERY_TEAM, Target
from elastane.cluster.controller.rest import team_limits
from elastane.cluster.controller.rest.agents import AgentParameter
from elastane.cluster.controller.rest.bodies import build_response
from elastane.cluster.controller.rest.caller import Caller, CallerParameter, Changer, ChangerParameter
from elastane.cluster.controller.rest.description import BYTES, describe_route
from elastane.cluster.controller.rest.parameters import Digest, NameFilter
from elastane.cluster.controller.rest.problems import Refusal, make_missing_error
from elastane.cluster.controller.store import code_rows, jobs
from elastane.cluster.controller.store.replies import Reply
from elastane.common.atomic_file import FULL_DISK
from elastane.common.errors import BadField
from elastane.common.untrusted_data import Malformed
from elastane.run.machines.joining.code_archive import check_archive

router = APIRouter(prefix="/v1", tags=["code"])
ARRIVE_S = 600.0
"""Time for the whole archive of some code; the largest one needs 300 kB per second."""
PIECE_BYTES = 1 << 20


class Uploads:
    """The number of archives that arrive now, by user. Only the thread of the event loop may use it.

    Args:
        most_of_user: of these, the most from one user.
    """

    def __init__(self, most: int, most_of_user: int) -> None:
        self._most, self._most_of_user = most, most_of_user
        self._of = Counter[str]()

    @contextmanager
    def count_upload(self, user: str) -> Iterator[None]:
        """Count an upload while it arrives and is checked."""
        if self._of[user] >= self._most_of_user or self._of.total() >= self._most:
            raise Refusal(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "too much code is being sent at this time",
                means="nothing was done",
                do="try again in some seconds",
                headers={"Retry-After": "2"},
            )
        one = Counter([user])
        self._of += one
        try:
            yield
        finally:
            self._of -= one  # drops counts of zero


def _find_team(caller: Caller, team: str) -> str:
    """Return the team that code is for, after a check that the caller may submit its jobs."""
    found = team or caller.principal.team
    if found in {"", EVERY_TEAM}:
        raise BadField("query.team", "is missing, and your token has no team", do="add ?team=TEAM")
    caller.require_right("job.submit", Target(name=f"team {found}", team=found))
    return found


@router.get("/code/{digest}", **describe_route(None, status=HTTPStatus.NO_CONTENT))
def get_code(caller: CallerParameter, digest: Digest, team: NameFilter = "") -> Response:
    """Say whether a team, by default that of the token, has sent this code, so that jobs can use it."""
    found = _find_team(caller, team)
    with caller.begin_read() as tx:
        is_here = code_rows.has_code(tx, found, digest)
    if not is_here or caller.controller.code.find(digest) is None:
        raise make_missing_error(f"code {digest} of team {found}")
    return build_response(Reply(status=HTTPStatus.NO_CONTENT))


@router.put("/code/{digest}", **describe_route(None, status=HTTPStatus.NO_CONTENT, takes_bytes=True))
async def put_code(caller: ChangerParameter, digest: Digest, team: NameFilter = "") -> Response:
    """Send code for jobs of a team, as an archive. It is kept if the code has this digest.

    It is a tar file of files only, in the order of their names, compressed as gzip does. It is deleted some
    days after the end of the last job that uses it.
    """
    found = await to_thread.run_sync(_find_team, caller, team)
    request = caller.request
    uploads: Uploads = request.app.state.uploads
    with uploads.count_upload(caller.principal.user):
        # The server has it; a test without sockets has not.
        if (allow_time := getattr(request.state, "allow_time", None)) is not None:
            allow_time(ARRIVE_S)
        try:
            with caller.controller.code.open_partial(digest) as partial:
                await _receive(caller, partial)
                return await to_thread.run_sync(_keep_code, caller, found, digest, partial)
        except ClientDisconnect as error:
            raise Refusal(
                HTTPStatus.BAD_REQUEST,
                "the code has not arrived",
                means="nothing was kept",
                do="send it again",
            ) from error
        except OSError as error:
            if error.errno not in FULL_DISK:
                raise
            raise _make_full_error(error) from error


async def _receive(caller: Caller, partial: IO[bytes]) -> None:
    """Write the body of a request to a file."""
    pieces = bytearray()
    async for piece in caller.request.stream():
        pieces += piece
        if len(pieces) >= PIECE_BYTES:
            await to_thread.run_sync(partial.write, bytes(pieces))
            pieces.clear()
    await to_thread.run_sync(partial.write, bytes(pieces))


def _keep_code(caller: Changer, team: str, digest: str, partial: IO[bytes]) -> Response:
    """Check an archive and keep it."""
    partial.flush()
    size_bytes = partial.seek(0, os.SEEK_END)
    partial.seek(0)
    try:
        check_archive(partial, digest)
    except Malformed as error:
        raise Refusal(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            f"the body is not the archive of the code {digest}: {error}",
            means="nothing was kept",
            do="send it with elastane submit --ship-code; if the code has changed meanwhile, send it again",
        ) from error
    os.fsync(partial.fileno())

    def do(tx: Connection) -> Reply:
        caller.require_right("job.submit", Target(name=f"team {team}", team=team))
        team_limits.check_code(tx, team, digest, size_bytes)
        code_rows.record_code(tx, team, digest, caller.principal.user, size_bytes, caller.now_s)
        caller.controller.code.keep(partial, digest)
        return Reply(status=HTTPStatus.NO_CONTENT)

    caller.set_detail(f"{size_bytes} bytes")
    return caller.change("code.send", f"code {digest}", do)


def _make_full_error(error: OSError) -> Refusal:
    what = "over its quota or limit" if error.errno in {errno.EDQUOT, errno.EFBIG} else "full or broken"
    return Refusal(
        HTTPStatus.INSUFFICIENT_STORAGE,
        f"the disk under the home of the controller is {what} ({error.strerror})",
        means="the code was not kept; jobs continue to train",
        do="ask an operator to free some space, then try again",
    )


@router.get("/agents/{agent}/code", **describe_route(bytes, media=BYTES))  # noqa: FAST003 - of the caller
def get_agent_code(caller: AgentParameter) -> Response:
    """Return the archive of the code that the job of an agent has brought with it."""
    with caller.controller.store.begin_read() as tx:
        found = jobs.find_jobs(tx, [caller.read(tx).job])
    digest = found[0].spec.code if found else ""
    archive = caller.controller.code.find(digest) if digest else None
    if archive is None:
        raise make_missing_error(f"code of the job of agent {caller.number}")
    return FileResponse(archive, media_type=BYTES, headers={"X-Content-Type-Options": "nosniff"})
