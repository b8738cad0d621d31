"""Alembic's environment. ``registry.schema`` hands over the connection and owns its transaction and lock."""

from __future__ import annotations

from alembic import context

from registry.tables import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    version_table=context.config.attributes["version_table"],
    render_as_batch=True,
    compare_type=True,
)
with context.begin_transaction():
    context.run_migrations()
