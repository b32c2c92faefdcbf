"""Which server a command speaks to, and with which key: flags, profiles, variables, the default.

    --url, --token  >  --profile  >  TOPICS_URL, TOPICS_TOKEN  >  TOPICS_PROFILE, or `default`

A profile is a table `[profiles.NAME]` of `~/.config/topics/config.toml`, which may be the file of a
server too. Its key is for its server only: it is never sent to a URL that came from elsewhere.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from topics import toml_file
from topics.cli import chosen as chosen_options
from topics.client.options import URL_DEFAULT
from topics.errors import InvalidRequest

FIELDS = ("url", "token", "ca_file")
DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Found:
    """A value, and where it came from."""

    value: str
    source: str = DEFAULT


@dataclass(frozen=True, slots=True)
class Target:
    """What a client of the command line is made with."""

    url: Found
    token: Found
    ca_file: Found
    profile: Found
    # All that the file has.
    profiles: tuple[str, ...]


def config_file() -> Path:
    """Where the profiles of this user are."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "topics" / "config.toml"


def target(url: str | None, token: str | None) -> Target:
    """The server that is meant; arguments are flags. Raises InvalidRequest for a bad file."""
    file, profile = config_file(), chosen_options.profile
    profiles = _read(file)
    chosen = _chosen(profile, profiles, file)
    fields = profiles[chosen.value] if chosen.value else {}
    of_profile = f"profile {chosen.value} of {file}"
    here, key = os.environ.get("TOPICS_URL"), os.environ.get("TOPICS_TOKEN")
    is_of_profile = url is None and "url" in fields and (profile is not None or not here)
    if url is not None:
        place = Found(url, "--url")
    elif is_of_profile:
        place = Found(fields["url"], of_profile)
    else:
        place = Found(here, "TOPICS_URL") if here else Found(URL_DEFAULT)
    if token is not None:
        secret = Found(token, "--token")
    elif is_of_profile and "token" in fields and (profile is not None or key is None):
        secret = Found(fields["token"], of_profile)
    else:
        secret = Found("") if key is None else Found(key, "TOPICS_TOKEN")
    authority = Found("")
    if is_of_profile and "ca_file" in fields:
        authority = Found(os.path.expanduser(fields["ca_file"]), of_profile)
    return Target(place, secret, authority, chosen, tuple(profiles))


def _read(file: Path) -> dict[str, dict[str, str]]:
    if not file.exists():
        return {}
    tables = toml_file.read_tables(str(file)).get(toml_file.PROFILES_TABLE, {})
    found = {}
    for name, table in tables.items():
        where = f"{file}, profile {name}"
        if not isinstance(table, dict):
            raise InvalidRequest(f"{where}: it is a table, [profiles.{name}]")
        found[name] = toml_file.texts_of(where, table, FIELDS)
    return found


def _chosen(flag: str | None, profiles: dict[str, dict[str, str]], file: Path) -> Found:
    variable = os.environ.get("TOPICS_PROFILE")
    if flag is not None:
        chosen = Found(flag, "--profile")
    elif variable:
        chosen = Found(variable, "TOPICS_PROFILE")
    else:
        return Found(DEFAULT, str(file)) if DEFAULT in profiles else Found("")
    if chosen.value not in profiles:
        known = f"it has {', '.join(profiles)}" if profiles else "it has none"
        raise InvalidRequest(f"there is no profile {chosen.value!r} in {file}; {known}")
    return chosen
