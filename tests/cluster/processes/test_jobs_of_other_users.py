"""``elastane up --run-as``: jobs of a team run as its system user and cannot reach files of other users."""

import json
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import wait_until

from .other_users import Users, explain_unavailable, find_user_processes

pytestmark = [
    pytest.mark.early,
    pytest.mark.processes,
    pytest.mark.skipif(bool(explain_unavailable()), reason=explain_unavailable()),
]

HONEST = """
import sys, time, torch
from torch import nn
import elastane

run = elastane.join()
model = nn.Linear(4, 1)
model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
inputs = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))
data = torch.utils.data.TensorDataset(inputs, inputs[:, :1])
for step in run.steps(data, global_batch=8, microbatch=2, until=int(sys.argv[1])):
    for x, y in step:
        step.backward(nn.functional.mse_loss(model(x), y))
        time.sleep(float(sys.argv[2]))
"""

HOSTILE = """
import json, os, signal, sys
home, controller, other, worker, token = sys.argv[3:8]

def attempt(act):
    try:
        return repr(act())
    except OSError as error:
        return "refused: " + type(error).__name__

tried = {
    "the token of the operator": lambda: open(home + "/cluster.json").read(),
    "the store": lambda: open(home + "/controller.db", "rb").read(9),
    "the write-ahead log": lambda: open(home + "/controller.db-wal", "rb").read(9),
    "the log of the controller": lambda: open(home + "/controller.log").read(),
    "which users there are": lambda: open(home + "/run-as.json").read(),
    "what the home holds": lambda: os.listdir(home),
    "the names of all jobs": lambda: os.listdir(home + "/runs"),
    "the files of another team": lambda: os.listdir(other),
    "the secret of another team": lambda: open(other + "/secret").read(),
    "the ledger of another team": lambda: open(other + "/ledger.jsonl").read(),
    "a new file in the home": lambda: open(home + "/planted", "w"),
    "another run directory": lambda: os.mkdir(home + "/runs/planted"),
    "the end of the controller": lambda: os.kill(int(controller), signal.SIGTERM),
    "the end of another team's worker": lambda: os.kill(int(worker), signal.SIGKILL),
    "the variables of the controller": lambda: open(f"/proc/{controller}/environ").read(),
    "the memory of another team's worker": lambda: open(f"/proc/{worker}/mem", "rb").read(1),
    "the memory that another team trains in": lambda: os.listdir(f"/proc/{worker}/fd"),
    "to be root": lambda: os.setuid(0),
    "the groups of root": lambda: os.setgroups([0]),
}
results = {name: attempt(act) for name, act in tried.items()}
held = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if fd != "3"
        and os.path.exists(f"/proc/self/fd/{fd}")]
secrets = [name for name, value in os.environ.items() if value and (value == token or "TOKEN" in name)]
own = {"ids": [*os.getresuid(), *os.getresgid()], "groups": os.getgroups(), "umask": os.umask(0o077),
       "held": held, "secrets": secrets, "home": os.environ["HOME"], "user": os.environ["USER"]}
print("RESULTS " + json.dumps({"tried": results, "own": own}), flush=True)
"""

LINKS = """
import os, sys, time
home = sys.argv[3]
logs = os.path.dirname(os.readlink("/proc/self/fd/1"))
run_dir = os.path.dirname(logs)
def link(name, target):
    if os.path.lexists(name):
        os.rename(name, name + ".was")
    os.symlink(target, name)
link(logs + "/fork-server.log", home + "/cluster.json")
link(logs + "/worker-7.log", home + "/cluster.json")
link(run_dir + "/secret", home + "/cluster.json")
link(run_dir + "/ledger.jsonl.new", home + "/cluster.json")
os.rename(logs, logs + ".was")
os.symlink(home, logs)
print("linked", flush=True)
time.sleep(3)
os.unlink(logs)
os.rename(logs + ".was", logs)
link(run_dir + "/presence", "/dev/null")
"""


