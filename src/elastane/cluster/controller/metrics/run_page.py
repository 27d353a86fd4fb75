"""The page of metrics of a job's run, fetched from its coordinator, and the check that it is nothing else."""

import asyncio
import re
import ssl
from http import HTTPStatus

import httpx

from elastane.common.untrusted_data import Malformed
from elastane.run.connections.coordinator_request import read_address
from elastane.run.connections.endpoint import build_bearer_header
from elastane.run.connections.run_certificate import build_client_context
from elastane.run.nouns.run_metrics import METRICS_PATH
from elastane.run.nouns.rundir import RunDir

LARGEST_PAGE_BYTES = 256 << 10
PLAIN = "text/plain; version=0.0.4"
TRUST_NONE = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For plain HTTP: reading the certificates of the machine would take longer than the request."""
_PAGE = re.compile(rb"(?:(?:# (?:HELP|TYPE) )?elastane_run_[\t -~]*\n)+")


async def fetch_run_page(run_dir: RunDir, timeout_s: float) -> bytes:
    """Return the metrics of a run in Prometheus' plain text format, version 0.0.4.

    The owner of the run may write any address into its directory, and answer as slowly as it likes. So only
    metrics of a run come back, never another page that this machine can reach, and only in time.

    Raises:
        OSError: the files cannot be read, or no coordinator answers in time.
        Malformed: the files are not those of a run, or the answer is not a page of its metrics.
    """
    endpoint, secret = await asyncio.to_thread(read_address, run_dir)
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    scheme = "https" if endpoint.certificate else "http"
    client = httpx.AsyncClient(
        headers=build_bearer_header(secret) | {"Accept": PLAIN, "Accept-Encoding": "identity"},
        verify=build_client_context(endpoint.certificate) if endpoint.certificate else TRUST_NONE,
        # Neither a proxy nor a redirect may get the secret.
        trust_env=False,
        follow_redirects=False,
        timeout=None,  # noqa: S113 - the whole transfer has one
    )
    page = b""
    try:
        async with (
            asyncio.timeout(timeout_s),
            client,
            client.stream("GET", f"{scheme}://{host}:{endpoint.port}{METRICS_PATH}") as answer,
        ):
            if answer.status_code != HTTPStatus.OK:
                raise Malformed(f"the coordinator answered with the status {answer.status_code}")
            async for part in answer.aiter_raw():
                page += part
                if len(page) > LARGEST_PAGE_BYTES:
                    break
    except httpx.HTTPError as error:
        raise ConnectionError(f"its coordinator gave no answer ({type(error).__name__})") from error
    if len(page) > LARGEST_PAGE_BYTES or _PAGE.fullmatch(page) is None:
        raise Malformed("the answer is not a page of metrics of a run")
    return page
