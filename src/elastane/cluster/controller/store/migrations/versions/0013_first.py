"""The schema of 0.1.0. The revisions up to 0012 were those of builds before it."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = None

APPEND_ONLY = ("events", "decisions", "usage", "egress", "audit")
OF_JOBS = ("events", "decisions")


def upgrade() -> None:
    _create_jobs()
    _create_agents()
    _create_cluster()
    _create_history()
    _create_claims()
    _create_notifications()
    _protect_history()


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column(
            "number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("team", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("priority_class", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("wanted", sa.Text(), nullable=False),
        sa.Column("workers", sa.BigInteger(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("granted", sa.Text(), nullable=False),
        sa.Column("observed", sa.Text(), nullable=False),
        sa.Column("explained", sa.Text(), nullable=False),
        sa.Column("run_dir", sa.Text(), nullable=False),
        sa.Column("lives", sa.Integer(), nullable=False),
        sa.Column("crashes", sa.Integer(), nullable=False),
        sa.Column("resizes", sa.Integer(), nullable=False),
        sa.Column("preemptions", sa.Integer(), nullable=False),
        sa.Column("setbacks", sa.Integer(), nullable=False),
        sa.Column("promised", sa.BigInteger(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("traceback", sa.Text(), nullable=False),
        sa.Column("submitted_s", sa.Float(), nullable=False),
        sa.Column("started_s", sa.Float(), nullable=True),
        sa.Column("admitted_s", sa.Float(), nullable=True),
        sa.Column("resized_s", sa.Float(), nullable=True),
        sa.Column("ended_s", sa.Float(), nullable=True),
        sa.Column("retry_at_s", sa.Float(), nullable=False),
        sa.Column("using", sa.Text(), nullable=False),
        sa.Column("using_since_s", sa.Float(), nullable=False),
        sa.Column("spent", sa.Float(), nullable=False),
        sa.Column("active_s", sa.Float(), server_default="0", nullable=False),
        sa.Column("active_since_s", sa.Float(), nullable=True),
        sa.Column("forget_at_s", sa.Float(), nullable=True),
        sa.Column("spec_bytes", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("code", sa.Text(), server_default="", nullable=False),
        sa.Column("egress", sa.Text(), server_default="{}", nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_jobs")),
        sa.UniqueConstraint("name", name=op.f("uq_jobs_name")),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_jobs_alive",
        "jobs",
        ["number"],
        unique=False,
        sqlite_where=sa.text("ended_s IS NULL"),
        postgresql_where=sa.text("ended_s IS NULL"),
    )
    op.create_index(
        "ix_jobs_code",
        "jobs",
        ["code"],
        unique=False,
        sqlite_where=sa.text("code <> ''"),
        postgresql_where=sa.text("code <> ''"),
    )
    op.create_index(op.f("ix_jobs_forget_at_s"), "jobs", ["forget_at_s"], unique=False)
    op.create_index(op.f("ix_jobs_state_number"), "jobs", ["state", "number"], unique=False)
    op.create_index(
        op.f("ix_jobs_team_ended_s_user_spec_bytes"),
        "jobs",
        ["team", "ended_s", "user", "spec_bytes"],
        unique=False,
    )
    op.create_index(op.f("ix_jobs_team_number"), "jobs", ["team", "number"], unique=False)
    op.create_index(op.f("ix_jobs_user_number"), "jobs", ["user", "number"], unique=False)
    op.create_table(
        "forgotten",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("run_dir", sa.Text(), nullable=False),
        sa.Column("forgotten_s", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_forgotten")),
        comment="Names of forgotten jobs that may have left files.",
    )
    op.create_table(
        "code",
        sa.Column("team", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("archive_bytes", sa.BigInteger(), nullable=False),
        sa.Column("used_s", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("team", "digest", name=op.f("pk_code")),
        comment="The code that teams have sent for jobs; its archives are in the home of the controller.",
    )
    op.create_index(op.f("ix_code_digest"), "code", ["digest"], unique=False)
    op.create_index(op.f("ix_code_used_s"), "code", ["used_s"], unique=False)
    op.create_table(
        "elastic_jobs",
        sa.Column("uid", sa.Text(), nullable=False),
        sa.Column("engine", sa.Text(), nullable=False),
        sa.Column("place", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("options", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("uid", name=op.f("pk_elastic_jobs")),
        comment="Resources of Kubernetes of which jobs were made.",
    )


def _create_agents() -> None:
    op.create_table(
        "agents",
        sa.Column(
            "number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("engine", sa.Text(), nullable=False),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("workers", sa.BigInteger(), nullable=False),
        sa.Column("devices", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.LargeBinary(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("asked_s", sa.Float(), nullable=False),
        sa.Column("started_s", sa.Float(), nullable=True),
        sa.Column("arrived_s", sa.Float(), nullable=True),
        sa.Column("leave_by_s", sa.Float(), nullable=True),
        sa.Column("ended_s", sa.Float(), nullable=True),
        sa.Column("gang", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("gang_size", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("shape", sa.Text(), server_default="", nullable=False),
        sa.Column("is_replaceable", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("process", sa.Text(), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_agents")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_agents_job_ended_s"), "agents", ["job", "ended_s"], unique=False)
    op.create_index(op.f("ix_agents_ended_s"), "agents", ["ended_s"], unique=False)
    op.create_table(
        "runs",
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("beginner", sa.BigInteger(), nullable=False),
        sa.Column("answers", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("job", name=op.f("pk_runs")),
        comment="The newest attempt of each job that runs on agents.",
    )


def _create_cluster() -> None:
    op.create_table(
        "documents",
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("changed_s", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "name", name=op.f("pk_documents")),
    )
    op.create_table(
        "nodes",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("devices", sa.BigInteger(), nullable=False),
        sa.Column("wanted", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("gone_at_s", sa.Float(), nullable=True),
        sa.Column("heard_s", sa.Float(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_nodes")),
    )
    op.create_table(
        "reports",
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("about", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("reported_s", sa.Float(), nullable=False),
        sa.Column("valid_until_s", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "about", name=op.f("pk_reports")),
        comment="Reports from outside of the cluster; the newest one about each subject.",
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("team", sa.Text(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("created_s", sa.Float(), nullable=False),
        sa.Column("expires_s", sa.Float(), nullable=True),
        sa.Column("revoked_s", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.UniqueConstraint("digest", name=op.f("uq_tokens_digest")),
    )
    op.create_index(op.f("ix_tokens_team_created_s"), "tokens", ["team", "created_s"], unique=False)
    op.create_table(
        "replies",
        sa.Column("token", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("etag", sa.Text(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("time_s", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["token"], ["tokens.id"], name=op.f("fk_replies_token")),
        sa.PrimaryKeyConstraint("token", "key", name=op.f("pk_replies")),
        comment="The first answer to each idempotency key.",
    )
    op.create_index(op.f("ix_replies_time_s"), "replies", ["time_s"], unique=False)
    op.create_table(
        "turns",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("change", sa.BigInteger(), nullable=False),
        sa.Column("cluster", sa.Text(), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_turns")),
        comment="One row. Every writing transaction locks it; `change` grows with every input of a plan.",
    )


def _create_history() -> None:
    op.create_table(
        "events",
        sa.Column(
            "id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("time_s", sa.Float(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("team", sa.Text(), nullable=True),
        sa.Column("job", sa.Text(), nullable=True),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_events_job_id"), "events", ["job", "id"], unique=False)
    op.create_index(op.f("ix_events_team_id"), "events", ["team", "id"], unique=False)
    op.create_table(
        "decisions",
        sa.Column(
            "id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("time_s", sa.Float(), nullable=False),
        sa.Column("change", sa.BigInteger(), nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("decision", sa.Text(), nullable=False),
        sa.Column("sentences", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_decisions")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_decisions_job_id"), "decisions", ["job", "id"], unique=False)
    op.create_table(
        "usage",
        sa.Column(
            "id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("team", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("terms", sa.Text(), nullable=False),
        sa.Column("devices", sa.BigInteger(), nullable=False),
        sa.Column("price", sa.Float(), nullable=False),
        sa.Column("from_s", sa.Float(), nullable=False),
        sa.Column("until_s", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_usage")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_usage_team_until_s"), "usage", ["team", "until_s"], unique=False)
    op.create_index(op.f("ix_usage_until_s"), "usage", ["until_s"], unique=False)
    op.create_table(
        "egress",
        sa.Column(
            "id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("team", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("sent_bytes", sa.BigInteger(), nullable=False),
        sa.Column("price", sa.Float(), nullable=False),
        sa.Column("from_s", sa.Float(), nullable=False),
        sa.Column("until_s", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_egress")),
        sqlite_autoincrement=True,
        comment="The bytes that jobs have sent between sites. No row is ever changed.",
    )
    op.create_index(op.f("ix_egress_until_s"), "egress", ["until_s"], unique=False)
    op.create_index(op.f("ix_egress_team_until_s"), "egress", ["team", "until_s"], unique=False)
    op.create_table(
        "audit",
        sa.Column(
            "id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("time_s", sa.Float(), nullable=False),
        sa.Column("token", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("team", sa.Text(), nullable=False),
        sa.Column("allowed", sa.Integer(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("times", sa.BigInteger(), server_default="1", nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_audit_team_id"), "audit", ["team", "id"], unique=False)


def _create_claims() -> None:
    op.create_table(
        "claim_lists",
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("team", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("content_bytes", sa.BigInteger(), nullable=False),
        sa.Column("used_s", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("run", name=op.f("pk_claim_lists")),
        comment="The claim lists of runs that keep them in this store, in `claims`.",
    )
    op.create_index(op.f("ix_claim_lists_team"), "claim_lists", ["team"], unique=False)
    op.create_index(op.f("ix_claim_lists_used_s"), "claim_lists", ["used_s"], unique=False)
    op.create_table(
        "claims",
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("slot", sa.BigInteger(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("run", "slot", name=op.f("pk_claims")),
        comment="The held slots of claim lists; rows are never changed. See `elastane.run.machines.claims`.",
    )


def _create_notifications() -> None:
    op.create_table(
        "notification_targets",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("team", sa.Text(), nullable=False),
        sa.Column("occasions", sa.Text(), nullable=False),
        sa.Column("service", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("created_s", sa.Float(), nullable=False),
        sa.Column("last_event", sa.BigInteger(), nullable=False),
        sa.Column("failures", sa.BigInteger(), nullable=False),
        sa.Column("retry_at_s", sa.Float(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("sent_s", sa.Float(), nullable=True),
        sa.Column("left_out", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_notification_targets")),
        comment="Services that get messages about jobs. Their URLs are encrypted.",
    )
    op.create_table(
        "notifications",
        sa.Column(
            "id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("occasion", sa.Text(), nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("made_s", sa.Float(), nullable=False),
        sa.Column("ended_s", sa.Float(), nullable=True),
        sa.Column("batch", sa.Text(), nullable=False),
        sa.Column("again", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_notifications")),
        sa.UniqueConstraint("target", "key", name=op.f("uq_notifications_target_key")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_notifications_target_id"), "notifications", ["target", "id"], unique=False)
    op.create_index(op.f("ix_notifications_state_id"), "notifications", ["state", "id"], unique=False)


def _protect_history() -> None:
    """Make the database refuse changes and deletions in `APPEND_ONLY`.

    The history of a job may be deleted after the job itself.
    """
    job_exists = "OLD.job IS NULL OR EXISTS (SELECT 1 FROM jobs WHERE name = OLD.job)"
    if op.get_context().dialect.name == "sqlite":
        for table in APPEND_ONLY:
            refuse = f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
            if_job_exists = f"WHEN {job_exists} " if table in OF_JOBS else ""
            op.execute(f"CREATE TRIGGER {table}_no_update BEFORE UPDATE ON {table} {refuse}")
            op.execute(f"CREATE TRIGGER {table}_no_delete BEFORE DELETE ON {table} {if_job_exists}{refuse}")
            # INSERT OR REPLACE deletes a conflicting row without the trigger of DELETE. If SQLite chooses
            # the id, NEW.id is -1.
            op.execute(
                f"CREATE TRIGGER {table}_no_replace BEFORE INSERT ON {table} "  # noqa: S608 - our own names
                f"WHEN EXISTS (SELECT 1 FROM {table} WHERE id = NEW.id) {refuse}"
            )
        return
    op.execute(
        "CREATE FUNCTION append_only() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION '% is append-only', TG_TABLE_NAME; END $$"
    )
    op.execute(
        "CREATE FUNCTION history_of_jobs() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN IF {job_exists} THEN RAISE EXCEPTION '% is append-only', TG_TABLE_NAME; END IF; "
        "RETURN OLD; END $$"
    )
    for table in APPEND_ONLY:
        verbs = "UPDATE OR TRUNCATE" if table in OF_JOBS else "UPDATE OR DELETE OR TRUNCATE"
        op.execute(
            f"CREATE TRIGGER {table}_append_only BEFORE {verbs} ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION append_only()"
        )
    for table in OF_JOBS:
        op.execute(
            f"CREATE TRIGGER {table}_no_delete BEFORE DELETE ON {table} "
            "FOR EACH ROW EXECUTE FUNCTION history_of_jobs()"
        )
