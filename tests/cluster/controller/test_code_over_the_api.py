"""Code over the API: users send it before their jobs, agents get that of their job, and it goes in time."""

import asyncio
import gzip
import io
import os
import tarfile
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from elastane.cluster.controller.agents.stored_agent import StoredAgent, format_agent_id
from elastane.cluster.controller.code_files import CodeFiles
from elastane.cluster.controller.rest import team_limits
from elastane.cluster.controller.rest.context import Settings
from elastane.cluster.controller.store import agent_rows, code_rows, jobs
from elastane.cluster.engines.agent_program import fetch_code
from elastane.cluster.nouns.job_tickets import encode_credentials
from elastane.common.connections.controller_connection import ControllerConnection, RequestRefused
from elastane.common.errors import BadInput
from elastane.run.machines.joining.code_archive import write_archive
from elastane.run.machines.joining.shipped_code import list_code

DAY_S = 24 * 3600.0


@pytest.fixture
def api(api_over, sqlite_store, tmp_path):
    return api_over(sqlite_store, home=tmp_path / "home", settings=Settings(code_bytes=1 << 20))


@pytest.fixture
def project(tmp_path):
    root = tmp_path / "project"
    root.mkdir()
    (root / "train.py").write_text("print('trains')\n")
    return root


def pack(root):
    archive = io.BytesIO()
    return write_archive(root, list_code(root), archive), archive.getvalue()


def list_kept(api):
    folder = api.controller.home / "code"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def send(api, root, **user):
    digest, content = pack(root)
    answer = api.user(**user).put(f"/code/{digest}", raw=content)
    assert answer.status_code == 204, answer.text
    return digest


def make_job(make_spec, digest, name="train", **more):
    return msgspec.structs.replace(make_spec(name, **more), script="train.py", code=digest)


def test_code_is_sent_before_the_job_that_uses_it(api, project, make_spec):
    ada = api.user()
    digest, content = pack(project)
    assert ada.get(f"/code/{digest}").status_code == 404
    refused = ada.post("/jobs", make_job(make_spec, digest))
    assert (refused.status_code, refused.json()["field"]) == (422, "code")
    assert ada.put(f"/code/{digest}", raw=content).status_code == 204
    assert ada.get(f"/code/{digest}").status_code == 204
    assert ada.post("/jobs", make_job(make_spec, digest)).status_code == 201
    assert list_kept(api) == [f"{digest}.tar.gz"]
    archive = api.controller.home / "code" / f"{digest}.tar.gz"
    assert archive.stat().st_mode & 0o777 == 0o400
    assert archive.parent.stat().st_mode & 0o077 == 0
    lines = api.user("operator").get("/audit").json()["items"]
    assert [line["target"] for line in lines if line["action"] == "code.send"] == [f"code {digest}"]


def test_code_that_is_sent_again_is_the_same(api, project):
    digest, content = pack(project)
    ada = api.user()
    for _ in range(2):
        assert ada.put(f"/code/{digest}", raw=content).status_code == 204
    with api.store.begin_read() as tx:
        assert code_rows.measure_code(tx, "vision") == len(content)
    assert list_kept(api) == [f"{digest}.tar.gz"]


def test_two_may_send_the_same_code_at_once(api, project, served):
    digest, content = pack(project)
    token = api.token()

    def upload(_):
        with ControllerConnection(url, token) as connection:
            connection.upload(f"/code/{digest}", io.BytesIO(content))

    with served(api) as url, ThreadPoolExecutor(2) as pool:
        list(pool.map(upload, range(2)))
    assert list_kept(api) == [f"{digest}.tar.gz"]


def test_a_team_uses_only_code_that_it_has_sent(api, project, make_spec):
    digest = send(api, project)
    eve = api.user(team="speech", user="eve")
    assert eve.get(f"/code/{digest}").status_code == 404
    assert eve.post("/jobs", make_job(make_spec, digest, team="speech")).status_code == 422
    assert eve.get(f"/code/{digest}?team=vision").status_code == 404
    assert eve.put(f"/code/{digest}?team=vision", raw=b"").status_code == 404
    assert api.user("viewer").put(f"/code/{digest}", raw=b"").status_code == 403
    operator = api.user("operator")
    assert operator.get(f"/code/{digest}?team=vision").status_code == 204
    assert operator.get(f"/code/{digest}").status_code == 422
    assert api.with_secret("ela_unknown").put(f"/code/{digest}", raw=b"").status_code == 401


