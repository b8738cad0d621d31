"""The composition root: the one place that makes stores, managers and applications and hands them to each other."""

from __future__ import annotations

import msgspec
from litestar import Litestar

from gateway.lifecycle.catalog import Catalog
from gateway.lifecycle.manager import Manager
from gateway.lifecycle.room import Room
from gateway.placement.nvml import Nvml
from gateway.rest.app import make_app
from gateway.rest.v2.app import V2App
from gateway.serving.controlplane import ControlPlane
from gateway.serving.dataplane import DataPlane
from gateway.serving.keys import ensure_admin_key
from gateway.serving.trafficplane import TrafficPlane
from gateway.settings.schema import Settings
from gateway.workers.replica import WorkerLimits
from registry.sql import SqlModelStore
from registry.store import ModelStore


class Gateway(msgspec.Struct, frozen=True):
    """Everything that a running server consists of."""

    store: ModelStore
    manager: Manager
    dataplane: DataPlane
    controlplane: ControlPlane
    v2: V2App
    app: Litestar


def build(settings: Settings) -> Gateway:
    """Make a gateway; nothing runs yet. Raises ``ConfigurationError`` if the admin key cannot be kept."""
    store = SqlModelStore(settings.database)
    catalog = Catalog()
    limits = WorkerLimits(
        load_timeout_s=settings.load_timeout_s,
        heartbeat_s=settings.heartbeat_s,
        heartbeat_timeout_s=settings.heartbeat_timeout_s,
        execution_timeout_s=settings.execution_timeout_s,
        drain_timeout_s=settings.drain_timeout_s,
        memory_bytes=settings.worker_memory_limit_bytes,
        arena_bytes=settings.arena_bytes,
        idle_trim_s=settings.idle_trim_s,
        allow_code=settings.allow_code,
    )
    interpreters = {framework: str(path) for framework, path in settings.interpreters.items()}
    manager = Manager(
        store,
        catalog,
        limits,
        interpreters,
        max_waiting=settings.max_waiting,
        strict_readiness=settings.strict_readiness,
        max_loading=settings.max_loading,
        room=Room(catalog, reserve_bytes=settings.memory_reserve_bytes, inventory=Nvml()),
    )
    dataplane = DataPlane(catalog, manager)
    controlplane = ControlPlane(store, manager)
    admin_key = ensure_admin_key(settings.admin_key_path)
    v2 = V2App(dataplane, settings.max_json_bytes, settings.max_body_bytes)
    app = make_app(controlplane, TrafficPlane(store, manager, dataplane.shadows), admin_key)
    return Gateway(store, manager, dataplane, controlplane, v2, app)