@pytest.fixture(scope="module")
def users() -> Iterator[Users]:
    found = Users()
    try:
        yield found
    finally:
        found.close()


@pytest.fixture(scope="module")
def cluster(users: Users) -> Users:
    users.honest = users.write_script("train.py", HONEST)
    # The widest umask, so that only Elastane itself keeps other users out.
    users.printed = users.start_controller(
        f"--run-as=red={users.red}", f"--run-as=blue={users.blue}", umask=0
    ).stdout
    users.submit("honest", "red", users.honest, "--", 12, 0)
    return users


def get_uid(user: str) -> int:
    return pwd.getpwnam(user).pw_uid


def test_a_job_trains_as_the_user_of_its_team(cluster: Users) -> None:
    assert f"{cluster.red} (team red)" in cluster.printed
    assert cluster.wait_for_end("honest")["state"] == "finished"
    files = [cluster.run_dir("honest"), *cluster.run_dir("honest").rglob("*")]
    assert {path.lstat().st_uid for path in files} == {get_uid(cluster.red)}
    open_to_others = [path for path in files if path.lstat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)]
    assert open_to_others == []
    assert (cluster.run_dir("honest") / "model.safetensors").is_file()


def test_an_operator_inspects_scales_and_cancels_a_job_of_another_user(cluster: Users) -> None:
    cluster.submit("watched", "blue", cluster.honest, "--", 100000, 0.02)
    wait_until(lambda: cluster.count_steps("watched") > 2, "it trains")
    rows = json.loads(cluster.run_elastane("ps", "watched", "--json").stdout)
    # The agent, coordinators, fork server and workers all belong to that user.
    assert {"agent", "coordinator", "worker"} <= {row["role"] for row in rows}
    started = [row["pid"] for row in rows if row["pid"] is not None]
    assert set(started) <= set(find_user_processes({get_uid(cluster.blue)}))
    cluster.run_elastane("logs", "watched", "--job")
    cluster.run_elastane("down")
    assert cluster.start_controller().stdout.count(cluster.blue) == 1, (
        "the new controller knows the users of the one before"
    )
    cluster.run_elastane("scale", "watched", "1:2")
    wait_until(lambda: len(cluster.list_workers("watched")) == 2, "it has grown")
    cluster.run_elastane("cancel", "watched")
    assert cluster.wait_for_end("watched")["state"] == "cancelled"
    wait_until(lambda: not find_user_processes({get_uid(cluster.blue)}), "its processes are gone")


def test_a_hostile_job_reaches_nothing_beyond_its_own_files(cluster: Users) -> None:
    cluster.submit("victim", "blue", cluster.honest, "--", 100000, 0.02)
    wait_until(lambda: cluster.count_steps("victim") > 0, "the other team trains")
    worker = cluster.list_workers("victim")[0]
    controller = json.loads((cluster.home / "controller.json").read_text())["pid"]
    token = json.loads((cluster.home / "cluster.json").read_text())["token"]
    script = cluster.write_script("hostile.py", HOSTILE + HONEST)
    where = (cluster.home, controller, cluster.run_dir("victim"), worker, token)
    cluster.submit("hostile", "red", script, "--", 3, 0, *where)
    assert cluster.wait_for_end("hostile")["state"] == "finished"
    line = next(line for line in cluster.read_output("hostile").splitlines() if line.startswith("RESULTS "))
    results = json.loads(line.removeprefix("RESULTS "))
    assert {
        name: result for name, result in results["tried"].items() if not result.startswith("refused")
    } == {}
    own, user = results["own"], pwd.getpwnam(cluster.red)
    assert own["ids"] == [user.pw_uid] * 3 + [user.pw_gid] * 3
    assert set(own["groups"]) <= {user.pw_gid}
    assert own["umask"] == 0o077
    assert own["secrets"] == []
    assert (own["home"], own["user"]) == (user.pw_dir, cluster.red)
    mine = str(cluster.run_dir("hostile"))
    inherited = [name for name in own["held"] if name.startswith(str(cluster.home)) and mine not in name]
    assert inherited == []
    assert Path(f"/proc/{worker}").exists(), "the other team's worker lives"
    cluster.run_elastane("cancel", "victim")
    assert cluster.wait_for_end("victim")["state"] == "cancelled"