def make_tar(name, kind=tarfile.REGTYPE):
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.GNU_FORMAT) as archive:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, "/etc/passwd"
        archive.addfile(member)
    return gzip.compress(made.getvalue())


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda content: content[:-10], "ends too early"),
        (lambda _: b"", "ends too early"),
        (lambda _: b"not an archive", "not compressed"),
        (lambda _: make_tar("other.py"), "it has the code"),
        (lambda _: make_tar("../up.py"), "leads out of the code"),
        (lambda _: make_tar("train.py", tarfile.SYMTYPE), "something else than a file"),
        (lambda _: make_tar("train.py", tarfile.CHRTYPE), "something else than a file"),
    ],
)
def test_what_is_not_the_code_is_not_kept(api, project, make, why):
    digest, content = pack(project)
    answer = api.user().put(f"/code/{digest}", raw=make(content))
    assert answer.status_code == 422
    assert why in answer.json()["detail"]
    assert list_kept(api) == []
    assert api.user().get(f"/code/{digest}").status_code == 404


def test_code_has_a_limit_of_its_own(api, project):
    digest, _ = pack(project)
    refused = api.user().put(f"/code/{digest}", raw=bytes((1 << 20) + 1))
    assert refused.status_code == 413
    assert list_kept(api) == []
    assert api.user().put("/code/short", raw=b"").status_code == 422


def test_half_sent_code_leaves_nothing(api, project):
    digest, content = pack(project)
    messages = [
        {"type": "http.request", "body": content[:10], "more_body": True},
        {"type": "http.disconnect"},
    ]
    answered = []

    async def receive():
        return messages.pop(0)

    async def send_back(message):
        answered.append(message)

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "PUT",
        "path": f"/v1/code/{digest}",
        "raw_path": b"",
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "headers": [(b"authorization", f"Bearer {api.token()}".encode())],
        "client": ("127.0.0.1", 1),
        "server": ("cluster", 80),
    }
    asyncio.run(api.app(scope, receive, send_back))
    assert messages == []
    assert answered[0]["status"] == 400
    assert list_kept(api) == []


def test_a_team_has_a_limit_of_code(api, project, monkeypatch):
    send(api, project)
    monkeypatch.setattr(team_limits, "CODE_BYTES", len(pack(project)[1]))
    again = send(api, project)
    (project / "more.py").write_text("x = 1\n")
    digest, content = pack(project)
    refused = api.user().put(f"/code/{digest}", raw=content)
    assert refused.status_code == 409
    assert "7 days" in refused.json()["do"]
    assert list_kept(api) == [f"{again}.tar.gz"]


def test_only_some_code_arrives_at_one_time(api_over, sqlite_store, project, tmp_path):
    api = api_over(sqlite_store, home=tmp_path, settings=Settings(uploads_per_user=0))
    digest, content = pack(project)
    assert api.user().put(f"/code/{digest}", raw=content).status_code == 503


# -- as long as it is needed ---------------------------------------------------------------------------------


def delete_unneeded(api):
    with api.store.begin_write() as tx:
        api.controller.code.delete_unneeded(tx, api.clock())


def end_job(api, name):
    assert api.user("operator").post(f"/jobs/{name}/cancel").status_code == 200


def test_code_goes_a_week_after_the_last_job_that_used_it(api_over, store, tmp_path, project, make_spec):
    api = api_over(store, home=tmp_path / "home")
    digest = send(api, project)
    ada = api.user()
    assert ada.post("/jobs", make_job(make_spec, digest)).status_code == 201
    api.clock.now_s += 30 * DAY_S
    delete_unneeded(api)
    assert ada.get(f"/code/{digest}").status_code == 204
    end_job(api, "train")
    api.clock.now_s += 6.9 * DAY_S
    delete_unneeded(api)
    assert list_kept(api) == [f"{digest}.tar.gz"]
    api.clock.now_s += 0.2 * DAY_S
    delete_unneeded(api)
    with api.store.begin_read() as tx:
        assert code_rows.measure_code(tx, "vision") == 0
    assert list_kept(api) == []
    assert ada.get(f"/code/{digest}").status_code == 404


def test_a_forgotten_job_counts_from_its_end(api, project, make_spec):
    digest = send(api, project)
    assert api.user().post("/jobs", make_job(make_spec, digest)).status_code == 201
    api.clock.now_s += 30 * DAY_S
    end_job(api, "train")
    with api.store.begin_write() as tx:
        jobs.forget_job(tx, jobs.find_job(tx, "train"), api.clock())
    delete_unneeded(api)
    assert list_kept(api) == [f"{digest}.tar.gz"]


