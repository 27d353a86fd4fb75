"""Gangs: agents of which an engine starts all or none."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    for name in ("gang", "gang_size"):
        op.add_column("agents", sa.Column(name, sa.BigInteger(), server_default="0", nullable=False))
    op.add_column("agents", sa.Column("shape", sa.Text(), server_default="", nullable=False))
    op.add_column(
        "agents",
        sa.Column("is_replaceable", sa.Boolean(), server_default=sa.false(), nullable=False),
    )
