"""A controller is killed while a message is being sent: it arrives once, and no file has the URL."""

import pytest

from elastane.cluster.client.cluster import Cluster
from elastane.cluster.nouns.jobs import ElasticPolicy, JobSpec
from elastane.cluster.nouns.notifications import NewNotificationTarget
from tests.cluster.controller.receiver import Receiver
from tests.cluster.processes.real_controller import RealController
from tests.waiting import wait_until

pytestmark = pytest.mark.processes

HIDDEN = "s3cr3tPassw0rd"


def test_a_killed_controller_sends_a_message_once_and_writes_its_url_nowhere(tmp_path):
    with Receiver() as receiver, RealController(tmp_path) as controller:
        receiver.may_answer.clear()
        with Cluster(controller.url, controller.token) as cluster:
            url = f"json://ada:{HIDDEN}@127.0.0.1:{receiver.port}/{HIDDEN}"
            new = NewNotificationTarget(team="vision", on=("ended",), url=url)
            target = cluster.notifications.add(new).id
            # It never gets devices, so it ends when it is cancelled.
            policy = ElasticPolicy(min_replicas=1000, max_replicas=1000)
            cluster.jobs.submit(JobSpec(name="train", team="vision", script="/t.py", elastic_policy=policy))
            cluster.jobs.cancel("train")
            wait_until(lambda: receiver.messages, "the message arrives")
            controller.kill()
            controller.start()
            receiver.may_answer.set()

            def has_ended():
                return [one.state for one in cluster.notifications.newest(target)] == ["sent"]

            wait_until(has_ended, "the next controller reads the receipt")
            cluster.notifications.test(target)
            wait_until(lambda: len(receiver.messages) > 1, "the test arrives")
        controller.stop()
        assert [title for title, _ in receiver.messages] == ["Elastane: train cancelled", "Elastane: test"]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"store.db", "controller.log", "key"} <= {path.name for path in files}
    assert not [path for path in files if HIDDEN.encode() in path.read_bytes()]