def test_links_in_a_run_directory_do_not_give_access_to_files_of_root(cluster: Users) -> None:
    token = json.loads((cluster.home / "cluster.json").read_text())["token"]
    before = {path: path.read_bytes() for path in cluster.home.glob("*.json")}
    script = cluster.write_script("links.py", LINKS + HONEST)
    cluster.submit("links", "red", script, "--", 30, 0.02, cluster.home)
    shown = []

    def read_logs() -> str:
        shown.extend(
            cluster.run_elastane("logs", "links", process, "--job", code=None).stdout
            for process in ("0", "7", "fork-server", "1")
        )
        return shown[-1]

    # Worker 0 has placed its links and removed them again, and worker 1 has placed them.
    wait_until(
        lambda: "linked" in read_logs(), "worker 1 has placed links", state=lambda: cluster.get_job("links")
    )
    cluster.run_elastane("cancel", "links", code=None)
    cluster.wait_for_end("links")
    assert token not in "".join(shown)
    assert {path: path.read_bytes() for path in cluster.home.glob("*.json")} == before
    assert cluster.wait_for_end("honest")["state"] == "finished", "the cluster answers"


def test_the_controller_kills_no_process_that_a_job_claims_as_its_agent(cluster: Users) -> None:
    naming = """
import json, os, sys
run_dir = os.path.dirname(os.path.dirname(os.readlink("/proc/self/fd/1")))
pid = int(sys.argv[3])
started = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[19])
attempt = json.load(open(run_dir + "/attempt.json"))
beside = run_dir + "/attempt.json.mine"
json.dump(attempt | {"pid": pid, "started": started}, open(beside, "w"))
os.rename(beside, run_dir + "/attempt.json")
"""
    controller = json.loads((cluster.home / "controller.json").read_text())["pid"]
    script = cluster.write_script("naming.py", naming + HONEST)
    cluster.submit("naming", "red", script, "--", 20, 0.05, controller)
    wait_until(lambda: cluster.count_steps("naming") > 0, "it has named the controller as its agent")
    cluster.run_elastane("cancel", "naming")
    cluster.wait_for_end("naming")
    assert Path(f"/proc/{controller}").exists()
    assert cluster.wait_for_end("honest")["state"] == "finished", "the controller answers"


def test_a_job_fails_when_its_user_cannot_read_its_script(cluster: Users) -> None:
    script = cluster.write_script("private.py", HONEST)
    script.chmod(0o600)
    cluster.submit("private", "red", script)
    job = cluster.wait_for_end("private")
    assert job["state"] == "failed"
    assert str(script) in job["why"]
    assert cluster.red in job["why"]
    hidden = cluster.folder / "hidden"
    hidden.mkdir(mode=0o700)
    (hidden / "train.py").write_text(HONEST)
    cluster.submit("hidden", "red", hidden / "train.py")
    why = cluster.wait_for_end("hidden")["why"]
    assert cluster.red in why
    assert f"that user cannot enter {hidden}" in why


def test_a_job_brings_code_with_it_that_its_user_cannot_read_elsewhere(cluster: Users) -> None:
    private = cluster.folder / "project"
    private.mkdir(mode=0o700)
    (private / "train.py").write_text("import helper\n" + HONEST)
    (private / "helper.py").write_text("print('helps', flush=True)\n")
    (private / "job.yaml").write_text("code: .\nscript: train.py\nargs: ['3', '0']\n")
    cluster.run_elastane("submit", private / "job.yaml", "--name", "brought", "--team", "red")
    job = cluster.wait_for_end("brought")
    assert job["state"] == "finished", job["why"]
    copy = cluster.run_dir("brought") / "code" / job["spec"]["code"]
    files = [copy.parent, copy, *copy.rglob("*")]
    assert {path.lstat().st_uid for path in files} == {get_uid(cluster.red)}
    assert [path for path in files if path.lstat().st_mode & 0o077] == []
    kept = cluster.home / "code"
    assert (kept.stat().st_uid, kept.stat().st_mode & 0o077) == (0, 0)


