"""Finds out whether the engine can work: the API server, the rights there, the volumes, and each pool."""

import asyncio
import time
from collections.abc import Mapping, Sequence

import msgspec

from elastane.cluster.engines.kubernetes import nodes
from elastane.cluster.engines.kubernetes.api_server import ApiServer
from elastane.cluster.engines.kubernetes.elastic_jobs.resource import API_VERSION, GROUP, KIND, PLURAL
from elastane.cluster.engines.kubernetes.engine import ON_NODES
from elastane.cluster.engines.kubernetes.followed_list import FollowedList
from elastane.cluster.engines.kubernetes.kubeconfig import find_access
from elastane.cluster.engines.kubernetes.manifest import build_pod
from elastane.cluster.engines.kubernetes.nodes import ListedNode, PodRequests, decode_node, decode_requests
from elastane.cluster.engines.kubernetes.options import (
    KubernetesOptions,
    KubernetesPool,
    decode_kubernetes_pool,
)
from elastane.cluster.engines.kubernetes.queue_doctor import examine_queue
from elastane.cluster.engines.kubernetes.refusals import NOT_FOUND, ApiRefusal, judge_creation
from elastane.cluster.nouns.agents import AgentAsk, Away, EngineFinding, SeenNode, StartRefusal
from elastane.common.errors import BadInput
from elastane.common.safe_text import escape_line
from elastane.common.untrusted_data import Decoder, Malformed

TRIAL = "trial-0"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
SHARED = "ReadWriteMany"
GRANT = "let an administrator bind a role with this right to the controller's user"


class Right(msgspec.Struct, frozen=True):
    """A right that the engine needs.

    Args:
        resource: with a slash before a part of it, such as ``pods/log``.
        is_local: in its namespace only, and not in the whole cluster.
        group: of the API; empty: the one of pods.
    """

    verb: str
    resource: str
    is_local: bool = True
    group: str = ""


RIGHTS = (
    *(Right(verb, "pods") for verb in ("create", "get", "list", "watch", "delete")),
    Right("create", "secrets"),
    *(Right(verb, "nodes", is_local=False) for verb in ("list", "watch")),
    *(Right(verb, "pods", is_local=False) for verb in ("list", "watch")),
)
RIGHTS_FOR_ELASTIC_JOBS = (
    *(Right(verb, PLURAL, group=GROUP) for verb in ("get", "list", "watch", "patch", "delete")),
    Right("patch", f"{PLURAL}/status", group=GROUP),
    Right("create", "events"),
)
"""Those that it needs besides if it follows `ElasticJob` resources."""
INSTALL = "elastane kubernetes manifests IMAGE NAMESPACE | kubectl apply -f -"


class _Version(msgspec.Struct, frozen=True, rename="camel"):
    git_version: str


class _NamespaceStatus(msgspec.Struct, frozen=True):
    phase: str = ""


class _Namespace(msgspec.Struct, frozen=True):
    status: _NamespaceStatus = _NamespaceStatus()


class _ReviewStatus(msgspec.Struct, frozen=True):
    allowed: bool


class _Review(msgspec.Struct, frozen=True):
    status: _ReviewStatus


class _ClaimSpec(msgspec.Struct, frozen=True, rename="camel"):
    access_modes: list[str] | None = None


class _Claim(msgspec.Struct, frozen=True):
    spec: _ClaimSpec
    status: _NamespaceStatus = _NamespaceStatus()


_decode_version: Decoder[_Version] = Decoder(_Version)
_decode_namespace: Decoder[_Namespace] = Decoder(_Namespace)
_decode_review: Decoder[_Review] = Decoder(_Review)
_decode_claim: Decoder[_Claim] = Decoder(_Claim)


async def examine_kubernetes(
    options: KubernetesOptions, pools: Mapping[str, Mapping[str, str]]
) -> tuple[EngineFinding, ...]:
    """Look at all that the engine needs; nothing is started.

    Args:
        pools: the options of each pool, by its name.

    Raises:
        BadInput: the options do not lead to an API server.
    """
    access = find_access(options)
    server = ApiServer(access, options.answer_s)
    namespace = options.namespace or access.namespace
    try:
        version = await server.get("/version")
        found = [judge_api_server(access.server, version)]
        if not found[0].ok:
            return tuple(found)
        rights = (*RIGHTS, *(RIGHTS_FOR_ELASTIC_JOBS if options.elastic_jobs else ()))
        reviews = await asyncio.gather(*(_review(server, right, namespace) for right in rights))
        found += judge_rights(dict(zip(rights, reviews, strict=True)), namespace)
        folder = f"/api/v1/namespaces/{namespace}"
        found.append(judge_namespace(namespace, await server.get(folder)))
        if options.elastic_jobs:
            found.append(judge_definition(await server.get(f"/apis/{API_VERSION}")))
        claims = list(dict.fromkeys(claim for claim, _ in options.volumes))
        answers = await asyncio.gather(
            *(server.get(f"{folder}/persistentvolumeclaims/{claim}") for claim in claims)
        )
        found += judge_volumes(dict(zip(claims, answers, strict=True)), shares_home=options.shares_home)
        return (*found, *await _examine_pools(server, options, pools, namespace))
    finally:
        await server.close()


