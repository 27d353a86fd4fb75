"""The process of each agent, so that a ticket serves one."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.add_column("agents", sa.Column("process", sa.Text(), server_default="", nullable=False))
