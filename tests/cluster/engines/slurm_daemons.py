"""A real Slurm on this machine: munged, slurmctld and three slurmd, in a folder and at ports of their own.

Nothing of the system is read or written, so several of them can run beside each other, as any user.
"""

import getpass
import os
import random
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tests.waiting import WAIT_S, wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "sinfo", "scontrol")
SEARCHED = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
NODES = ("n1", "n2", "n3")
DEVICES, CPUS = 2, 4
"""Of each node; it has no real devices, and not necessarily as many processors."""
NO_CGROUPS = (23, 2)
PORTS = range(20000, 30000)
"""Below those that the kernel gives to connections: a daemon that begins again finds its port free."""

CONF = """\
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n/pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n/log
MailProg=/bin/true
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
KillWait={kill_wait_s}
MinJobAge=600
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
GresTypes=gpu
NodeName=DEFAULT CPUs={cpus} Gres=gpu:a100:{devices}
NodeName=n1 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[1]} Feature=one
NodeName=n2 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[2]} Feature=two
NodeName=n3 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[3]} Feature=three
PartitionName=main Nodes=n[1-3] Default=YES PriorityTier=1
PartitionName=urgent Nodes=n[1-3] PriorityTier=10 PreemptMode=OFF
PartitionName=short Nodes=n[1-3] MaxTime=10
"""
GRES = "NodeName=n[1-3] Name=gpu Type=a100 File={folder}/gpu[0-1]\n"


class SlurmNotInstalled(Exception):
    pass


class SlurmDaemons:
    """The daemons, by name: ``munged``, ``slurmctld``, and one for each of `NODES`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.conf = folder / "slurm.conf"
        self._environment = {"PATH": SEARCHED, "SLURM_CONF": str(self.conf), "LC_ALL": "C"}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        """Start one daemon."""
        words = {
            "munged": (
                "munged",
                "--foreground",
                # The folder is closed to other users, which it finds strange.
                "--force",
                "--num-threads=2",
                f"--key-file={self.folder}/munge.key",
                f"--socket={self.folder}/munge.socket",
                f"--pid-file={self.folder}/munge.pid",
                f"--log-file={self.folder}/munge.log",
                f"--seed-file={self.folder}/munge.seed",
            ),
            "slurmctld": ("slurmctld", "-D", "-i"),
        }.get(name, ("slurmd", "-D", "-N", name))
        program = shutil.which(words[0], path=SEARCHED)
        with (self.folder / f"{name}.output").open("ab") as output:
            self._processes[name] = subprocess.Popen(
                (program, *words[1:]),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment,
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        """Kill one daemon; jobs on a node go on without its slurmd."""
        self._processes[name].kill()
        self._processes[name].wait()

    @contextmanager
    def pause(self, name: str) -> Iterator[None]:
        """Stop one daemon until the context ends: it still accepts connections, and does not answer."""
        self._processes[name].send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._processes[name].send_signal(signal.SIGCONT)

    def run(self, *words: str) -> str:
        """Run a program of Slurm, and return its output; an error of it is empty."""
        done = subprocess.run(
            words, env=self._environment, capture_output=True, text=True, timeout=WAIT_S, check=False
        )
        return done.stdout.strip()

    def choose_cgroup_plugin(self) -> str:
        """Return the plugin that leaves the control groups of the machine alone.

        Before 23.02 Slurm has none that is disabled. That of version 1 does nothing as long as nothing is
        limited, where the machine has only version 2, too.
        """
        year, month = re.findall(r"[0-9]+", self.run("slurmctld", "-V"))[:2]
        return "disabled" if (int(year), int(month)) >= NO_CGROUPS else "cgroup/v1"

    def are_nodes_idle(self) -> bool:
        ended = [name for name, process in self._processes.items() if process.poll() is not None]
        assert not ended, f"{ended} ended:\n{self.read_outputs()}"
        states = self.run("sinfo", "-h", "-N", "-p", "main", "-O", "StateComplete").split()
        return states == ["idle"] * len(NODES)

    def start_all(self) -> None:
        """Start all daemons, and wait until they take jobs."""
        self.start("munged")
        wait_until((self.folder / "munge.socket").exists, "munged listens", state=self.read_outputs)
        for name in ("slurmctld", *NODES):
            self.start(name)
        wait_until(self.are_nodes_idle, "all nodes are idle", state=self.read_outputs)

    def end_jobs(self) -> None:
        """End all jobs, and wait until no process of them is left."""
        self.run("scancel", f"--user={os.geteuid()}")
        wait_until(lambda: not self.run("squeue", "-h"), "no job is left", state=lambda: self.run("squeue"))

    def end_all(self) -> None:
        """End all daemons."""
        for name in self._processes:
            self.kill(name)
        # A slurmstepd outlives its slurmd. It has the log of its node open.
        wait_until(lambda: not kill_holders(self.folder), "no process uses the folder")

    def read_outputs(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("*.output")))


def list_holders(folder: Path) -> list[int]:
    """Return the pids of processes that have a file in a folder open."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal() and process.name != str(os.getpid()):
            with suppress(OSError):
                files = [entry.readlink() for entry in (process / "fd").iterdir()]
                found += [int(process.name)] if any(file.is_relative_to(folder) for file in files) else []
    return found


def kill_holders(folder: Path) -> list[int]:
    """Kill the processes that have a file in a folder open, and return their pids."""
    pids = list_holders(folder)
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return pids


def find_free_ports(count: int) -> range:
    """Return ports in a row at which nothing on this machine listens."""
    while True:
        ports = range(first := random.choice(PORTS), first + count)
        with ExitStack() as stack, suppress(OSError):
            for port in ports:
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return ports


def check_installed() -> None:
    """Check that all programs of Slurm are there.

    Raises:
        SlurmNotInstalled: one is missing.
    """
    missing = [name for name in PROGRAMS if shutil.which(name, path=SEARCHED) is None]
    if missing:
        raise SlurmNotInstalled(
            f"{', '.join(missing)} cannot be found: apt-get install slurmctld slurmd slurm-client munge"
        )


@contextmanager
def run_slurm(*, kill_wait_s: int = 1) -> Iterator[SlurmDaemons]:
    """Start a Slurm, wait until it takes jobs, and end it when the context does.

    Args:
        kill_wait_s: how long a cancelled job has until it is killed; users have 30 s by default.

    Raises:
        SlurmNotInstalled: a program of it is missing.
    """
    check_installed()
    # Not below pytest's folders: the path of a socket has at most 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="elastane-slurm-"))
    daemons = SlurmDaemons(folder)
    try:
        for name in ("state", *NODES):
            (folder / name).mkdir()
        for number in range(DEVICES):
            (folder / f"gpu{number}").touch()
        key = folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        daemons.conf.write_text(
            CONF.format(
                ports=find_free_ports(1 + len(NODES)),
                user=getpass.getuser(),
                folder=folder,
                cpus=CPUS,
                devices=DEVICES,
                kill_wait_s=kill_wait_s,
            )
        )
        (folder / "gres.conf").write_text(GRES.format(folder=folder))
        (folder / "cgroup.conf").write_text(f"CgroupPlugin={daemons.choose_cgroup_plugin()}\n")
        try:
            daemons.start_all()
            yield daemons
            daemons.end_jobs()
        finally:
            daemons.end_all()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
