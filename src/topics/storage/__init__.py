"""Bytes on disk and in the cold tier: synchronous, and knowing nothing of HTTP or event loops."""
