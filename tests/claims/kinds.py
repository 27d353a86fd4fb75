"""The kinds of places under test: how to open, damage and interrupt each."""

import itertools
import os
import shutil
import sqlite3
from contextlib import contextmanager

import boto3
import psycopg
from sqlalchemy import insert

from elastane.claims.claim_list import ClaimList
from elastane.claims.urls import open_claim_list
from elastane.controller.store.claims import StorePlace
from elastane.controller.store.database import Store
from elastane.controller.store.tables import claims

RUN = "train"
WAIT_S = 20.0
numbers = itertools.count(1)


def open_by_url(url, wait_s=WAIT_S):
    """Open a claim list as a process does that knows only its URL."""
    if url.startswith(("sqlite:", "postgresql:")):
        return ClaimList(StorePlace(Store(url, prepared=True), RUN), wait_s=wait_s)
    return open_claim_list(url, wait_s=wait_s)


class DirectoryKind:
    reads_while_away = False

    def __init__(self, tmp_path):
        self.path = tmp_path / "list"
        self.path.mkdir()
        self.url = str(self.path)

    def open(self, wait_s=WAIT_S):
        return open_by_url(self.url, wait_s)

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

    def close(self):
        pass


class ObjectStoreKind:
    reads_while_away = False

    def __init__(self, server):
        self.server = server
        self.bucket = f"bucket{next(numbers)}"
        self.client = boto3.client("s3")
        self.client.create_bucket(Bucket=self.bucket)
        self.url = f"s3://{self.bucket}/runs/train"

    def open(self, wait_s=WAIT_S):
        return open_by_url(self.url, wait_s)

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

    def close(self):
        self.server.heal()
        self.client.close()


class StoreKind:
    def __init__(self, url, postgres=None):
        self.url, self._postgres = url, postgres
        # SQLite has readers while another process writes for too long.
        self.reads_while_away = postgres is None
        self._stores = [Store(url)]

    def open(self, wait_s=WAIT_S):
        self._stores.append(Store(self.url, prepared=True))
        return ClaimList(StorePlace(self._stores[-1], RUN), wait_s=wait_s)

    def put(self, slot, content):
        with self._stores[0].begin_write() as tx:
            tx.execute(insert(claims).values(run=RUN, slot=slot, content=content))

    def clear(self):
        with self._stores[0].begin_write() as tx:
            tx.execute(claims.delete())

    @contextmanager
    def interrupt(self):
        with self._interrupt_postgres() if self._postgres else self._lock_sqlite():
            yield

    @contextmanager
    def _lock_sqlite(self):
        other = sqlite3.connect(self.url.removeprefix("sqlite:///"), isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")
        other.close()

    @contextmanager
    def _interrupt_postgres(self):
        name = self.url.partition("@/")[2].partition("?")[0]
        with psycopg.connect(self._postgres("postgres"), autocommit=True) as admin:
            admin.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,)
            )
            yield
            admin.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")

    def close(self):
        for store in self._stores:
            store.close()


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