def test_a_job_of_a_team_without_a_user_is_refused(cluster: Users) -> None:
    refused = cluster.submit("alien", "green", cluster.honest, code=2)
    assert "team green has no system user" in refused.stderr
    assert "--run-as" in refused.stderr


def test_a_removed_user_affects_only_its_own_jobs(cluster: Users) -> None:
    cluster.run_elastane("down")
    gone = f"el-gone-{os.getpid()}"
    cluster.make_user(gone)
    cluster.start_controller(
        f"--run-as=red={cluster.red}", f"--run-as=blue={cluster.blue}", f"--run-as={gone}"
    )
    cluster.submit("late", "green", cluster.honest, "--", 100000, 0.02)
    cluster.run_elastane("pause", "late")
    wait_until(lambda: cluster.get_job("late")["state"] == "paused", "it is paused")
    wait_until(lambda: not find_user_processes({get_uid(gone)}), "its processes are gone")
    cluster.remove_user(gone)
    cluster.run_elastane("resume", "late")
    assert "no user" in cluster.submit("later", "green", cluster.honest, code=2).stderr
    cluster.submit("other", "blue", cluster.honest, "--", 3, 0)
    assert cluster.wait_for_end("other")["state"] == "finished"
    cluster.wait_for_event("late", f"no user {gone}")
    cluster.run_elastane("cancel", "late")
    assert cluster.wait_for_end("late")["state"] == "cancelled"


def test_a_job_never_runs_as_root_in_a_directory_of_another_user(cluster: Users) -> None:
    cluster.submit("moved", "blue", cluster.honest, "--", 100000, 0.02)
    wait_until(lambda: cluster.count_steps("moved") > 0, "it trains")
    cluster.run_elastane("pause", "moved")
    wait_until(lambda: cluster.get_job("moved")["state"] == "paused", "it is paused")
    wait_until(lambda: not find_user_processes({get_uid(cluster.blue)}), "its processes are gone")
    cluster.run_elastane("down")
    printed = cluster.start_controller("--run-as", "none").stdout
    assert "run as root" in printed
    cluster.run_elastane("resume", "moved")
    cluster.wait_for_event("moved", "belongs to user")
    cluster.run_elastane("cancel", "moved")
    assert cluster.wait_for_end("moved")["state"] == "cancelled"


@pytest.mark.parametrize(
    ("option", "error"),
    [
        ("red=no-such-user", "no user no-such-user"),
        ("red=root", "uid 0"),
        ("=someone", "lacks a team"),
    ],
)
def test_up_refuses_users_that_cannot_run_jobs(users: Users, option: str, error: str) -> None:
    users.run_elastane("down", code=None)
    refused = users.start_controller(f"--run-as={option}", code=2)
    assert error in refused.stderr


def test_up_with_users_is_refused_to_other_users_than_root(users: Users) -> None:
    users.run_elastane("down", code=None)
    own = users.folder / "of-red"
    own.mkdir()
    os.chown(own, get_uid(users.red), -1)
    users.home, before = own / "home", users.home
    try:
        refused = users.start_controller(f"--run-as=red={users.red}", code=2, user=users.red)
        assert "needs root" in refused.stderr
        # Root refuses a home that the user could replace.
        refused = users.start_controller(f"--run-as=red={users.red}", code=2)
        assert "can be changed by other users than root" in " ".join(refused.stderr.split())
    finally:
        users.home = before
