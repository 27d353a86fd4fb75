"""The files of a run directory, by name. Other programs may read all of them except the secret."""

from pathlib import Path

import msgspec

from elastane.common.confined_files import ConfinedDirectory
from elastane.common.untrusted_data import Malformed

CERTIFICATE = "certificate.pem"
"""The key and the certificate of the coordinator, mode 0600, in a run on several machines."""
RECIPE = "recipe.yaml"
"""The complete recipe of a run of ``elastane recipe run``, in its directory; the script reads it."""

TICKETS = "tickets"
"""The directory of the tickets of the present attempt; see `elastane.run.machines.tickets.ticket_files`."""

GATHERED = "gathered"
"""The directory of the tensors that the workers of an evaluation pass to each other."""

CLAIMS = "claims"
"""The directory of the claim list with the terms of the coordinators; see `elastane.run.machines.claims`."""


class FinishedModelFiles(msgspec.Struct, frozen=True):
    """The files of a finished model, in the run directory ``root`` or in a directory of an export."""

    root: Path

    @property
    def weights(self) -> Path:
        """The trained weights if they fit one file; otherwise `weight_index` names their shards."""
        return self.root / "model.safetensors"

    @property
    def weight_index(self) -> Path:
        return self.root / "model.safetensors.index.json"

    @property
    def optimizer(self) -> Path:
        """The optimizer's state, with ``--save-optimizer``."""
        return self.root / "optimizer.safetensors"

    @property
    def optimizer_groups(self) -> Path:
        """The optimizer's class, and the hyperparameters of its groups at the end."""
        return self.root / "optimizer.json"

    @property
    def config(self) -> Path:
        """The description from which ``from_pretrained`` builds a model of ``transformers``."""
        return self.root / "config.json"

    @property
    def environment(self) -> Path:
        return self.root / "environment.json"


class TrackerFiles(msgspec.Struct, frozen=True):
    """The files of trackers in the run directory ``root``."""

    root: Path

    @property
    def tensorboard(self) -> Path:
        """The event files for TensorBoard."""
        return self.root / "tensorboard"

    @property
    def mlflow(self) -> Path:
        """The store of MLflow, if there is no server."""
        return self.root / "mlflow"

    @property
    def wandb(self) -> Path:
        """The files of Weights & Biases."""
        return self.root / "wandb"

    @property
    def identity(self) -> Path:
        """The id of the run in trackers."""
        return self.root / "trackers.json"

    @property
    def lock(self) -> Path:
        """Locked (flock) by the process that feeds the trackers."""
        return self.root / "trackers.lock"


class NodeFiles(msgspec.Struct, frozen=True):
    """The files of one node in the run directory ``root``; the first ``node`` has no name."""

    root: Path
    node: str = ""

    @property
    def beats(self) -> Path:
        """Heartbeats of the node's workers, see `elastane.run.nouns.heartbeat_file`."""
        return self.root / f"beats{self._suffix}"

    @property
    def lock(self) -> Path:
        """Locked (flock) by the node's agent for as long as it takes part."""
        return self.root / f"lock{self._suffix}"

    @property
    def address(self) -> Path:
        """Where the node listens, in a run on several machines; see `elastane.run.nouns.machine_address`."""
        return self.root / f"address{self._suffix}.json"

    @property
    def sites(self) -> Path:
        """The sites of the node, unless it is the first one; see `elastane.run.nouns.sites`."""
        return self.root / f"sites{self._suffix}.json"

    def log(self, process: str) -> Path:
        """Return the path of the log of one process: ``coordinator`` or ``fork-server``."""
        return self.root / "logs" / f"{process}{self._suffix}.log"

    @property
    def _suffix(self) -> str:
        return f"-{self.node}" if self.node else ""


class RunDir(msgspec.Struct, frozen=True):
    """The paths of a run's files.

    ``ledger.jsonl`` holds one `elastane.run.nouns.records.LedgerLine` per committed step, ``events.jsonl``
    one `elastane.run.nouns.records.EventLine` per change. All nodes of a run share the directory; each node
    beyond the first has its own `NodeFiles`.
    """

    root: Path
    node: str = ""

    @property
    def files(self) -> ConfinedDirectory:
        """The reader of all files below the directory, which another user or machine may have written."""
        return ConfinedDirectory(self.root)

    @property
    def run(self) -> Path:
        return self.root / "run.json"

    @property
    def ledger(self) -> Path:
        return self.root / "ledger.jsonl"

    @property
    def lost_ledger(self) -> Path:
        """Ledger lines of steps that a resume has made again."""
        return self.root / "ledger.lost.jsonl"

    @property
    def events(self) -> Path:
        return self.root / "events.jsonl"

    @property
    def model_files(self) -> FinishedModelFiles:
        """The files of the finished model."""
        return FinishedModelFiles(self.root)

    @property
    def checkpoints(self) -> Path:
        """The directory of the checkpoints, unless the spec names another place."""
        return self.root / "checkpoints"

    @property
    def artifacts(self) -> Path:
        """Files that the script has written through ``run.artifact``, in a folder for each step."""
        return self.root / "artifacts"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.json"

    @property
    def card(self) -> Path:
        """The model card: how the model was trained, for people."""
        return self.root / "CARD.md"

    @property
    def report(self) -> Path:
        return self.root / "report.html"

    @property
    def endpoint(self) -> Path:
        """``{"host", "port", "certificate"}`` of the coordinator while the run lives."""
        return self.root / "endpoint.json"

    @property
    def secret(self) -> Path:
        """The run's random secret, mode 0600; every connection must present it."""
        return self.root / "secret"

    @property
    def lock(self) -> Path:
        """Locked (flock) by the agent for as long as the run lives."""
        return self.root / "lock"

    @property
    def controller(self) -> Path:
        """The store of the run's own controller, which decided on the number of workers."""
        return self.root / "controller.db"

    @property
    def attempt(self) -> Path:
        """The newest `elastane.run.nouns.attempts.Attempt` of a job that an engine started."""
        return self.root / "attempt.json"

    @property
    def record_store(self) -> Path:
        """The address and the key of what keeps the records, mode 0600, if machines share no directory."""
        return self.root / "record-store.json"

    @property
    def is_private(self) -> bool:
        """Whether no other machine of the run shares the directory; then a controller keeps the records."""
        return self.files.has_file(self.record_store)

    @property
    def presence(self) -> Path:
        """Locked (flock, shared) by every process of the run, which inherits the lock from its parent."""
        return self.root / "presence"

    @property
    def node_files(self) -> NodeFiles:
        """The files of this node."""
        return NodeFiles(self.root, self.node)

    @property
    def trackers(self) -> TrackerFiles:
        """The files of trackers, with ``--log``."""
        return TrackerFiles(self.root)

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def list_logs(self) -> list[str]:
        """Return the processes that have a log, sorted; none if the folder of the logs cannot be trusted.

        The names are as unsafe to show as the content of a log.

        Raises:
            OSError: it cannot be read.
        """
        try:
            names = self.files.list_files(self.logs)
        except Malformed:
            return []
        return [name.removesuffix(".log") for name in names if name.endswith(".log")]

    def log(self, process: str) -> Path:
        """Return the path of the log of one process: ``coordinator``, ``fork-server`` or ``worker-3``."""
        return self.logs / f"{process}.log"
