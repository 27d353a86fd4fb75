"""Places of every kind for one contract suite."""

import shutil

import psycopg
import pytest

from elastane.cluster.controller.store.database import Store
from elastane.run.machines.claims.records import TermClaim, make_nonce
from tests.cluster.controller.postgres import NotInstalled, postgres_server

from .kinds import ControllerKind, DirectoryKind, ObjectStoreKind, numbers, set_s3_environment


@pytest.fixture
def path(tmp_path):
    """The directory of an empty claim list."""
    made = tmp_path / "claims"
    made.mkdir()
    return made


@pytest.fixture(scope="session")
def server():
    from .s3_server import FaultyServer

    running = FaultyServer()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def postgres():
    try:
        with postgres_server() as url:
            yield url
    except NotInstalled as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("migrated") / "store.db"
    Store(f"sqlite:///{path}").close()
    return path


@pytest.fixture
def make_s3(monkeypatch, server):
    import s3fs

    set_s3_environment(monkeypatch, server)
    # fsspec keeps them for the whole process, with the endpoint of the first test.
    s3fs.S3FileSystem.clear_instance_cache()
    return lambda: ObjectStoreKind(server)


@pytest.fixture
def controller(tmp_path, migrated_file, monkeypatch):
    monkeypatch.setenv("ELASTANE_HOME", str(tmp_path / "home"))
    path = shutil.copyfile(migrated_file, tmp_path / "store.db")
    made = ControllerKind(monkeypatch, f"sqlite:///{path}")
    yield made
    made.close()


@pytest.fixture(
    params=["directory", "s3", "controller", pytest.param("controller-postgres", marks=pytest.mark.long)]
)
def kind(request, tmp_path, monkeypatch):
    """Make a place without any slot, of each kind."""
    if request.param == "directory":
        made = DirectoryKind(tmp_path)
    elif request.param == "s3":
        made = request.getfixturevalue("make_s3")()
    elif request.param == "controller":
        made = request.getfixturevalue("controller")
    else:
        url, name = request.getfixturevalue("postgres"), f"claims{next(numbers)}"
        with psycopg.connect(url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        made = ControllerKind(monkeypatch, url(name), postgres=url)
    yield made
    made.close()


def _term(number=1, claimant="a:1", **values):
    return TermClaim(number=number, claimant=claimant, nonce=make_nonce(), time=1.8e9, **values)


@pytest.fixture(scope="session")
def term():
    return _term
