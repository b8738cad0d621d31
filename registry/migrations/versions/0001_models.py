"""Models, versions and the change counter."""

from __future__ import annotations

from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001_models"
down_revision = None
branch_labels = None
depends_on = None

_moment = sa.DateTime(timezone=True)
_document = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    """Make the three tables; the counter starts at 0."""
    meta = op.create_table(
        "registry_meta",
        sa.Column("id", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("updated_at", _moment, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_registry_meta")),
        sa.CheckConstraint("id = 1", name=op.f("ck_registry_meta_singleton")),
    )
    op.create_table(
        "model",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("next_version", sa.BigInteger, nullable=False),
        sa.Column("created_at", _moment, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_model")),
        sa.UniqueConstraint("name", name=op.f("uq_model_name")),
    )
    _create_model_version()
    op.bulk_insert(meta, [{"id": 1, "revision": 0, "updated_at": datetime.now(UTC)}])


def _create_model_version() -> None:
    op.create_table(
        "model_version",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("model_id", sa.Integer, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("framework", sa.Text, nullable=False),
        sa.Column("artifact", sa.Text, nullable=False),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("source", sa.String(32), nullable=False),
        sa.Column("desired", sa.Boolean, nullable=False),
        sa.Column("config", _document, nullable=False),
        sa.Column("signature", _document, nullable=True),
        sa.Column("created_at", _moment, nullable=False),
        sa.Column("superseded_at", _moment, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_model_version")),
        sa.ForeignKeyConstraint(["model_id"], ["model.id"], name=op.f("fk_model_version_model_id_model")),
        sa.CheckConstraint("source IN ('registered', 'repository')", name=op.f("ck_model_version_source")),
        sa.CheckConstraint("number >= 1", name=op.f("ck_model_version_number_positive")),
    )
    op.create_index(
        "uq_model_version_live",
        "model_version",
        ["model_id", "number"],
        unique=True,
        sqlite_where=sa.text("superseded_at IS NULL"),
        postgresql_where=sa.text("superseded_at IS NULL"),
    )


def downgrade() -> None:
    """Remove everything."""
    op.drop_index("uq_model_version_live", table_name="model_version")
    op.drop_table("model_version")
    op.drop_table("model")
    op.drop_table("registry_meta")
