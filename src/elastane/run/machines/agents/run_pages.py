"""The pages of a run on several machines: any of its agents shows them over HTTPS.

=================  ===========================================================================================
``/``              with the header ``Authorization: Ticket ID.KEY``: an `Admission`
``/files``         a `RunListing`: the files that can be read
``/files/NAME``    bytes of one file, with ``?from=OFFSET``; at most `AT_ONCE_BYTES`
``/mark``          a list of `PlaceMark`: new files in the places that a machine must share
=================  ===========================================================================================

All but the first need the secret of the run. The `Admission` of a ticket of the whole run contains it.
"""

import asyncio
import math
import re
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec
from websockets.http11 import Response

from elastane.common.untrusted_data import Malformed
from elastane.run.connections.authentication import make_page_response
from elastane.run.connections.endpoint import hash_secret, read_endpoint, read_secret
from elastane.run.machines.claims.urls import find_claims
from elastane.run.machines.tickets.remote_files import (
    AT_ONCE_BYTES,
    FILES_PATH,
    MARK_PATH,
    RunListing,
    is_shown,
)
from elastane.run.machines.tickets.shared_places import PlaceName, find_local_directory, leave_marks
from elastane.run.machines.tickets.ticket_files import find_tickets, read_ticket, use_ticket
from elastane.run.machines.tickets.tickets import Admission, read_authorization
from elastane.run.nouns.membership import MOST_NODES, NodeAddress
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import RunSpec

FOLLOWS_S = 1.0
"""A client that has asked within this time follows the run."""
LAST_READ_S = 0.6
"""Longer than such a client waits between two requests."""
_OFFSET = re.compile(r"[0-9]{1,15}")


def find_shared_places(run_dir: RunDir, spec: RunSpec) -> dict[PlaceName, Path]:
    """Return the directories outside that of the run that all machines share."""
    checkpoints, claims = spec.checkpoints, spec.claims
    found: dict[PlaceName, Path | None] = {
        "checkpoints": find_local_directory(checkpoints.url) if checkpoints and checkpoints.url else None,
        "claims": find_local_directory(find_claims(run_dir, spec)) if claims else None,
    }
    return {place: directory.absolute() for place, directory in found.items() if directory is not None}


class RunPages:
    """Answers holders of a ticket and clients of a run.

    Args:
        places: the directories that all machines share, besides that of the run.
    """

    def __init__(
        self,
        run_dir: RunDir,
        name: str,
        list_nodes: Callable[[], tuple[NodeAddress, ...]],
        places: Mapping[PlaceName, Path],
    ) -> None:
        self._run_dir = run_dir
        self._name = name
        self._list_all_nodes = list_nodes
        self._places: dict[PlaceName, Path] = {"run": find_tickets(run_dir), **places}
        self._shown_s = -math.inf

    async def admit(self, authorization: str) -> Response | None:
        """Return the answer to a ticket, with the status 200 if it admits; None: it presents no ticket."""
        presented = read_authorization(authorization)
        if presented is None:
            return None
        # In a thread, like all reading here: a file system that hangs must not delay the agent.
        return await asyncio.to_thread(self._admit, *presented)

    def _admit(self, ticket_id: str, key: bytes) -> Response:
        try:
            # A ticket that cannot be answered must not be used up.
            endpoint, secret = read_endpoint(self._run_dir), read_secret(self._run_dir)
            if why := use_ticket(self._run_dir, ticket_id, key):
                return _refuse(HTTPStatus.FORBIDDEN, why)
            sites = read_ticket(self._run_dir, ticket_id).record.sites
        except (OSError, Malformed) as error:
            return _refuse(
                HTTPStatus.SERVICE_UNAVAILABLE, f"the directory of the run cannot be read: {error}"
            )
        admission = Admission(
            self._name,
            str(self._run_dir.root),
            # A machine of a site reads it in the directory, so that its ticket alone gives no access.
            "" if sites else secret,
            hash_secret(secret),
            endpoint,
            self._list_nodes(),
            sites,
        )
        return make_page_response(HTTPStatus.OK, msgspec.json.encode(admission))

    async def show(self, path: str, accept: str = "") -> Response:
        """Return a page for a client with the secret of the run."""
        self._shown_s = time.monotonic()
        return await asyncio.to_thread(self._show, path)

    async def let_clients_finish(self) -> None:
        """Wait a moment at the end of the run if a client follows it, so that it reads the last lines."""
        if time.monotonic() - self._shown_s < FOLLOWS_S:
            await asyncio.sleep(LAST_READ_S)

    def _show(self, path: str) -> Response:
        parts = urlsplit(path)
        name = unquote(parts.path.removeprefix(f"{FILES_PATH}/"))
        try:
            if parts.path == FILES_PATH:
                return make_page_response(HTTPStatus.OK, msgspec.json.encode(self._list_files()))
            if parts.path == MARK_PATH:
                return make_page_response(HTTPStatus.OK, msgspec.json.encode(leave_marks(self._places)))
            if parts.path.startswith(f"{FILES_PATH}/") and is_shown(name):
                return self._read_file(name, parse_qs(parts.query).get("from", ["0"])[0])
        except FileNotFoundError:
            return _refuse(HTTPStatus.NOT_FOUND, f"the run has no file {name}")
        except (OSError, Malformed) as error:
            return _refuse(
                HTTPStatus.SERVICE_UNAVAILABLE, f"the directory of the run cannot be read: {error}"
            )
        return _refuse(HTTPStatus.NOT_FOUND, "this server has no such page")

    def _list_nodes(self) -> tuple[NodeAddress, ...]:
        # A client refuses an answer with more addresses as too large.
        return self._list_all_nodes()[:MOST_NODES]

    def _list_files(self) -> RunListing:
        files, root, logs = self._run_dir.files, self._run_dir.root, self._run_dir.logs
        sizes = files.list_files(root)
        sizes |= {f"{logs.name}/{name}": size for name, size in files.list_files(logs).items()}
        return RunListing(
            files={name: size for name, size in sizes.items() if is_shown(name)}, nodes=self._list_nodes()
        )

    def _read_file(self, name: str, offset: str) -> Response:
        if _OFFSET.fullmatch(offset) is None:
            return _refuse(HTTPStatus.BAD_REQUEST, "from= needs a number of bytes")
        with self._run_dir.files.open(self._run_dir.root / name, in_part=True) as file:
            file.seek(int(offset))
            return make_page_response(HTTPStatus.OK, file.read(AT_ONCE_BYTES))


def _refuse(status: HTTPStatus, why: str) -> Response:
    return make_page_response(status, why.encode(errors="replace"))
