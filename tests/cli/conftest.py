"""A server for the commands that speak to one."""

from __future__ import annotations

import pytest

from tests.support.at_hand import client, server, url
from tests.support.commands import Topics

__all__ = ["client", "server", "topics", "url"]


@pytest.fixture
def topics(url: str) -> Topics:
    return Topics(url)
