"""Columns and indices to count a team's jobs, bytes and tokens; audit lines that cover several refusals."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("spec_bytes", sa.BigInteger(), server_default="0", nullable=False))
    op.execute("UPDATE jobs SET spec_bytes = length(spec)")
    op.create_index(
        op.f("ix_jobs_team_ended_s_user_spec_bytes"),
        "jobs",
        ["team", "ended_s", "user", "spec_bytes"],
        unique=False,
    )
    op.create_index(op.f("ix_tokens_team_created_s"), "tokens", ["team", "created_s"], unique=False)
    op.add_column("audit", sa.Column("times", sa.BigInteger(), server_default="1", nullable=False))
