"""Claim lists of runs."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "claims",
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("slot", sa.BigInteger(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("run", "slot", name=op.f("pk_claims")),
        comment="The held slots of claim lists; rows are never changed. See `elastane.run.machines.claims`.",
    )