async def _review(server: ApiServer, right: Right, namespace: str) -> bytes | ApiRefusal | Away:
    """Ask whether the client has a right."""
    resource, _, sub = right.resource.partition("/")
    wanted = {"verb": right.verb, "resource": resource, "group": right.group, "subresource": sub}
    wanted = {name: value for name, value in wanted.items() if value}
    wanted |= {"namespace": namespace} if right.is_local else {}
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": wanted},
    }
    return await server.ask("POST", REVIEWS, body=body)


async def list_missing_rights(server: ApiServer, rights: Sequence[Right], namespace: str) -> list[str]:
    """Return which rights the client does not have, in words; none if the API server cannot say it."""
    reviews = await asyncio.gather(*(_review(server, right, namespace) for right in rights))
    answered = {
        right: review for right, review in zip(rights, reviews, strict=True) if isinstance(review, bytes)
    }
    return [
        _describe_right(right, namespace) for right, review in answered.items() if not _is_allowed(review)
    ]


def _describe_right(right: Right, namespace: str) -> str:
    where = f"in namespace {namespace}" if right.is_local else "in the whole cluster"
    return f"{right.verb} {right.resource} {where}"


def _is_allowed(review: bytes) -> bool:
    try:
        return _decode_review(review).status.allowed
    except Malformed:
        return False


async def _examine_pools(
    server: ApiServer, options: KubernetesOptions, pools: Mapping[str, Mapping[str, str]], namespace: str
) -> list[EngineFinding]:
    listed_nodes: FollowedList[ListedNode] = FollowedList(server, "/api/v1/nodes", {}, decode_node)
    requests_of_pods: FollowedList[PodRequests] = FollowedList(
        server, "/api/v1/pods", {"fieldSelector": ON_NODES}, decode_requests
    )
    try:
        away = await listed_nodes.refresh() or await requests_of_pods.refresh()
        if away is not None:
            return [EngineFinding(False, f"the nodes cannot be seen: {away.why}", "try again")]
        found = []
        for name, pool_options in pools.items():
            try:
                pool = decode_kubernetes_pool(pool_options)
                trial = AgentAsk(id=TRIAL, job="trial", pool=pool_options, devices=1, grace_s=1.0, ticket="-")
                body = build_pod(trial, pool, options, time.time())
            except BadInput as error:
                found.append(EngineFinding(False, f"pool {name}: {error.what}", error.do))
                continue
            path = f"/api/v1/namespaces/{namespace}/pods"
            answer = await server.ask("POST", path, params={"dryRun": "All"}, body=body)
            listed = nodes.list_nodes_of_pool(
                name, pool, listed_nodes.items.values(), requests_of_pods.items.values(), "", namespace
            )
            found.append(judge_trial_pod(name, pool, listed, answer))
            if pool.queue and isinstance(answer, bytes):
                found += await examine_queue(server, name, pool, namespace, answer)
        return found
    finally:
        await asyncio.gather(listed_nodes.close(), requests_of_pods.close())


def judge_api_server(server: str, answer: bytes | ApiRefusal | Away) -> EngineFinding:
    if isinstance(answer, Away):
        do = (
            "try kubectl version by hand; the option context names another cluster, answer gives it more time"
        )
        return EngineFinding(False, answer.why, do)
    if isinstance(answer, ApiRefusal):
        return EngineFinding(False, f"{server} is not an API server: {answer.words}", "check the kubeconfig")
    try:
        version = escape_line(_decode_version(answer).git_version, 40)
    except Malformed:
        return EngineFinding(False, f"{server} is not an API server", "check the kubeconfig")
    return EngineFinding(True, f"the API server at {server} answers: Kubernetes {version}")


