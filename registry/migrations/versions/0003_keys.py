"""API keys."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003_keys"
down_revision = "0002_traffic"
branch_labels = None
depends_on = None

_moment = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "api_key",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("role", sa.String(32), nullable=False),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("created_by", sa.Text, nullable=False),
        sa.Column("created_at", _moment, nullable=False),
        sa.Column("expires_at", _moment, nullable=True),
        sa.Column("revoked_at", _moment, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_key")),
        sa.UniqueConstraint("digest", name=op.f("uq_api_key_digest")),
        sa.CheckConstraint("role IN ('infer', 'operator', 'admin')", name=op.f("ck_api_key_role")),
    )


def downgrade() -> None:
    """Remove it: all keys are lost."""
    op.drop_table("api_key")
