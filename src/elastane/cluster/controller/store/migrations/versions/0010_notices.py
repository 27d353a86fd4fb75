"""Notification targets, and their messages."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
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
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
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
