"""Aliases, the history of splits, and the audit log."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002_traffic"
down_revision = "0001_models"
branch_labels = None
depends_on = None

_moment = sa.DateTime(timezone=True)
_document = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
_counter = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Make three tables."""
    op.create_table(
        "alias",
        sa.Column("model_id", sa.Integer, nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("updated_at", _moment, nullable=False),
        sa.PrimaryKeyConstraint("model_id", "name", name=op.f("pk_alias")),
        sa.ForeignKeyConstraint(["model_id"], ["model.id"], name=op.f("fk_alias_model_id_model")),
    )
    op.create_table(
        "traffic_revision",
        sa.Column("model_id", sa.Integer, nullable=False),
        sa.Column("revision", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("document", _document, nullable=True),
        sa.Column("author", sa.Text, nullable=False),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("created_at", _moment, nullable=False),
        sa.PrimaryKeyConstraint("model_id", "revision", name=op.f("pk_traffic_revision")),
        sa.ForeignKeyConstraint(["model_id"], ["model.id"], name=op.f("fk_traffic_revision_model_id_model")),
    )
    op.create_table(
        "audit_log",
        sa.Column("id", _counter, nullable=False),
        sa.Column("at", _moment, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("before", _document, nullable=True),
        sa.Column("after", _document, nullable=True),
        sa.Column("request_id", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_log")),
    )
    op.create_index(op.f("ix_audit_log_subject"), "audit_log", ["subject"])


def downgrade() -> None:
    """Remove them, with what they hold."""
    op.drop_index(op.f("ix_audit_log_subject"), table_name="audit_log")
    op.drop_table("audit_log")
    op.drop_table("traffic_revision")
    op.drop_table("alias")
