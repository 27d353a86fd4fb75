"""ElasticJobs and the jobs that become of them, with a double of the API server."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress

import msgspec
import pytest

from elastane.cluster.controller.cluster.declarations import diff_configs
from elastane.cluster.controller.elastic_jobs.followed_engine import TRY_AGAIN_S
from elastane.cluster.controller.elastic_jobs.follower import ElasticJobFollower
from elastane.cluster.controller.elastic_jobs.status import AGAIN_S
from elastane.cluster.controller.store import documents, elastic_job_rows, history, jobs
from elastane.cluster.controller.store.database import Store
from elastane.cluster.engines.kubernetes.elastic_jobs.definition import build_definition
from elastane.cluster.nouns.config import Config, DeclaredEngine, PriorityClass
from elastane.cluster.nouns.pools import ENGINE_LABEL, Pool
from tests.cluster.engines.api_double.cluster import DEVICE, NAMESPACE, SmallCluster, run_small_cluster
from tests.cluster.engines.api_double.objects import ApiError, Document
from tests.waiting import wait_until

pytestmark = pytest.mark.processes
QUEUE = "kueue.x-k8s.io/queue-name"


class ElasticJobSite:
    """A store, a small cluster of Kubernetes, and a follower between them.

    Attributes:
        now_s: the time of the follower.
        woken: how often the loop was woken.
    """

    def __init__(self, cluster: SmallCluster, store: Store, home, runner: asyncio.Runner) -> None:
        self.cluster, self.store, self.home, self.run = cluster, store, home, runner.run
        self.objects = cluster.objects
        self.now_s, self.woken = 1e9, 0
        self.follower = self.build_follower()
        self.declare()

    def build_follower(self) -> ElasticJobFollower:
        return ElasticJobFollower(self.store, self.home, wake=self.count_wake, clock=lambda: self.now_s)

    def count_wake(self) -> None:
        self.woken += 1

    def build_config(self) -> Config:
        options = {"kubeconfig": str(self.cluster.kubeconfig), "image": "train:1", "elasticJobs": "vision"}
        return Config(
            engines=(DeclaredEngine(name="east", kind="kubernetes", options=options),),
            pools=(
                Pool(name="h100", device="h100", devices=6, engine="east", options={"resource": DEVICE}),
                Pool(name="local", device="cpu", devices=2),
            ),
            priorities=(PriorityClass(name="normal", value=0, default=True),),
        )

    def declare(self, **changes) -> None:
        changed = msgspec.structs.replace(self.build_config(), **changes)
        with self.store.begin_write() as tx:
            before = documents.read_declared_config(tx)
            documents.write_documents(tx, diff_configs(before, changed), self.now_s)

    def replace_follower(self) -> None:
        """Go on with another follower, as after the death of a controller."""
        self.run(self.follower.shut())
        self.follower = self.build_follower()

    def look(self) -> bool:
        return self.run(self.follower.look())

    def settle(self) -> None:
        """Look until no step is left, and the API server has told of all of them."""

        def is_settled() -> bool:
            version = self.objects.version
            is_busy = self.look()
            return not is_busy and self.objects.version == version

        # The watch may be late: once more is cheap.
        for _ in range(3):
            wait_until(is_settled, "no step is left", state=lambda: self.objects.list_all("elasticjobs"))

    def wait_for(self, fits, what: str) -> None:
        def look() -> bool:
            self.look()
            with suppress(ApiError, KeyError):
                return fits()
            return False

        wait_until(look, what, state=lambda: self.objects.list_all("elasticjobs"))

    def apply(self, name: str, **spec) -> Document:
        return self.objects.create("elasticjobs", NAMESPACE, build_resource(name, **spec))

    def change(self, name: str, **spec) -> None:
        self.objects.patch("elasticjobs", NAMESPACE, name, {"spec": spec})

    def get(self, name: str) -> Document:
        return self.objects.get("elasticjobs", NAMESPACE, name)

    def find_condition(self, name: str, kind: str) -> Document:
        conditions = self.get(name)["status"]["conditions"]
        return next(condition for condition in conditions if condition["type"] == kind)

    def find_job(self, name: str):
        with self.store.begin_read() as tx:
            return jobs.find_job(tx, name)

    def update_job(self, name: str, **changes) -> None:
        with self.store.begin_write() as tx:
            before = jobs.find_job(tx, name)
            jobs.update_job(tx, before, msgspec.structs.replace(before, **changes))

    def list_rows(self):
        with self.store.begin_read() as tx:
            return elastic_job_rows.list_elastic_jobs(tx)


def build_resource(name: str, *, command=("python", "/shared/train.py"), resource=DEVICE, **spec) -> Document:
    container = {"name": "train", "command": list(command), "resources": {"limits": {resource: 1}}}
    usual = {
        "elasticPolicy": {"minReplicas": 1, "maxReplicas": 4},
        "template": {"spec": {"containers": [container]}},
    }
    return {"metadata": {"name": name, "labels": {QUEUE: "team-a"}}, "spec": usual | spec}


@pytest.fixture(scope="module")
def small_cluster() -> Iterator[SmallCluster]:
    with run_small_cluster() as cluster:
        cluster.objects.create("customresourcedefinitions", "", build_definition())
        yield cluster


@pytest.fixture
def site(small_cluster, event_loop_runner, tmp_path) -> Iterator[ElasticJobSite]:
    store = Store(f"sqlite:///{tmp_path}/store.db")
    site = ElasticJobSite(small_cluster, store, tmp_path / "home", event_loop_runner)
    try:
        yield site
    finally:
        event_loop_runner.run(site.follower.shut())
        store.close()
        for resource in site.objects.list_all("elasticjobs", NAMESPACE):
            name = resource["metadata"]["name"]
            site.objects.patch("elasticjobs", NAMESPACE, name, {"metadata": {"finalizers": None}})
            with suppress(ApiError):
                site.objects.delete("elasticjobs", NAMESPACE, name, {})


def test_a_resource_becomes_a_job_and_its_status_says_how_the_job_does(site):
    site.apply("first", runPolicy={"jobMaxRetryCount": 1}, training={"seed": 7})
    site.settle()
    job = site.find_job("first")
    assert (job.team, job.user, job.queue, job.state) == ("vision", f"east:{NAMESPACE}", "team-a", "queued")
    assert job.spec.command == ("python", "/shared/train.py")
    assert (job.spec.training.seed, job.spec.run_policy.job_max_retry_count) == (7, 1)
    assert job.spec.resources_per_worker.kinds == ("h100",)
    assert job.spec.data.labels == {ENGINE_LABEL: "east"}
    assert site.woken
    status = site.get("first")["status"]
    assert (status["job"], status["replicas"], status["observedGeneration"]) == ("first", 0, 1)
    assert site.find_condition("first", "Accepted")["status"] == "True"
    assert site.find_condition("first", "Complete")["status"] == "False"
    site.update_job("first", state="finished", ended_s=site.now_s, why="all 10 steps are made", step=10)
    site.settle()
    assert site.find_condition("first", "Complete")["status"] == "True"
    assert "all 10 steps are made" in site.get("first")["status"]["reason"]
    assert site.get("first")["status"]["step"] == 10


def test_each_step_may_be_taken_by_another_controller_and_one_job_comes_of_it(site):
    site.apply("first")
    for _ in range(8):
        site.look()
        site.replace_follower()
    site.settle()
    assert len(site.list_rows()) == 1
    with site.store.begin_read() as tx:
        events = history.list_events_after(tx, 0, 100, job="first")
    assert [event.kind for event in events] == ["job.submitted"]


def test_a_wrong_resource_costs_only_itself_and_is_looked_at_again(site):
    site.apply("wrong", priorityClassName="high")
    site.apply("other", template=build_resource("x", resource="amd.com/gpu")["spec"]["template"])
    site.apply("right")
    site.settle()
    assert site.find_job("wrong") is None
    assert site.find_job("right") is not None
    refusal = site.find_condition("wrong", "Accepted")
    assert (refusal["status"], refusal["reason"]) == ("False", "Refused")
    assert "there is no class 'high'" in refusal["message"]
    assert "no pool of engine east has devices amd.com/gpu" in site.get("other")["status"]["reason"]
    site.declare(priorities=(PriorityClass(name="high", value=5),))
    site.settle()
    assert site.find_job("wrong") is None
    site.now_s += TRY_AGAIN_S
    site.settle()
    assert site.find_job("wrong").priority_class == "high"
    assert site.find_condition("wrong", "Accepted")["status"] == "True"


def test_a_scale_changes_the_wish_and_what_a_run_depends_on_stays(site):
    site.apply("first")
    site.settle()
    site.change("first", replicas=2)
    site.settle()
    assert site.find_job("first").spec.elastic_policy.limits == (1, 2)
    site.change("first", replicas=0)
    site.settle()
    assert site.find_job("first").wanted == "pause"
    assert site.find_condition("first", "Suspended")["status"] == "True"
    site.change("first", replicas=None)
    site.settle()
    assert site.find_job("first").spec.elastic_policy.limits == (1, 4)
    assert site.find_job("first").wanted == "run"
    other = build_resource("first", command=("python", "/shared/other.py"))["spec"]["template"]
    site.change("first", template=other)
    site.settle()
    assert "cannot be changed" in site.find_condition("first", "Accepted")["message"]
    assert site.find_job("first").spec.command == ("python", "/shared/train.py")


def test_a_change_of_elastane_stays_until_the_resource_changes(site):
    site.apply("first")
    site.settle()
    spec = site.find_job("first").spec
    smaller = msgspec.structs.replace(spec.elastic_policy, max_replicas=3)
    site.update_job("first", spec=msgspec.structs.replace(spec, elastic_policy=smaller))
    site.settle()
    assert site.find_job("first").spec.elastic_policy.limits == (1, 3)
    site.change("first", replicas=2)
    site.settle()
    assert site.find_job("first").spec.elastic_policy.limits == (1, 2)


def test_a_deleted_resource_stays_until_its_job_has_ended(site):
    site.apply("first")
    site.settle()
    site.update_job("first", state="running", workers=1)
    site.objects.delete("elasticjobs", NAMESPACE, "first", {})
    site.wait_for(lambda: site.find_job("first").wanted == "cancel", "its job is to end")
    site.settle()
    assert site.get("first")["metadata"]["finalizers"]
    site.update_job("first", state="cancelled", ended_s=site.now_s)
    site.wait_for(lambda: not site.objects.list_all("elasticjobs", NAMESPACE), "it is removed")
    site.wait_for(lambda: not site.list_rows(), "it is forgotten")


def test_one_that_is_made_again_is_another_job_although_no_controller_saw_its_end(site):
    site.apply("first")
    site.settle()
    # A user removes the finalizer, and the resource, while no controller looks.
    site.objects.patch("elasticjobs", NAMESPACE, "first", {"metadata": {"finalizers": None}})
    site.objects.delete("elasticjobs", NAMESPACE, "first", {})
    made = site.apply("first")
    site.wait_for(lambda: site.find_job("first").state == "cancelled", "the first job is cancelled")
    site.settle()
    (row,) = site.list_rows()
    assert row.uid == made["metadata"]["uid"]
    assert row.job == f"first-{row.uid[:8]}"
    assert site.find_job(row.job).state == "queued"


def test_nothing_is_concluded_while_the_api_server_is_away_or_another_one(site, tmp_path):
    site.apply("first")
    site.settle()
    site.cluster.api.stop()
    try:
        site.replace_follower()
        assert not site.look()
        assert site.find_job("first").wanted == "run"
    finally:
        site.cluster.api.start()
    site.objects.create("namespaces", "", {"metadata": {"name": "other"}})
    options = {"kubeconfig": str(site.cluster.kubeconfig), "namespace": "other", "elasticJobs": "vision"}
    site.declare(engines=(DeclaredEngine(name="east", kind="kubernetes", options=options),))
    site.wait_for(lambda: not site.look(), "the other namespace is seen")
    assert site.find_job("first").wanted == "run"
    site.objects.delete("namespaces", "", "other", {})


def test_a_resource_goes_with_a_job_that_is_forgotten(site):
    site.apply("first", runPolicy={"ttlSecondsAfterFinished": 60})
    site.settle()
    site.update_job("first", state="finished", ended_s=site.now_s)
    site.settle()
    with site.store.begin_write() as tx:
        jobs.forget_job(tx, jobs.find_job(tx, "first"), site.now_s)
    site.wait_for(lambda: not site.objects.list_all("elasticjobs", NAMESPACE), "the resource is deleted")
    site.wait_for(lambda: not site.list_rows(), "it is forgotten")
    assert site.find_job("first") is None


def test_resources_of_other_controllers_are_left_alone(site):
    resource = build_resource("first")
    resource["metadata"]["finalizers"] = ["elastane.dev/c999999"]
    made = site.objects.create("elasticjobs", NAMESPACE, resource)
    site.settle()
    assert site.get("first") == made
    assert site.find_job("first") is None


def test_nothing_is_written_while_nothing_happens(site):
    site.apply("first")
    site.settle()
    site.cluster.api.requests.clear()
    site.now_s += 2 * AGAIN_S
    for _ in range(5):
        assert not site.look()
    asked = {verb for verb, resource in site.cluster.api.requests if resource == "elasticjobs"}
    assert asked <= {"watch"}


def test_an_engine_that_hangs_holds_up_no_other(site, monkeypatch):
    monkeypatch.setattr("elastane.cluster.controller.elastic_jobs.follower.PATIENCE_S", 0.1)
    (east,) = site.build_config().engines
    with run_small_cluster() as other:
        options = east.options | {"kubeconfig": str(other.kubeconfig), "answer": "60s"}
        west = DeclaredEngine(name="west", kind="kubernetes", options=options)
        site.declare(engines=(west, east))
        with other.api.silence():
            site.apply("first")
            site.wait_for(lambda: site.find_job("first") is not None, "the job of the other engine is made")
        site.declare()
        site.look()


def test_an_event_that_is_refused_holds_up_no_other(site):
    site.cluster.api.forbidden.add(("create", "events"))
    try:
        site.apply("first")
        site.settle()
        site.apply("second")
        site.settle()
    finally:
        site.cluster.api.forbidden.clear()
    with site.store.begin_write() as tx:
        history.append_event(tx, "job.held_up", "it cannot start now", site.now_s, job="second")
    site.settle()
    uid = site.get("second")["metadata"]["uid"]
    events = site.objects.list_all("events", NAMESPACE)
    assert [event["reason"] for event in events if event["involvedObject"]["uid"] == uid] == ["HeldUp"]


def test_events_of_the_job_are_events_of_the_resource(site):
    def read_events():
        uid = site.get("first")["metadata"]["uid"]
        events = site.objects.list_all("events", NAMESPACE)
        return {event["reason"]: event for event in events if event["involvedObject"]["uid"] == uid}

    site.settle()
    site.apply("first")
    site.wait_for(lambda: read_events().keys() == {"Submitted"}, "its submission is told")
    with site.store.begin_write() as tx:
        history.append_event(tx, "job.held_up", "it cannot start now", site.now_s, job="first")
        history.append_event(tx, "job.held_up", "of another job", site.now_s, job="second")
    site.wait_for(lambda: len(read_events()) > 1, "its wait is told")
    site.settle()
    found = read_events()
    assert found.keys() == {"Submitted", "HeldUp"}
    assert found["HeldUp"]["message"] == "it cannot start now"
    assert found["HeldUp"]["type"] == "Warning"
