"""Applies the objects of an installation, and waits until its controller is available.

Server-side apply leaves fields of others alone, and changes nothing if it is repeated.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from elastane.cluster.engines.kubernetes.api_server import ApiServer
from elastane.cluster.engines.kubernetes.doctor import Right, list_missing_rights
from elastane.cluster.engines.kubernetes.installation.objects import (
    LABELS,
    NAME,
    Installation,
    build_certificate_secret,
    list_manifests,
)
from elastane.cluster.engines.kubernetes.installation.readiness import (
    Readiness,
    decode_version,
    judge_deployment,
    list_troubles,
)
from elastane.cluster.engines.kubernetes.kubeconfig import ApiAccess
from elastane.cluster.engines.kubernetes.refusals import (
    ALREADY_EXISTS,
    CONFLICT,
    FORBIDDEN,
    NOT_FOUND,
    ApiRefusal,
)
from elastane.cluster.nouns.agents import Away
from elastane.common.errors import BadInput, ElastaneError
from elastane.common.extras import MissingExtra, require
from elastane.run.connections.run_certificate import sign_certificate

Outcome: TypeAlias = Literal["created", "changed", "unchanged"]
ANSWER_S = 15.0
AVAILABLE_S = 120.0
"""How long the controller may take: its image has to be pulled."""
AGAIN_S = 1.0
PLURALS = {"NetworkPolicy": "networkpolicies"}
"""Of kinds that do not just get an s."""


class AppliedObject(msgspec.Struct, frozen=True):
    """One object, by kind and name, and what became of it."""

    object: str
    outcome: Outcome


def locate_object(document: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the path of an object, the plural of its kind, and its API group."""
    api_version, kind, metadata = document["apiVersion"], document["kind"], document["metadata"]
    plural = PLURALS.get(kind, f"{kind.lower()}s")
    group = api_version.partition("/")[0] if "/" in api_version else ""
    inside = f"/namespaces/{metadata['namespace']}" if "namespace" in metadata else ""
    root = f"/apis/{api_version}" if group else f"/api/{api_version}"
    return f"{root}{inside}/{plural}/{metadata['name']}", plural, group


def list_rights(documents: Sequence[Mapping[str, Any]]) -> tuple[Right, ...]:
    """Return the rights that an installation needs."""
    found = {Right("create", "secrets"): None}
    for document in documents:
        _, plural, group = locate_object(document)
        for verb in ("get", "create", "patch"):
            found[Right(verb, plural, "namespace" in document["metadata"], group)] = None
    return tuple(found)


async def install(access: ApiAccess, installation: Installation) -> AsyncIterator[AppliedObject]:
    """Apply all objects of an installation, and yield what became of each.

    Raises:
        BadInput: a right is missing; nothing was changed.
        ElastaneError: the API server does not answer, or has refused an object.
    """
    server = ApiServer(access, ANSWER_S)
    documents = list_manifests(installation)
    try:
        await _check_server(server, documents, installation.namespace)
        for document in documents:
            yield await _apply(server, document)
        yield await _create_certificate(server, installation.namespace)
    finally:
        await server.close()


async def wait_until_available(access: ApiAccess, namespace: str) -> None:
    server = ApiServer(access, ANSWER_S)
    until_s = time.monotonic() + AVAILABLE_S
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/{NAME}"
    try:
        while True:
            state = judge_deployment(await server.get(path))
            if state.is_available:
                return
            if time.monotonic() >= until_s:
                raise ElastaneError(
                    f"the controller in namespace {namespace} is not available after {AVAILABLE_S:g} s",
                    means=await _explain(server, namespace, state),
                    do=f"kubectl -n {namespace} describe pods; then run this command again, which changes "
                    "nothing that is right",
                )
            await asyncio.sleep(AGAIN_S)
    finally:
        await server.close()


async def _explain(server: ApiServer, namespace: str, state: Readiness) -> str:
    selector = ",".join(f"{name}={value}" for name, value in LABELS.items())
    path = f"/api/v1/namespaces/{namespace}/pods"
    answer = await server.get(path, {"labelSelector": selector, "limit": "10"})
    troubles = list_troubles(answer) if isinstance(answer, bytes) else ()
    return "; ".join((*troubles, state.why)) if state.why else "; ".join(troubles)


async def _check_server(server: ApiServer, documents: Sequence[Mapping[str, Any]], namespace: str) -> None:
    answer = await server.get("/version")
    if not isinstance(answer, bytes):
        why = answer.why if isinstance(answer, Away) else answer.words
        raise ElastaneError(
            f"the API server at {server.access.server} cannot be asked: {why}",
            means="nothing was changed",
            do="try kubectl version by hand; another context: kubectl config use-context NAME",
        )
    missing = await list_missing_rights(server, list_rights(documents), namespace)
    if missing:
        raise BadInput(
            f"the rights for an installation are missing: {'; '.join(missing)}",
            means="nothing was changed",
            do="let an administrator run this command",
        )


async def _apply(server: ApiServer, document: Mapping[str, Any]) -> AppliedObject:
    path, _, _ = locate_object(document)
    name = f"{document['kind']} {document['metadata']['name']}"
    before = await server.get(path)
    is_new = isinstance(before, ApiRefusal) and before.code == NOT_FOUND
    if not isinstance(before, bytes) and not is_new:
        raise _make_error(name, before)
    after = await server.apply(path, document, NAME)
    if not isinstance(after, bytes):
        raise _make_error(name, after)
    if is_new:
        return AppliedObject(name, "created")
    assert isinstance(before, bytes)
    same = decode_version(before) == decode_version(after)
    return AppliedObject(name, "unchanged" if same else "changed")


async def _create_certificate(server: ApiServer, namespace: str) -> AppliedObject:
    """Create the secret with the certificate of the controller, unless it is there."""
    name = f"Secret {NAME}-tls"
    try:
        require("nodes", "the certificate of the controller")
    except MissingExtra as error:
        raise ElastaneError(
            f"{name} was not made: {error.what}",
            means="all else is there, and the controller waits for it",
            do=f"make it by hand, see docs/engines.md; or {error.do}, and run this command again",
        ) from error
    # The agents get it in their tickets. With the second name, the commands in the pod find the controller.
    key, certificate = sign_certificate(NAME, [f"{NAME}.{namespace}"], ["0.0.0.0"])  # noqa: S104
    secret = build_certificate_secret(namespace, certificate, key)
    answer = await server.ask("POST", f"/api/v1/namespaces/{namespace}/secrets", body=secret)
    if isinstance(answer, ApiRefusal) and answer.reason == ALREADY_EXISTS:
        # It may be one of an authority. Another one would break the tickets of agents.
        return AppliedObject(name, "unchanged")
    if not isinstance(answer, bytes):
        raise _make_error(name, answer)
    return AppliedObject(name, "created")


def _make_error(name: str, answer: ApiRefusal | Away) -> ElastaneError:
    again = "run this command again, which changes nothing that is right"
    if isinstance(answer, Away):
        return ElastaneError(f"{name} was not applied: {answer.why}", do=again)
    if answer.code == CONFLICT:
        return ElastaneError(
            f"{name} was not applied: {answer.words}",
            means="fields of it belong to another program, such as Helm or kubectl, and differ",
            do=f"go on with that program, or delete the object, and {again}",
        )
    if answer.code == FORBIDDEN:
        do = f"let an administrator grant the right, and {again}"
        return ElastaneError(f"{name} was not applied: {answer.words}", do=do)
    return ElastaneError(f"{name} was not applied: {answer.words}", do=again)
