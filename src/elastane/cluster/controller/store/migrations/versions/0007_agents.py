"""Agents that engines start on machines, and the attempts that they have begun."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.add_column("turns", sa.Column("cluster", sa.Text(), server_default="", nullable=False))
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
