"""The scheduler and the nodes of the double: pods become processes of this machine.

A pod waits for a node with room and for its Secrets. Its container is a process that sees the folders of its
mounts under other names, because there are no containers here.
"""

import os
import shutil
import signal
import subprocess
import threading
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from elastane.cluster.engines.kubernetes.quantities import parse_quantity
from tests.cluster.engines.api_double.objects import ApiError, Document, Objects, format_time, now, parse_time

WAIT_S = 0.5


class Nodes:
    """Schedules pods, and runs them.

    Args:
        folder: for the mounts and the logs of pods.
        claims: the folder on this machine of each persistent volume claim.

    Attributes:
        missing_images: images that cannot be pulled.
        lost: names of nodes that do nothing any more, while their processes go on.
        starts: how often a process was started for each pod, by name.
    """

    def __init__(self, objects: Objects, folder: Path, environment: dict[str, str]) -> None:
        self.objects = objects
        self.folder = folder
        self.environment = environment
        self.missing_images: set[str] = set()
        self.lost: set[str] = set()
        self.starts: dict[str, int] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        """By UID of the pod."""
        self._terminated: set[str] = set()
        self._closing = False
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End all, with all processes of pods."""
        self._closing = True
        with self.objects.changed:
            self.objects.changed.notify_all()
        self._thread.join()
        for process in self._processes.values():
            kill_tree(process.pid)
            process.wait()

    def find_process(self, name: str, namespace: str) -> subprocess.Popen[bytes]:
        return self._processes[self.objects.get("pods", namespace, name)["metadata"]["uid"]]

    def _run(self) -> None:
        while not self._closing:
            with self.objects.changed:
                version = self.objects.version
                for pod in self.objects.list_all("pods"):
                    # It may have changed while others were looked at.
                    with suppress(ApiError):
                        self._look(pod)
                self._end_removed()
                if self.objects.version == version and not self._closing:
                    self.objects.changed.wait(self._choose_wait_s())

    def _choose_wait_s(self) -> float:
        return WAIT_S

    def _look(self, pod: Document) -> None:
        metadata, phase = pod["metadata"], pod.get("status", {}).get("phase", "Pending")
        node = pod["spec"].get("nodeName")
        if not node:
            if not metadata.get("deletionTimestamp"):
                self._schedule(pod)
            elif phase not in ("Succeeded", "Failed"):
                # A finalizer keeps it. The pod garbage collector of Kubernetes calls it failed.
                status = {"phase": "Failed"}
                self.objects.patch("pods", metadata["namespace"], metadata["name"], {"status": status})
            return
        if node in self.lost:
            return
        process = self._processes.get(metadata["uid"])
        if phase in ("Succeeded", "Failed"):
            if metadata.get("deletionTimestamp"):
                self._delete_now(pod)
        elif process is not None and process.poll() is not None:
            self._report_end(pod, process)
        elif metadata.get("deletionTimestamp"):
            self._end(pod, process)
        elif process is None:
            self._begin(pod)

    # -- scheduling ------------------------------------------------------------------------------------------

    def _schedule(self, pod: Document) -> None:
        if pod["spec"].get("schedulingGates"):
            self._set_condition(pod, "PodScheduled", "False", "SchedulingGated", "Scheduling is blocked")
            return
        nodes = self.objects.list_all("nodes")
        fitting = [node["metadata"]["name"] for node in nodes if self._fits(pod, node)]
        if not fitting:
            message = f"0/{len(nodes)} nodes are available: {len(nodes)} Insufficient resources."
            self._set_condition(pod, "PodScheduled", "False", "Unschedulable", message)
            return
        bound = self.objects.patch(
            "pods",
            pod["metadata"]["namespace"],
            pod["metadata"]["name"],
            {"spec": {"nodeName": fitting[0]}},
        )
        self._set_condition(bound, "PodScheduled", "True", "", "")

    def _fits(self, pod: Document, node: Document) -> bool:
        spec, labels = node.get("spec", {}), node["metadata"].get("labels", {})
        ready = {condition["type"]: condition["status"] for condition in node["status"]["conditions"]}
        if spec.get("unschedulable") or ready.get("Ready") != "True":
            return False
        if any(labels.get(key) != value for key, value in pod["spec"].get("nodeSelector", {}).items()):
            return False
        if not all(self._tolerates(pod, taint) for taint in spec.get("taints", ())):
            return False
        held: dict[str, int] = {}
        for other in self.objects.list_all("pods"):
            if other["spec"].get("nodeName") == node["metadata"]["name"] and holds_devices(other):
                for name, quantity in list_requests(other).items():
                    held[name] = held.get(name, 0) + quantity
        allocatable = {name: parse_quantity(text) for name, text in node["status"]["allocatable"].items()}
        return all(
            held.get(name, 0) + quantity <= allocatable.get(name, 0)
            for name, quantity in list_requests(pod).items()
        )

    def _tolerates(self, pod: Document, taint: Document) -> bool:
        return taint["effect"] == "PreferNoSchedule" or any(
            toleration.get("key") in (None, taint["key"])
            and toleration.get("effect") in (None, "", taint["effect"])
            and (toleration.get("operator") == "Exists" or toleration.get("value") == taint.get("value"))
            for toleration in pod["spec"].get("tolerations", ())
        )

    # -- pods on nodes ---------------------------------------------------------------------------------------

    def _begin(self, pod: Document) -> None:
        (container,) = pod["spec"]["containers"]
        if container["image"] in self.missing_images:
            message = f'Back-off pulling image "{container["image"]}"'
            self._set_waiting(pod, "ImagePullBackOff", message)
            return
        places = self._mount(pod)
        if places is None:
            self._set_waiting(pod, "ContainerCreating", "")
            return
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        words = [substitute(word, places) for word in container["command"]]
        # What it reports comes after what its node reports.
        state = {"running": {"startedAt": format_time(now())}}
        self._set_status(pod, "Running", state)
        self.starts[name] = self.starts.get(name, 0) + 1
        variables = {one["name"]: one.get("value", "") for one in container.get("env", ())}
        with self.log(pod).open("ab") as log:
            self._processes[uid] = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment | variables | {"HOSTNAME": name},
                cwd="/",
                start_new_session=True,
            )
        threading.Thread(target=self._wait, args=(self._processes[uid],), daemon=True).start()

    def log(self, pod: Document) -> Path:
        """Return the file with the output of a pod."""
        return self.folder / f"{pod['metadata']['uid']}.log"

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        with self.objects.changed:
            self.objects.changed.notify_all()

    def _mount(self, pod: Document) -> dict[str, str] | None:
        """Return the folder for each path in the container; None: a Secret is missing."""
        sources: dict[str, Path] = {}
        for volume in pod["spec"].get("volumes", ()):
            if "secret" in volume:
                name = volume["secret"]["secretName"]
                secret = self.objects.find("secrets", pod["metadata"]["namespace"], name)
                if secret is None:
                    return None
                sources[volume["name"]] = self._write_secret(pod, secret)
        return {
            mount["mountPath"]: str(sources[mount["name"]])
            for mount in pod["spec"]["containers"][0].get("volumeMounts", ())
            if mount["name"] in sources
        }

    def _write_secret(self, pod: Document, secret: Document) -> Path:
        import base64

        folder = self.folder / pod["metadata"]["uid"]
        folder.mkdir(mode=0o700, exist_ok=True)
        for name, content in secret["data"].items():
            (folder / name).write_bytes(base64.b64decode(content))
        return folder

    def _end(self, pod: Document, process: subprocess.Popen[bytes] | None) -> None:
        """Give a pod that is deleted its notice, once, and kill it when its grace is over."""
        if process is None:
            self._delete_now(pod)
            return
        uid = pod["metadata"]["uid"]
        if uid not in self._terminated:
            self._terminated.add(uid)
            process.send_signal(signal.SIGTERM)
        until = parse_time(pod["metadata"]["deletionTimestamp"])
        # The time is cut to seconds.
        if now() >= until + timedelta(seconds=1):
            kill_tree(process.pid)

    def _report_end(self, pod: Document, process: subprocess.Popen[bytes]) -> None:
        code = process.returncode if process.returncode >= 0 else 128 - process.returncode
        output = self.log(pod).read_text(errors="replace")[-2048:] if code else ""
        state: dict[str, Any] = {
            "terminated": {
                "exitCode": code,
                "reason": "Error" if code else "Completed",
                "finishedAt": format_time(now()),
                "message": "\n".join(output.split("\n")[-80:]),
            }
        }
        self._set_status(pod, "Failed" if code else "Succeeded", state)

    def _delete_now(self, pod: Document) -> None:
        metadata = pod["metadata"]
        self.objects.delete("pods", metadata["namespace"], metadata["name"], {"gracePeriodSeconds": 0})

    def _end_removed(self) -> None:
        """Kill the processes of pods that were removed by force."""
        pods = self.objects.list_all("pods")
        there = {pod["metadata"]["uid"] for pod in pods}
        on_lost = {pod["metadata"]["uid"] for pod in pods if pod["spec"].get("nodeName") in self.lost}
        for uid in self._processes.keys() - there - on_lost:
            if self._processes[uid].poll() is None:
                kill_tree(self._processes[uid].pid)

    # -- statuses --------------------------------------------------------------------------------------------

    def _set_condition(self, pod: Document, kind: str, status: str, reason: str, message: str) -> None:
        others = [
            condition
            for condition in pod.get("status", {}).get("conditions", ())
            if condition["type"] != kind
        ]
        old = [c for c in pod.get("status", {}).get("conditions", ()) if c["type"] == kind]
        new = {"type": kind, "status": status, "reason": reason, "message": message}
        if old and {**old[0], "lastTransitionTime": ""} == {**new, "lastTransitionTime": ""}:
            return
        new["lastTransitionTime"] = format_time(now())
        metadata = pod["metadata"]
        status = {"phase": pod.get("status", {}).get("phase", "Pending"), "conditions": [*others, new]}
        self.objects.patch("pods", metadata["namespace"], metadata["name"], {"status": status})

    def _set_waiting(self, pod: Document, reason: str, message: str) -> None:
        self._set_status(pod, "Pending", {"waiting": {"reason": reason, "message": message}})

    def _set_status(self, pod: Document, phase: str, state: Document) -> None:
        (container,) = pod["spec"]["containers"]
        seen = {"name": container["name"], "image": container["image"], "imageID": "", "restartCount": 0}
        status = {
            "phase": phase,
            "containerStatuses": [{**seen, "ready": phase == "Running", "state": state}],
        }
        if "startTime" not in pod.get("status", {}):
            status["startTime"] = format_time(now())
        before = pod.get("status", {})
        if {name: before.get(name) for name in ("phase", "containerStatuses")} == {
            name: status[name] for name in ("phase", "containerStatuses")
        }:
            return
        metadata = pod["metadata"]
        self.objects.patch("pods", metadata["namespace"], metadata["name"], {"status": status})


def holds_devices(pod: Document) -> bool:
    return pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")


def list_requests(pod: Document) -> dict[str, int]:
    found: dict[str, int] = {}
    for container in pod["spec"]["containers"]:
        for name, text in container.get("resources", {}).get("requests", {}).items():
            found[name] = found.get(name, 0) + parse_quantity(text)
    return found


def substitute(word: str, places: dict[str, str]) -> str:
    for inside, outside in places.items():
        word = word.replace(inside, outside)
    return word


def kill_tree(pid: int) -> None:
    """Kill a process and its descendants, as the end of a container does."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError, IndexError, ValueError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                parents.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for process in found:
        found += parents.get(process, ())
    for process in found:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def remove_folder(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
