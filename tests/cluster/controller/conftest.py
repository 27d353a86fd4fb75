"""Stores on both databases, and an API over them without a network."""

import asyncio
import itertools
import shutil
import threading
from contextlib import contextmanager

import httpx
import msgspec
import psycopg
import pytest
import uvicorn

from elastane.cluster.controller.rest.app import build_application
from elastane.cluster.controller.rest.context import Controller
from elastane.cluster.controller.server import configure_server
from elastane.cluster.controller.store import tokens
from elastane.cluster.controller.store.database import Store
from elastane.cluster.controller.store.tokens import compute_digest, generate_secret, generate_token_id
from elastane.cluster.nouns.controller import ControllerSettings
from elastane.cluster.nouns.jobs import ElasticPolicy, JobSpec
from elastane.cluster.nouns.plans import Plan
from elastane.cluster.nouns.tokens import NewToken
from elastane.cluster.scheduler.explanations import explain_decision
from elastane.cluster.scheduler.plan import plan
from tests.waiting import wait_until

from .postgres import NotInstalled, postgres_server
from .world import Cluster, World

NOW_S = 1_800_000_000.0


@pytest.fixture(scope="session")
def postgres():
    try:
        with postgres_server() as url:
            _create_database(url, "migrated", template="template0")
            Store(url("migrated")).close()
            yield url
    except NotInstalled as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory):
    """An SQLite store without any record; a copy costs less than the migration of an empty file."""
    path = tmp_path_factory.mktemp("migrated") / "store.db"
    Store(f"sqlite:///{path}").close()
    return path


def _create_database(url, name, template):
    with psycopg.connect(url("postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")


numbers = itertools.count(1)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.long)])
def new_url(request, tmp_path, migrated_file):
    """Build URLs of stores without records, a new one at each call, for each kind of database."""
    url = None if request.param == "sqlite" else request.getfixturevalue("postgres")

    def make():
        name = f"test{next(numbers)}"
        if url is None:
            return f"sqlite:///{shutil.copyfile(migrated_file, tmp_path / f'{name}.db')}"
        _create_database(url, name, template="migrated")
        return url(name)

    return make


@pytest.fixture
def store_url(new_url):
    return new_url()


@pytest.fixture
def store(store_url):
    opened = Store(store_url)
    yield opened
    opened.close()


@pytest.fixture
def sqlite_store(tmp_path, migrated_file):
    opened = Store(f"sqlite:///{shutil.copyfile(migrated_file, tmp_path / 'store.db')}")
    yield opened
    opened.close()


def spec(name="train", team="vision", **kwargs):
    policy = kwargs.pop("elastic_policy", ElasticPolicy(min_replicas=1, max_replicas=4))
    return JobSpec(name=name, team=team, script="/train.py", elastic_policy=policy, **kwargs)


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self):
        self.now_s = NOW_S

    def __call__(self):
        return self.now_s


class Api:
    """The API as its users see it, without a network: one token for each user."""

    def __init__(self, store, plan=lambda _: Plan(), explain=lambda *_: (), **settings):
        self.store = store
        self.clock = Clock()
        self.woken = 0
        self.controller = Controller(
            store, wake=self._wake, plan=plan, explain=explain, clock=self.clock, **settings
        )
        self.app = build_application(self.controller)

    def _wake(self):
        self.woken += 1

    def token(self, role="submitter", team="vision", user="ada"):
        secret = generate_secret()
        new = NewToken(user=user, role=role, team="" if role in {"operator", "reporter"} else team)
        with self.store.begin_write() as tx:
            tokens.insert_token(tx, generate_token_id(), compute_digest(secret), new, self.clock.now_s)
        return secret

    def user(self, role="submitter", team="vision", user="ada"):
        return User(self, self.token(role, team, user))

    def with_secret(self, secret):
        return User(self, secret)


class User:
    def __init__(self, api, token):
        self.api = api
        self.token = token

    def ask(self, method, path, body=None, *, raw=None, **headers):
        """Return the answer; errors of the application are raised here."""
        content = raw if raw is not None else msgspec.json.encode(body) if body is not None else None
        auth = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        named = {name.replace("_", "-"): value for name, value in headers.items()}

        async def asked():
            transport = httpx.ASGITransport(app=self.api.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://cluster") as client:
                return await client.request(method, f"/v1{path}", content=content, headers=auth | named)

        return asyncio.run(asked())

    def get(self, path, **headers):
        return self.ask("GET", path, **headers)

    def post(self, path, body=None, **headers):
        return self.ask("POST", path, body, **headers)

    def put(self, path, body=None, **headers):
        return self.ask("PUT", path, body, **headers)

    def delete(self, path, **headers):
        return self.ask("DELETE", path, **headers)


@pytest.fixture
def api(sqlite_store):
    return Api(sqlite_store)


@pytest.fixture
def cluster_over(tmp_path):
    """Build a controller with the real scheduler and loop over a store, in a world that its clock moves."""
    return lambda store: Cluster(Api(store, plan=plan, explain=explain_decision), World(tmp_path / "runs"))


@pytest.fixture
def cluster(cluster_over, sqlite_store):
    return cluster_over(sqlite_store)


@pytest.fixture(scope="session")
def make_spec():
    return spec


@pytest.fixture(scope="session")
def api_over():
    return Api


@contextmanager
def _served(api, port=0, **settings):
    """Serve the API on a real socket, and yield its URL."""
    config = configure_server(api.app, ControllerSettings(home="", store="", **settings))
    config.port = port
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    wait_until(lambda: server.started, "the server listens")
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"{'https' if settings.get('certificate') else 'http'}://127.0.0.1:{port}"
    finally:
        api.app.state.closing.set()
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="session")
def served():
    return _served
