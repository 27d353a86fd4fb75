"""The owners, sizes and last uses of claim lists."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
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
