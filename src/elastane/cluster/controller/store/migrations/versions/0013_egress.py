"""The bytes that jobs send between sites."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("egress", sa.Text(), server_default="{}", nullable=False))
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
    _refuse_changes()


def _refuse_changes() -> None:
    """Make the database refuse changes and deletions, as in `usage`."""
    if op.get_context().dialect.name == "sqlite":
        refuse = "BEGIN SELECT RAISE(ABORT, 'egress is append-only'); END"
        op.execute(f"CREATE TRIGGER egress_no_update BEFORE UPDATE ON egress {refuse}")
        op.execute(f"CREATE TRIGGER egress_no_delete BEFORE DELETE ON egress {refuse}")
        op.execute(
            "CREATE TRIGGER egress_no_replace BEFORE INSERT ON egress "  # noqa: S608 - our own names
            f"WHEN EXISTS (SELECT 1 FROM egress WHERE id = NEW.id) {refuse}"
        )
        return
    op.execute(
        "CREATE TRIGGER egress_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON egress "
        "FOR EACH STATEMENT EXECUTE FUNCTION append_only()"
    )
