"""`python -m topics` is the `topics` command."""

from __future__ import annotations

from topics.cli.main import main

main()