def test_code_of_two_teams_goes_with_the_last_of_them(api, project):
    digest = send(api, project)
    api.clock.now_s += 4 * DAY_S
    send(api, project, team="speech", user="eve")
    api.clock.now_s += 4 * DAY_S
    delete_unneeded(api)
    assert api.user().get(f"/code/{digest}").status_code == 404
    assert api.user(team="speech").get(f"/code/{digest}").status_code == 204


def test_the_loop_deletes_code(api_over, cluster_over, sqlite_store, project, tmp_path):
    cluster = cluster_over(sqlite_store)
    cluster.api.controller.code = cluster.loop._code = CodeFiles(tmp_path / "home")
    digest, content = pack(project)
    assert cluster.api.user().put(f"/code/{digest}", raw=content).status_code == 204
    cluster.api.clock.now_s += 8 * DAY_S
    cluster.pass_time(1)
    assert list((tmp_path / "home" / "code").iterdir()) == []


def test_a_start_removes_what_a_killed_controller_has_left(api, project):
    digest = send(api, project)
    folder = api.controller.home / "code"
    (folder / ".0123456789ab.x.partial").write_bytes(b"half")
    for name, days in (("0", 8), ("1", 6), (digest, 8)):
        path = folder / f"{name * (64 // len(name))}.tar.gz"
        path.touch()
        os.utime(path, (api.clock() - days * DAY_S,) * 2)
    with api.store.begin_read() as tx:
        api.controller.code.clean(code_rows.list_digests(tx), api.clock())
    assert list_kept(api) == sorted([f"{digest}.tar.gz", f"{'1' * 64}.tar.gz"])


def test_lost_code_counts_as_not_sent(api, project, make_spec):
    digest = send(api, project)
    (api.controller.home / "code" / f"{digest}.tar.gz").unlink()
    assert api.user().get(f"/code/{digest}").status_code == 404
    assert api.user().post("/jobs", make_job(make_spec, digest)).status_code == 422
    assert send(api, project) == digest
    assert api.user().get(f"/code/{digest}").status_code == 204


# -- for agents ----------------------------------------------------------------------------------------------


@pytest.fixture
def make_agent(api):
    """Store an agent of a job; return its id and its key."""

    def make(job):
        with api.store.begin_write() as tx:
            made = StoredAgent(
                job=job, engine="hpc", pool="a100", workers=1, devices=1, key=b"k" * 32, asked_s=api.clock()
            )
            number = agent_rows.insert_agent(tx, made).number
            return format_agent_id(agent_rows.get_cluster_id(tx), number), encode_credentials(made.key)

    return make


def test_an_agent_fetches_the_code_of_its_job(api, served, project, make_spec, make_agent, tmp_path):
    digest = send(api, project)
    assert api.user().post("/jobs", make_job(make_spec, digest)).status_code == 201
    id_, key = make_agent("train")
    with served(api) as url, ControllerConnection(url, key) as controller:
        into = tmp_path / "node" / "code"
        root = fetch_code(controller, id_, digest, into)
        assert root == into / digest
        assert (root / "train.py").read_text() == "print('trains')\n"
        assert sorted(path.name for path in into.iterdir()) == [digest, f"{digest}.files"]
        # A changed file is replaced; the right code is not fetched again.
        (root / "train.py").chmod(0o600)
        (root / "train.py").write_text("print('changed')\n")
        assert (fetch_code(controller, id_, digest, into) / "train.py").read_text() == "print('trains')\n"
        (api.controller.home / "code" / f"{digest}.tar.gz").unlink()
        assert fetch_code(controller, id_, digest, into) == root
        with pytest.raises(RequestRefused, match="there is no code"):
            fetch_code(controller, id_, "0" * 64, into)
        (tmp_path / "link").symlink_to(into)
        with pytest.raises(BadInput, match="symbolic link"):
            fetch_code(controller, id_, "0" * 64, tmp_path / "link")


def test_a_controller_that_sends_other_code_is_found(api, served, project, make_spec, make_agent, tmp_path):
    digest = send(api, project)
    assert api.user().post("/jobs", make_job(make_spec, digest)).status_code == 201
    id_, key = make_agent("train")
    with served(api) as url, ControllerConnection(url, key) as controller:
        with pytest.raises(BadInput, match="is damaged: it has the code"):
            fetch_code(controller, id_, "0" * 64, tmp_path / "node")
        assert list((tmp_path / "node").iterdir()) == []


def test_an_agent_gets_no_code_of_other_jobs(api, project, make_spec, make_agent):
    send(api, project)
    assert api.user().post("/jobs", make_spec("plain")).status_code == 201
    id_, key = make_agent("plain")
    assert api.with_secret(key).get(f"/agents/{id_}/code").status_code == 404
    assert api.user().get(f"/agents/{id_}/code").status_code == 401
