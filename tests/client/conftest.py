"""A real server for the client's tests."""

from tests.support.at_hand import client, server, url

__all__ = ["client", "server", "url"]