def judge_rights(reviews: Mapping[Right, bytes | ApiRefusal | Away], namespace: str) -> list[EngineFinding]:
    """Say which rights are missing."""
    found = []
    for right, review in reviews.items():
        if isinstance(review, Away):
            return [EngineFinding(False, f"the rights cannot be seen: {review.why}", "try again")]
        if isinstance(review, ApiRefusal):
            why = f"the rights cannot be seen: {review.words}"
            return [EngineFinding(False, why, "try kubectl auth can-i create pods by hand")]
        if not _is_allowed(review):
            what = f"the controller may not {_describe_right(right, namespace)}"
            found.append(EngineFinding(False, what, GRANT))
    return found or [EngineFinding(True, f"the controller has the rights that it needs in {namespace}")]


def judge_namespace(namespace: str, answer: bytes | ApiRefusal | Away) -> EngineFinding:
    """Say whether the namespace is there."""
    if isinstance(answer, Away):
        return EngineFinding(False, f"namespace {namespace} cannot be seen: {answer.why}", "try again")
    if isinstance(answer, ApiRefusal):
        if answer.code == NOT_FOUND:
            do = f"kubectl create namespace {namespace}, or choose another one with the option namespace"
            return EngineFinding(False, f"namespace {namespace} does not exist", do)
        return EngineFinding(True, f"namespace {namespace} cannot be seen: {answer.words}")
    try:
        phase = _decode_namespace(answer).status.phase
    except Malformed:
        phase = ""
    if phase == "Terminating":
        do = "choose another one with the option namespace"
        return EngineFinding(False, f"namespace {namespace} is being deleted", do)
    return EngineFinding(True, f"namespace {namespace} is there")


def judge_definition(answer: bytes | ApiRefusal | Away) -> EngineFinding:
    """Say whether the API server knows `ElasticJob` resources."""
    if isinstance(answer, Away):
        return EngineFinding(False, f"the definition of {KIND} cannot be seen: {answer.why}", "try again")
    if isinstance(answer, ApiRefusal):
        return EngineFinding(False, f"the API server does not know {KIND}: {answer.words}", INSTALL)
    return EngineFinding(True, f"the API server knows {KIND}")


def judge_volumes(
    claims: Mapping[str, bytes | ApiRefusal | Away], *, shares_home: bool = True
) -> list[EngineFinding]:
    """Say whether pods on several nodes can see the volumes, and the home if they share it."""
    if not claims and not shares_home:
        return [EngineFinding(True, "no volume is needed: the controller keeps the records of the runs")]
    if not claims:
        do = "name a claim and the path of $ELASTANE_HOME: --option volume=home:/shared/elastane"
        return [EngineFinding(False, "no volume is set: agents would not see the runs and the scripts", do)]
    return [_judge_claim(name, answer) for name, answer in claims.items()]


def _judge_claim(name: str, answer: bytes | ApiRefusal | Away) -> EngineFinding:
    what = f"persistent volume claim {name}"
    if isinstance(answer, Away):
        return EngineFinding(False, f"{what} cannot be seen: {answer.why}", "try again")
    if isinstance(answer, ApiRefusal):
        if answer.code == NOT_FOUND:
            return EngineFinding(False, f"{what} does not exist", "create it, or name another one")
        return EngineFinding(True, f"{what} cannot be seen: {answer.words}")
    try:
        claim = _decode_claim(answer)
    except Malformed as error:
        return EngineFinding(False, f"{what} cannot be read: {error}", "look at it with kubectl")
    if SHARED not in (claim.spec.access_modes or ()):
        do = f"use a claim with access mode {SHARED}"
        return EngineFinding(False, f"{what} cannot be mounted on several nodes", do)
    if claim.status.phase == "Lost":
        return EngineFinding(False, f"{what} has lost its volume", "create it again")
    return EngineFinding(True, f"{what} can be mounted on several nodes")


def judge_trial_pod(
    name: str, pool: KubernetesPool, listed: Sequence[SeenNode], trial: bytes | ApiRefusal | Away
) -> EngineFinding:
    """Say whether agents of a pool can start.

    Args:
        listed: the nodes with free devices.
        trial: the answer to a pod with one device, of which the API server keeps nothing.
    """
    refusal = None
    if isinstance(trial, Away):
        refusal = StartRefusal(trial.why)
    elif isinstance(trial, ApiRefusal):
        refusal = judge_creation(trial)
    if refusal is not None:
        return EngineFinding(
            False, f"pool {name}: a pod with one device: {refusal.why}", "change the options of the pool"
        )
    devices = sum(node.devices for node in listed)
    if not devices:
        return EngineFinding(
            False,
            f"pool {name}: no node has a free device {pool.resource}",
            "check resource, nodeSelector and toleration with kubectl describe nodes",
        )
    return EngineFinding(True, f"pool {name}: {devices} free devices {pool.resource} on {len(listed)} nodes")
