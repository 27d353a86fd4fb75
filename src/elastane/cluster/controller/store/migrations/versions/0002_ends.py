"""The running time of jobs, and the names of forgotten jobs."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

OF_JOBS = ("events", "decisions")


def upgrade() -> None:
    op.add_column("jobs", sa.Column("active_s", sa.Float(), server_default="0", nullable=False))
    op.add_column("jobs", sa.Column("active_since_s", sa.Float()))
    op.add_column("jobs", sa.Column("forget_at_s", sa.Float()))
    op.create_index(op.f("ix_jobs_forget_at_s"), "jobs", ["forget_at_s"], unique=False)
    op.execute("UPDATE jobs SET active_since_s = using_since_s WHERE \"using\" <> '[]'")
    op.create_table(
        "forgotten",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("run_dir", sa.Text(), nullable=False),
        sa.Column("forgotten_s", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_forgotten")),
        comment="Names of forgotten jobs that may have left files.",
    )
    _allow_deletion_with_job()


def _allow_deletion_with_job() -> None:
    """Allow deletions of a job's history after the job itself is deleted. Changes stay forbidden."""
    there_is = "OLD.job IS NULL OR EXISTS (SELECT 1 FROM jobs WHERE name = OLD.job)"
    if op.get_context().dialect.name == "sqlite":
        for table in OF_JOBS:
            op.execute(f"DROP TRIGGER {table}_no_delete")
            op.execute(
                f"CREATE TRIGGER {table}_no_delete BEFORE DELETE ON {table} WHEN {there_is} "
                f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
            )
        return
    op.execute(
        "CREATE FUNCTION history_of_jobs() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN IF {there_is} THEN RAISE EXCEPTION '% is append-only', TG_TABLE_NAME; END IF; "
        "RETURN OLD; END $$"
    )
    for table in OF_JOBS:
        op.execute(f"DROP TRIGGER {table}_append_only ON {table}")
        op.execute(
            f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION append_only()"
        )
        op.execute(
            f"CREATE TRIGGER {table}_no_delete BEFORE DELETE ON {table} "
            "FOR EACH ROW EXECUTE FUNCTION history_of_jobs()"
        )
