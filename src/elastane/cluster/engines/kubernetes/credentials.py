"""The credentials of a client: a token, or what gives a new one from time to time."""

import asyncio
import base64
import os
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import msgspec

from elastane.cluster.engines.commands import run_command
from elastane.cluster.engines.kubernetes.kubeconfig import ApiAccess, ExecProgram
from elastane.cluster.nouns.agents import Away
from elastane.common.untrusted_data import Decoder, Malformed, read_bytes

LARGEST_TOKEN_BYTES = 64 << 10
PROGRAM_S = 30.0
"""How long a program may take to print a token: some ask a server."""
EARLY_S = 60.0
"""How long before its end a token is replaced."""


class _Printed(msgspec.Struct, frozen=True, rename="camel"):
    token: str | None = None
    expiration_timestamp: datetime | None = None


class _Credential(msgspec.Struct, frozen=True):
    status: _Printed = _Printed()


_decode: Decoder[_Credential] = Decoder(_Credential, at_most_bytes=LARGEST_TOKEN_BYTES)


class ApiCredentials:
    """Makes the ``Authorization`` header of requests; ``now`` returns the seconds since 1970."""

    def __init__(self, access: ApiAccess, now: Callable[[], float] = time.time) -> None:
        self._access = access
        self._now = now
        self._printed: _Printed | None = None
        self._turn = asyncio.Lock()

    @property
    def can_be_renewed(self) -> bool:
        """Whether a refusal may be due to an old token."""
        return self._access.program is not None or bool(self._access.token_file)

    def forget(self) -> None:
        """Let the next header have a new token, because the API server has refused this one."""
        self._printed = None

    async def build_header(self) -> str | Away:
        """Return the value of the header; empty: it needs none."""
        access = self._access
        if access.token_file:
            # It is small, and in memory where Kubernetes writes it.
            try:
                token = read_bytes(Path(access.token_file), LARGEST_TOKEN_BYTES).decode().strip()
            except (OSError, Malformed, UnicodeDecodeError) as error:
                return Away(f"the token in {access.token_file} cannot be read: {error}")
            return f"Bearer {token}"
        if access.token:
            return f"Bearer {access.token}"
        if access.program is not None:
            token_or_away = await self._print(access.program)
            return token_or_away if isinstance(token_or_away, Away) else f"Bearer {token_or_away}"
        if access.basic is not None:
            return "Basic " + base64.b64encode(":".join(access.basic).encode()).decode()
        return ""

    async def _print(self, program: ExecProgram) -> str | Away:
        """Return the token that a program prints, or has printed and which is still valid."""
        async with self._turn:
            if self._printed is None or self._is_over(self._printed):
                printed = await _run(program)
                if isinstance(printed, Away):
                    return printed
                self._printed = printed
            return self._printed.token or ""

    def _is_over(self, printed: _Printed) -> bool:
        end = printed.expiration_timestamp
        return end is not None and end.timestamp() - EARLY_S < self._now()


async def _run(program: ExecProgram) -> _Printed | Away:
    request = {"apiVersion": program.api_version, "kind": "ExecCredential", "spec": {"interactive": False}}
    environment = dict(os.environ) | {variable.name: variable.value for variable in program.env or ()}
    environment["KUBERNETES_EXEC_INFO"] = msgspec.json.encode(request).decode()
    answer = await run_command(
        (program.command, *(program.args or ())), environment, PROGRAM_S, most_bytes=LARGEST_TOKEN_BYTES
    )
    if isinstance(answer, Away):
        return answer
    if answer.code:
        return Away(f"{program.command}, which prints the token, failed: {answer.complaint}")
    try:
        printed = _decode(answer.output).status
    except Malformed as error:
        return Away(f"{program.command} has not printed a token: {error}")
    if not printed.token:
        return Away(f"{program.command} has not printed a token; client certificates are not supported there")
    return printed
