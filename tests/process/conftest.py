"""Tests of processes run on the event loop of the product: it starts, reaps and reads processes in its own way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

from support import children


@pytest.hookimpl
def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Part of pytest-asyncio."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
def _own_children_only() -> None:
    children.remember()
