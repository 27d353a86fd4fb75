"""The kinds of places under test: how to open, damage and interrupt each."""

import itertools
import os
import shutil
from contextlib import contextmanager

import psycopg
import pytest
from sqlalchemy import insert, select

from elastane.cluster.controller.store.claim_lists import forget_claim_list
from elastane.cluster.controller.store.database import Store
from elastane.cluster.controller.store.tables import claims
from elastane.run.machines.claims import directory
from elastane.run.machines.claims.urls import open_claim_list

from .controller_server import ControllerServer

LIST = "vision/train"
WAIT_S = 20.0
numbers = itertools.count(1)


class DirectoryKind:
    def __init__(self, tmp_path):
        self.path = tmp_path / "list"
        self.path.mkdir()
        self.url = str(self.path)

    def open(self, wait_s=WAIT_S):
        return open_claim_list(self.url, wait_s=wait_s)

    def put(self, slot, content):
        (self.path / str(slot)).write_bytes(content)

    def clear(self):
        shutil.rmtree(self.path)
        self.path.mkdir()

    @contextmanager
    def interrupt(self):
        away = self.path.with_name("away")
        self.path.rename(away)
        yield
        away.rename(self.path)

    @contextmanager
    def deny_writes(self):
        def refuse(path, content, *, mode):
            raise PermissionError(13, "Permission denied", str(path))

        # Permission bits do not count for root.
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(directory, "create_file", refuse)
            yield

    def list_names(self):
        return [entry.name for entry in self.path.iterdir()]

    def close(self):
        pass


class ObjectStoreKind:
    def __init__(self, server):
        self.server = server
        self.bucket = f"bucket{next(numbers)}"
        import boto3

        self.client = boto3.client("s3")
        self.client.create_bucket(Bucket=self.bucket)
        self.url = f"s3://{self.bucket}/runs/train"

    def open(self, wait_s=WAIT_S):
        return open_claim_list(self.url, wait_s=wait_s)

    def put(self, slot, content):
        self.client.put_object(Bucket=self.bucket, Key=f"runs/train/{slot}", Body=content)

    def clear(self):
        for entry in self.client.list_objects_v2(Bucket=self.bucket).get("Contents", ()):
            self.client.delete_object(Bucket=self.bucket, Key=entry["Key"])

    @contextmanager
    def interrupt(self):
        self.server.away = True
        yield
        self.server.away = False

    @contextmanager
    def deny_writes(self):
        self.server.denied = "/"
        yield
        self.server.denied = ""

    def list_names(self):
        found = self.client.list_objects_v2(Bucket=self.bucket).get("Contents", ())
        return [entry["Key"].removeprefix("runs/train/") for entry in found]

    def close(self):
        self.server.heal()
        self.client.close()


class ControllerKind:
    """A controller's store, over its API. On PostgreSQL an outage is one of the database."""

    def __init__(self, monkeypatch, url, postgres=None):
        self._name, self._postgres = url.partition("@/")[2].partition("?")[0], postgres
        self.store = Store(url)
        self.server = ControllerServer(self.store)
        self.url = f"{self.server.url}/{LIST}"
        monkeypatch.setenv("ELASTANE_URL", self.server.url)
        monkeypatch.setenv("ELASTANE_TOKEN", self.server.make_token())

    def open(self, wait_s=WAIT_S):
        return open_claim_list(self.url, wait_s=wait_s)

    def put(self, slot, content):
        with self.store.begin_write() as tx:
            tx.execute(insert(claims).values(run=LIST, slot=slot, content=content))

    def clear(self):
        with self.store.begin_write() as tx:
            forget_claim_list(tx, LIST)

    @contextmanager
    def interrupt(self):
        if self._postgres:
            with self._interrupt_postgres():
                yield
            return
        self.server.stop()
        yield
        self.server.start()

    @contextmanager
    def deny_writes(self):
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("ELASTANE_TOKEN", self.server.make_token("viewer"))
            yield

    def list_names(self):
        with self.store.begin_read() as tx:
            return [str(row.slot) for row in tx.execute(select(claims.c.slot))]

    @contextmanager
    def _interrupt_postgres(self):
        with psycopg.connect(self._postgres("postgres"), autocommit=True) as admin:
            admin.execute(f"ALTER DATABASE {self._name} ALLOW_CONNECTIONS false")
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (self._name,)
            )
            yield
            admin.execute(f"ALTER DATABASE {self._name} ALLOW_CONNECTIONS true")

    def close(self):
        self.server.stop()
        self.store.close()


def set_s3_environment(monkeypatch, server):
    for name, value in {
        "AWS_ENDPOINT_URL": server.url,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "2",
    }.items():
        monkeypatch.setenv(name, value)
    assert os.environ["AWS_ENDPOINT_URL"] == server.url
