"""The tables after the newest migration. A test compares them with the migrations.

Text columns hold JSON, encoded by msgspec; it is always read as a whole. Times are seconds since 1970.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# SQLite numbers rows only in a column of exactly this type.
Number = BigInteger().with_variant(Integer, "sqlite")

turns = Table(
    "turns",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("change", BigInteger, nullable=False),
    Column("cluster", Text, nullable=False, server_default=""),
    comment="One row. Every writing transaction locks it; `change` grows with every input of a plan.",
)

documents = Table(
    "documents",
    metadata,
    Column("kind", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("version", BigInteger, nullable=False),
    Column("body", Text, nullable=False),
    Column("changed_s", Float, nullable=False),
)

jobs = Table(
    "jobs",
    metadata,
    Column("number", Number, primary_key=True, autoincrement=True),
    Column("name", Text, nullable=False, unique=True),
    Column("team", Text, nullable=False),
    Column("user", Text, nullable=False),
    Column("queue", Text, nullable=False),
    Column("priority_class", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("wanted", Text, nullable=False),
    Column("workers", BigInteger, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("spec", Text, nullable=False),
    Column("granted", Text, nullable=False),
    Column("observed", Text, nullable=False),
    Column("explained", Text, nullable=False),
    Column("run_dir", Text, nullable=False),
    Column("lives", Integer, nullable=False),
    Column("crashes", Integer, nullable=False),
    Column("resizes", Integer, nullable=False),
    Column("preemptions", Integer, nullable=False),
    Column("setbacks", Integer, nullable=False),
    Column("promised", BigInteger, nullable=False),
    Column("why", Text, nullable=False),
    Column("traceback", Text, nullable=False),
    Column("submitted_s", Float, nullable=False),
    Column("started_s", Float),
    Column("admitted_s", Float),
    Column("resized_s", Float),
    Column("ended_s", Float),
    Column("retry_at_s", Float, nullable=False),
    Column("using", Text, nullable=False),
    Column("using_since_s", Float, nullable=False),
    Column("spent", Float, nullable=False),
    Column("active_s", Float, nullable=False, server_default="0"),
    Column("active_since_s", Float),
    Column("forget_at_s", Float),
    Column("spec_bytes", BigInteger, nullable=False, server_default="0"),
    Column("code", Text, nullable=False, server_default=""),
    Column("egress", Text, nullable=False, server_default="{}"),
    Index(None, "team", "number"),
    # Every transaction that adds to a team counts the team's jobs and bytes.
    Index(None, "team", "ended_s", "user", "spec_bytes"),
    Index(None, "user", "number"),
    Index(None, "state", "number"),
    Index(None, "forget_at_s"),
    # A snapshot reads the living jobs among many that have ended.
    Index(
        "ix_jobs_alive",
        "number",
        sqlite_where=text("ended_s IS NULL"),
        postgresql_where=text("ended_s IS NULL"),
    ),
    # Most jobs bring no code with them.
    Index("ix_jobs_code", "code", sqlite_where=text("code <> ''"), postgresql_where=text("code <> ''")),
    sqlite_autoincrement=True,
)

forgotten = Table(
    "forgotten",
    metadata,
    Column("name", Text, primary_key=True),
    Column("run_dir", Text, nullable=False),
    Column("forgotten_s", Float, nullable=False),
    comment="Names of forgotten jobs that may have left files.",
)

nodes = Table(
    "nodes",
    metadata,
    Column("name", Text, primary_key=True),
    Column("pool", Text, nullable=False),
    Column("devices", BigInteger, nullable=False),
    Column("wanted", Text, nullable=False),
    Column("why", Text, nullable=False),
    Column("gone_at_s", Float),
    Column("heard_s", Float, nullable=False),
    Column("version", BigInteger, nullable=False),
)

agents = Table(
    "agents",
    metadata,
    Column("number", Number, primary_key=True, autoincrement=True),
    Column("job", Text, nullable=False),
    Column("engine", Text, nullable=False),
    Column("pool", Text, nullable=False),
    Column("workers", BigInteger, nullable=False),
    Column("devices", BigInteger, nullable=False),
    Column("key", LargeBinary, nullable=False),
    Column("state", Text, nullable=False),
    Column("node", Text, nullable=False),
    Column("why", Text, nullable=False),
    Column("exit_code", Integer),
    Column("attempt", BigInteger, nullable=False),
    Column("asked_s", Float, nullable=False),
    Column("started_s", Float),
    Column("arrived_s", Float),
    Column("leave_by_s", Float),
    Column("ended_s", Float),
    Column("gang", BigInteger, nullable=False, server_default="0"),
    Column("gang_size", BigInteger, nullable=False, server_default="0"),
    Column("shape", Text, nullable=False, server_default=""),
    Column("is_replaceable", Boolean, nullable=False, server_default=false()),
    Column("process", Text, nullable=False, server_default=""),
    Index(None, "job", "ended_s"),
    Index(None, "ended_s"),
    sqlite_autoincrement=True,
)

runs = Table(
    "runs",
    metadata,
    Column("job", Text, primary_key=True),
    Column("attempt", BigInteger, nullable=False),
    Column("beginner", BigInteger, nullable=False),
    Column("answers", Integer, nullable=False),
    comment="The newest attempt of each job that runs on agents.",
)

elastic_jobs = Table(
    "elastic_jobs",
    metadata,
    Column("uid", Text, primary_key=True),
    Column("engine", Text, nullable=False),
    Column("place", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("job", Text, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("options", Text, nullable=False),
    comment="Resources of Kubernetes of which jobs were made.",
)

reports = Table(
    "reports",
    metadata,
    Column("kind", Text, primary_key=True),
    Column("about", Text, primary_key=True),
    Column("body", Text, nullable=False),
    Column("reported_s", Float, nullable=False),
    Column("valid_until_s", Float, nullable=False),
    comment="Reports from outside of the cluster; the newest one about each subject.",
)

events = Table(
    "events",
    metadata,
    Column("id", Number, primary_key=True, autoincrement=True),
    Column("time_s", Float, nullable=False),
    Column("kind", Text, nullable=False),
    Column("team", Text),
    Column("job", Text),
    Column("message", Text, nullable=False),
    Column("detail", Text, nullable=False),
    Index(None, "job", "id"),
    Index(None, "team", "id"),
    sqlite_autoincrement=True,
)

decisions = Table(
    "decisions",
    metadata,
    Column("id", Number, primary_key=True, autoincrement=True),
    Column("time_s", Float, nullable=False),
    Column("change", BigInteger, nullable=False),
    Column("job", Text, nullable=False),
    Column("decision", Text, nullable=False),
    Column("sentences", Text, nullable=False),
    Index(None, "job", "id"),
    sqlite_autoincrement=True,
)

usage = Table(
    "usage",
    metadata,
    Column("id", Number, primary_key=True, autoincrement=True),
    Column("job", Text, nullable=False),
    Column("team", Text, nullable=False),
    Column("user", Text, nullable=False),
    Column("pool", Text, nullable=False),
    Column("terms", Text, nullable=False),
    Column("devices", BigInteger, nullable=False),
    Column("price", Float, nullable=False),
    Column("from_s", Float, nullable=False),
    Column("until_s", Float, nullable=False),
    Index(None, "until_s"),
    Index(None, "team", "until_s"),
    sqlite_autoincrement=True,
)

egress = Table(
    "egress",
    metadata,
    Column("id", Number, primary_key=True, autoincrement=True),
    Column("job", Text, nullable=False),
    Column("team", Text, nullable=False),
    Column("user", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("sent_bytes", BigInteger, nullable=False),
    Column("price", Float, nullable=False),
    Column("from_s", Float, nullable=False),
    Column("until_s", Float, nullable=False),
    Index(None, "until_s"),
    Index(None, "team", "until_s"),
    sqlite_autoincrement=True,
    comment="The bytes that jobs have sent between sites. No row is ever changed.",
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", Text, primary_key=True),
    Column("digest", LargeBinary, nullable=False, unique=True),
    Column("user", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("team", Text, nullable=False),
    Column("note", Text, nullable=False),
    Column("created_s", Float, nullable=False),
    Column("expires_s", Float),
    Column("revoked_s", Float),
    Index(None, "team", "created_s"),
)

audit = Table(
    "audit",
    metadata,
    Column("id", Number, primary_key=True, autoincrement=True),
    Column("time_s", Float, nullable=False),
    Column("token", Text, nullable=False),
    Column("user", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("team", Text, nullable=False),
    Column("allowed", Integer, nullable=False),
    Column("detail", Text, nullable=False),
    Column("times", BigInteger, nullable=False, server_default="1"),
    Index(None, "team", "id"),
    sqlite_autoincrement=True,
)

replies = Table(
    "replies",
    metadata,
    Column("token", Text, ForeignKey("tokens.id"), primary_key=True),
    Column("key", Text, primary_key=True),
    Column("digest", LargeBinary, nullable=False),
    Column("status", Integer, nullable=False),
    Column("etag", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("time_s", Float, nullable=False),
    Index(None, "time_s"),
    comment="The first answer to each idempotency key.",
)

claim_lists = Table(
    "claim_lists",
    metadata,
    Column("run", Text, primary_key=True),
    Column("team", Text, nullable=False),
    Column("user", Text, nullable=False),
    Column("content_bytes", BigInteger, nullable=False),
    Column("used_s", Float, nullable=False),
    Index(None, "team"),
    Index(None, "used_s"),
    comment="The claim lists of runs that keep them in this store, in `claims`.",
)

claims = Table(
    "claims",
    metadata,
    Column("run", Text, primary_key=True),
    Column("slot", BigInteger, primary_key=True),
    Column("content", LargeBinary, nullable=False),
    comment="The held slots of claim lists; rows are never changed. See `elastane.run.machines.claims`.",
)

code = Table(
    "code",
    metadata,
    Column("team", Text, primary_key=True),
    Column("digest", Text, primary_key=True),
    Column("user", Text, nullable=False),
    Column("archive_bytes", BigInteger, nullable=False),
    Column("used_s", Float, nullable=False),
    Index(None, "digest"),
    Index(None, "used_s"),
    comment="The code that teams have sent for jobs; its archives are in the home of the controller.",
)

notification_targets = Table(
    "notification_targets",
    metadata,
    Column("id", Text, primary_key=True),
    Column("team", Text, nullable=False),
    Column("occasions", Text, nullable=False),
    Column("service", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("sealed", LargeBinary, nullable=False),
    Column("user", Text, nullable=False),
    Column("created_s", Float, nullable=False),
    Column("last_event", BigInteger, nullable=False),
    Column("failures", BigInteger, nullable=False),
    Column("retry_at_s", Float, nullable=False),
    Column("why", Text, nullable=False),
    Column("sent_s", Float),
    Column("left_out", BigInteger, nullable=False),
    comment="Services that get messages about jobs. Their URLs are encrypted.",
)

notifications = Table(
    "notifications",
    metadata,
    Column("id", Number, primary_key=True, autoincrement=True),
    Column("target", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("occasion", Text, nullable=False),
    Column("job", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("made_s", Float, nullable=False),
    Column("ended_s", Float),
    Column("batch", Text, nullable=False),
    Column("again", Integer, nullable=False),
    UniqueConstraint("target", "key"),
    Index(None, "target", "id"),
    Index(None, "state", "id"),
    sqlite_autoincrement=True,
)
