"""What the options in front of the command say, for whoever needs it: a run has one command."""

from __future__ import annotations

# The name after --profile.
profile: str | None = None
