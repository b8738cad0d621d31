"""The administration API of a server, over HTTP as it is."""

from __future__ import annotations

from pathlib import Path

import httpx

from support.server import PATIENCE_S, Server


def admin_key(data: Path) -> str:
    """The key that a server keeps in its data folder."""
    return (data / "admin.key").read_text().strip()


def admin_client(server: Server, data: Path) -> httpx.Client:
    """A client with that key; paths are below ``/admin/v1``."""
    headers = {"Authorization": f"Bearer {admin_key(data)}"}
    url = f"{server.url}/admin/v1"
    return httpx.Client(base_url=url, timeout=2 * PATIENCE_S, trust_env=False, headers=headers)
