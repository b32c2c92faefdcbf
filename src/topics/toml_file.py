"""Settings in a TOML file: tables of plain values, whose names are all known."""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from typing import Any

from topics.errors import InvalidRequest
from topics.nearest import meant

SERVER_TABLE, PROFILES_TABLE = "server", "profiles"
# One file may serve both: whoever reads one table lets the other be.
TABLES = (SERVER_TABLE, PROFILES_TABLE)


def read_tables(path: str) -> dict[str, dict[str, Any]]:
    """The tables of a file, by name. Raises InvalidRequest for one that has no business there."""
    try:
        with open(path, "rb") as file:
            found = tomllib.load(file)
    except OSError as error:
        raise InvalidRequest(f"{path} can not be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path} is not TOML: {error}") from None
    for name, table in found.items():
        if name not in TABLES or not isinstance(table, dict):
            there = ", ".join(f"[{known}]" for known in TABLES)
            near = meant(name, TABLES)
            raise InvalidRequest(f"{path}: {name!r} is none of its tables, {there}{near}")
    return found


def texts_of(where: str, table: dict[str, Any], known: Collection[str]) -> dict[str, str]:
    """A table's values as an environment would have them. Raises InvalidRequest, by name.

    `where` is what the table is called in messages.
    """
    texts = {}
    for name, value in table.items():
        if name not in known:
            near = meant(name, known)
            raise InvalidRequest(f"{where}: {name!r} is not a setting of topics{near}")
        if isinstance(value, bool):
            texts[name] = str(value).lower()
        elif isinstance(value, int | str):
            texts[name] = str(value)
        else:
            raise InvalidRequest(f"{where}: {name} must be a text, a whole number, true or false")
    return texts
