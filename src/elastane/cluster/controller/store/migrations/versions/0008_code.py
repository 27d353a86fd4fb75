"""Code that teams send for their jobs."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
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
    op.add_column("jobs", sa.Column("code", sa.Text(), server_default="", nullable=False))
    op.create_index(
        "ix_jobs_code",
        "jobs",
        ["code"],
        unique=False,
        sqlite_where=sa.text("code <> ''"),
        postgresql_where=sa.text("code <> ''"),
    )
