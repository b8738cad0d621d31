"""The registry's tables. Names, types and constraints here and in ``migrations`` agree; a test compares them."""

from __future__ import annotations

import enum
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    DateTime,
    Dialect,
    Enum,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Text,
    TypeDecorator,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from registry.keys import Role
from registry.names import MAX_NAME_LENGTH
from registry.record import Source

#: Without names of their own, constraints cannot be changed later by a migration on SQLite.
NAMING: Final = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}

#: The row of ``registry_meta``.
META_ID: Final = 1


class UtcDateTime(TypeDecorator[datetime]):
    """A moment, kept in UTC and read back with its zone; SQLite itself would drop the zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """A moment without a zone is a mistake of the caller: ``ValueError``."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value} has no time zone")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Always in UTC, whatever zone the server's session is set to."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


Document = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")


def _word_of(kind: type[enum.StrEnum], name: str) -> Enum:
    """A column of an enumeration's values, as text that is checked: no database's own type has to be migrated."""
    return Enum(
        kind,
        name=name,
        native_enum=False,
        create_constraint=True,
        length=32,
        values_callable=lambda members: [member.value for member in members],
    )


class Base(DeclarativeBase):
    """Common metadata of the registry's tables."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = {datetime: UtcDateTime}  # noqa: RUF012 - SQLAlchemy's own name and shape


class MetaRow(Base):
    """One row, the counter of committed changes. Whoever writes locks it first, so its order is the commit order."""

    __tablename__ = "registry_meta"
    __table_args__ = (CheckConstraint(f"id = {META_ID}", name="singleton"),)

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    revision: Mapped[int] = mapped_column(BigInteger)
    updated_at: Mapped[datetime]


class ModelRow(Base):
    """A name. ``next_version`` only ever grows, so that no number comes back with other content."""

    __tablename__ = "model"

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    name: Mapped[str] = mapped_column(String(MAX_NAME_LENGTH), unique=True)
    next_version: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime]


class VersionRow(Base):
    """A version. Only ``desired``, ``signature`` (once) and ``superseded_at`` (once) are ever written again.

    A row with ``superseded_at`` is history: its number may be taken again by a row with other content.
    """

    __tablename__ = "model_version"
    __table_args__ = (
        Index(
            "uq_model_version_live",
            "model_id",
            "number",
            unique=True,
            sqlite_where=text("superseded_at IS NULL"),
            postgresql_where=text("superseded_at IS NULL"),
        ),
        CheckConstraint("number >= 1", name="number_positive"),
    )

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    model_id: Mapped[int] = mapped_column(ForeignKey("model.id"))
    number: Mapped[int] = mapped_column(BigInteger)
    framework: Mapped[str] = mapped_column(Text)
    artifact: Mapped[str] = mapped_column(Text)
    path: Mapped[str] = mapped_column(Text)
    digest: Mapped[str] = mapped_column(Text)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    source: Mapped[Source] = mapped_column(_word_of(Source, "source"))
    desired: Mapped[bool]
    config: Mapped[dict[str, Any]] = mapped_column(Document)
    signature: Mapped[dict[str, Any] | None] = mapped_column(Document)
    created_at: Mapped[datetime]
    superseded_at: Mapped[datetime | None]


class AliasRow(Base):
    """A name of a version; its history is in the audit log."""

    __tablename__ = "alias"

    model_id: Mapped[int] = mapped_column(ForeignKey("model.id"), primary_key=True)
    name: Mapped[str] = mapped_column(String(MAX_NAME_LENGTH), primary_key=True)
    number: Mapped[int] = mapped_column(BigInteger)
    updated_at: Mapped[datetime]


class TrafficRow(Base):
    """A revision of a model's split, written once. ``document`` NULL: no split."""

    __tablename__ = "traffic_revision"

    model_id: Mapped[int] = mapped_column(ForeignKey("model.id"), primary_key=True)
    revision: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    document: Mapped[dict[str, Any] | None] = mapped_column(Document)
    author: Mapped[str] = mapped_column(Text)
    note: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime]


class AuditRow(Base):
    """One change, written once, in its transaction."""

    __tablename__ = "audit_log"

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True)
    at: Mapped[datetime]
    actor: Mapped[str] = mapped_column(Text)
    action: Mapped[str] = mapped_column(String(64))
    subject: Mapped[str] = mapped_column(Text, index=True)
    before: Mapped[Any | None] = mapped_column(Document)
    after: Mapped[Any | None] = mapped_column(Document)
    request_id: Mapped[str] = mapped_column(Text)


class KeyRow(Base):
    """An API key. Only ``revoked_at`` is ever written again, once."""

    __tablename__ = "api_key"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    role: Mapped[Role] = mapped_column(_word_of(Role, "role"))
    tenant: Mapped[str] = mapped_column(Text)
    note: Mapped[str] = mapped_column(Text)
    created_by: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
