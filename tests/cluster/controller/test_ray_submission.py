"""`elastane.ray`: jobs of people inside a Ray cluster, against the API over a real socket."""

import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

import elastane.ray
from elastane.cluster.client.ray_submission import find_ray_address
from elastane.cluster.nouns.jobs import JobTraining
from elastane.common.connections.controller_context import Context, save_context
from elastane.common.errors import BadInput, RunFailed
from elastane.run.nouns.attempts import AttemptOutcome

ADDRESS = "10.0.0.2:6379"
ENGINE = {"name": "ray", "kind": "ray", "options": {"address": ADDRESS}}
POOL = {"name": "gpus", "device": "a100", "devices": 4, "engine": "ray"}


@pytest.fixture
def in_ray(monkeypatch):
    """Let this process belong to a Ray cluster."""
    context = SimpleNamespace(gcs_address=ADDRESS)
    ray = SimpleNamespace(is_initialized=lambda: True, get_runtime_context=lambda: context)
    monkeypatch.setitem(sys.modules, "ray", ray)


@pytest.fixture
def home(tmp_path, monkeypatch, in_ray):
    monkeypatch.setenv("ELASTANE_HOME", str(tmp_path / "home"))
    for variable in ("ELASTANE_URL", "ELASTANE_TOKEN"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text("import elastane\n")
    return path


@pytest.fixture
def submit():
    """Submit a job, and close its connection at the end."""
    with ExitStack() as stack:
        yield lambda *args, **more: stack.enter_context(elastane.ray.submit(*args, **more))


@pytest.fixture
def operator(cluster):
    return cluster.api.user("operator", user="olga")


@pytest.fixture
def log_in(cluster, served, home):
    """Let this user work with the controller, in a role."""
    with served(cluster.api) as url:
        yield lambda role: save_context(Context(url=url, token=cluster.api.token(role)))


@pytest.fixture
def declared(operator, log_in):
    """A controller with an engine and a pool in this Ray cluster."""
    operator.put("/engines/ray", ENGINE)
    operator.put("/pools/gpus", POOL)
    operator.put("/pools/local", {"name": "local", "device": "cpu", "devices": 2})
    log_in("submitter")


def test_a_job_is_submitted_scaled_followed_and_cancelled(submit, declared, script, cluster):
    training = JobTraining(seed=7)
    job = submit(
        "train.py", num_workers=(1, 4), args=["--lr", "3e-4"], env={"COLOUR": "red"}, training=training
    )
    found = job.read()
    assert found.name.startswith("train-")
    assert found.spec.script == str(script)
    assert (found.team, found.spec.args, found.spec.env) == ("vision", ("--lr", "3e-4"), {"COLOUR": "red"})
    assert found.spec.elastic_policy.limits == (1, 4)
    assert found.spec.training == training
    assert found.spec.resources_per_worker.kinds == ("a100",)
    assert job.scale((2, 3)).spec.elastic_policy.limits == (2, 3)
    assert job.scale(2).spec.elastic_policy.limits == (2, 2)
    kinds = []
    for event in job.follow():
        kinds.append(event.kind)
        if event.kind == "job.submitted":
            job.cancel()
    assert (kinds[0], kinds[-1]) == ("job.submitted", "job.cancelled")
    assert job.wait().state == "cancelled"


def test_waiting_for_a_job_that_fails_says_why(submit, log_in, script, cluster):
    log_in("submitter")
    with ThreadPoolExecutor(1) as pool:
        job = submit(script, name="train", kinds=["cpu"])
        cluster.api.user("operator").put("/pools/local", {"name": "local", "device": "cpu", "devices": 2})
        waiting = pool.submit(job.wait)
        cluster.until(lambda: cluster.workers("train") == 1)
        cluster.world.running["train"].end(AttemptOutcome(2, "there is no module colours"))
        cluster.until(lambda: cluster.job("train").state == "failed")
        with pytest.raises(RunFailed, match=r"job train has failed: .*colours"):
            waiting.result()


def test_without_a_controller_the_error_has_the_commands_that_start_one(submit, home, script):
    with pytest.raises(BadInput) as refused:
        submit(script)
    assert refused.value.what == "no controller is configured"
    engine = f"elastane engine set ray --kind ray --option python={sys.executable} --option address={ADDRESS}"
    assert engine in refused.value.do
    assert "elastane pool set POOL --device KIND --engine ray" in refused.value.do


def test_what_an_operator_can_read_of_the_engine_is_checked(submit, log_in, operator, script):
    log_in("operator")
    with pytest.raises(BadInput, match="no engine ray"):
        submit(script)
    operator.put("/engines/ray", ENGINE | {"options": {"address": "10.0.0.9:6379"}})
    with pytest.raises(BadInput, match=r"for the Ray cluster at 10.0.0.9:6379, and .* at 10.0.0.2"):
        submit(script)
    operator.put("/engines/hpc", {"name": "hpc", "kind": "slurm"})
    with pytest.raises(BadInput, match="engine hpc is of kind slurm"):
        submit(script, engine="hpc")
    for options in ({"address": "auto"}, {}):
        operator.put("/engines/ray", ENGINE | {"options": options})
        with pytest.raises(BadInput, match="no pool of engine ray"):
            submit(script)


def test_a_job_does_not_leave_ray_unless_its_user_accepts_that(submit, declared, operator, script):
    operator.put("/pools/other", {"name": "other", "device": "a100", "devices": 1})
    with pytest.raises(BadInput, match="pool other, which is not of engine ray, has"):
        submit(script)
    job = submit(script, kinds=["a100"])
    assert job.read().spec.resources_per_worker.kinds == ("a100",)
    operator.put("/pools/more", POOL | {"name": "more", "device": "h100"})
    assert submit(script).read().spec.resources_per_worker.kinds == ("h100",)


def test_a_script_must_be_where_all_nodes_find_it(submit, home, tmp_path):
    with pytest.raises(BadInput, match="there is no script"):
        submit(tmp_path / "missing.py")
    copy = tmp_path / "runtime_resources" / "working_dir_files" / "_ray_pkg_0" / "train.py"
    copy.parent.mkdir(parents=True)
    copy.touch()
    with pytest.raises(BadInput, match="is a copy that Ray has made on this node"):
        submit(copy)


@pytest.mark.parametrize(
    ("variable", "address"), [(ADDRESS, ADDRESS), ("auto", ""), ("ray://head:10001", ""), ("", "")]
)
def test_the_address_of_a_process_that_has_not_called_ray_is_in_its_environment(
    monkeypatch, variable, address
):
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    monkeypatch.setenv("RAY_ADDRESS", variable)
    assert find_ray_address() == address
