"""What a server is told at its start: `TOPICS_*` variables, and flags of the same name, which win.

An unknown `TOPICS_` variable is an error: a limit that was misspelt is a limit that does not hold.
The API keys are turned into digests here, and their text is not kept.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from topics.errors import InvalidRequest
from topics.nearest import meant
from topics.server.api.auth import Keys, parse_keys, read_keys
from topics.settings import (
    EMBEDDED_FILE_BYTES,
    PREFIX,
    Settings,
    check,
    check_number,
    parse_bool,
    refused,
)
from topics.toml_file import SERVER_TABLE, read_tables, texts_of

MIB = 1024 * 1024
API_KEYS = "api_keys"
LOG_LEVELS = ("debug", "info", "warning", "error")
# Variables of other parts of topics, which may stand in the same environment.
ELSEWHERE = frozenset(
    {
        "TOPICS_URL", "TOPICS_TOKEN", "TOPICS_PROFILE", "TOPICS_LAKE", "TOPICS_BLOBS",
        "TOPICS_SPARK_MASTER", "TOPICS_RUNS_SHARDS", "TOPICS_METRICS_PORT",
    }
)  # fmt: skip

# What Kubernetes tells a container of a service that is called topics.
_SERVICE = re.compile(
    r"TOPICS_SERVICE_(HOST|PORT(_\w+)?)|TOPICS_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?"
)
# How else people say it in an environment.
_SPELLINGS = {"yes": "true", "on": "true", "no": "false", "off": "false", "": "false"}


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the server adds to the settings of the log. A cap of 0 means unlimited."""

    # Where it is.
    host: str = "127.0.0.1"
    port: int = 4000
    port_file: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    data_dir: str = "topics-data"
    # Who may come in.
    api_keys_file: str = ""
    allow_insecure_no_auth: bool = False
    probe_auth: bool = False
    cors_origins: str = ""
    # Caps on what clients can hold open.
    max_inflight_body_bytes: int = 256 * MIB
    max_unsent_bytes: int = 256 * MIB
    max_inflight_per_key: int = 1000
    max_watch_sessions: int = 10_000
    max_sse_connections: int = 10_000
    max_sse_connections_per_key: int = 1000
    max_watch_topics: int = 256
    # From how many markers in a bucket on the log says so; 0 means never.
    kv_tombstones_warn: int = 1_000_000
    # How long a session lives without a stream, and how long a stream may take nothing.
    session_ttl_ms: int = 300_000
    buffer_grace_ms: int = 5_000
    slow_consumer_timeout_ms: int = 30_000
    # The end: how long readiness is denied before the door closes, and how long answers may take.
    drain_notice_ms: int = 0
    drain_ms: int = 10_000
    # What is said of it: every request, and requests that took at least so long; 0 means none.
    log_level: str = "info"
    access_log: bool = False
    slow_request_ms: int = 0


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a server needs to start."""

    options: ServerOptions
    settings: Settings
    keys: Keys

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.options.host)

    @property
    def cors_origins(self) -> list[str]:
        return [part for part in map(str.strip, self.options.cors_origins.split(",")) if part]


def setting_fields() -> Iterator[msgspec.structs.FieldInfo]:
    """Every setting but the keys, those of the server first."""
    yield from msgspec.structs.fields(ServerOptions)
    yield from msgspec.structs.fields(Settings)


def defaults() -> dict[str, Any]:
    """Every setting with what it is when nobody sets it."""
    found = {field.name: field.default for field in setting_fields()}
    found["gc_freeze"] = True
    return {**found, API_KEYS: ""}


def read_file(path: str) -> dict[str, str]:
    """The settings in a file's table [server], by name. Raises InvalidRequest."""
    table = read_tables(path).get(SERVER_TABLE, {})
    return texts_of(f"{path}: [{SERVER_TABLE}]", table, [*defaults()])


def load(
    environment: Mapping[str, str],
    flags: Mapping[str, str | None],
    file: Mapping[str, str] | None = None,
) -> Config:
    """The config of a server. Raises InvalidRequest naming what can not be used.

    `flags` are by name of setting (`max_topics`), absent or None where they were not given, and so
    is what a `file` has. A flag wins over a variable, and that over the file.
    """
    fields = {field.name: field for field in setting_fields()}
    known = {PREFIX + name.upper() for name in (*fields, API_KEYS)} | ELSEWHERE
    environment = without_services(environment)
    for key in sorted(environment):
        if key.startswith(PREFIX) and key not in known:
            # Without what they all begin with, which would make any two of them alike.
            names = [name.removeprefix(PREFIX) for name in known]
            near = meant(key.removeprefix(PREFIX), names).replace("mean ", f"mean {PREFIX}")
            words = near or "; unset it or correct its name"
            raise InvalidRequest(f"{key} is not a setting of topics{words}")
    values: dict[str, Any] = {}

    def given(name: str) -> str | None:
        found = (flags.get(name), environment.get(PREFIX + name.upper()), (file or {}).get(name))
        return next((text for text in found if text is not None), None)

    for name, field in fields.items():
        text = given(name)
        if text is not None:
            values[name] = _value(name, text, field.type)
    mine = {field.name for field in msgspec.structs.fields(ServerOptions)}
    options = ServerOptions(**{name: value for name, value in values.items() if name in mine})
    settings = {name: value for name, value in values.items() if name not in mine}
    config = Config(
        options=options,
        settings=check(Settings(**{"gc_freeze": True, **settings})),
        keys=_keys(given(API_KEYS), options.api_keys_file),
    )
    _check(config)
    return config


def embedded(settings: Mapping[str, Any]) -> Config:
    """The config of a server without a door. `settings` are those of the log, by their names.

    Raises InvalidRequest, naming what can not be used.
    """
    known = [field.name for field in msgspec.structs.fields(Settings)]
    for name in settings:
        if name not in known:
            words = meant(name, known) or "; topics.Settings lists them"
            raise InvalidRequest(f"{name} is not a setting of the log{words}", setting=name)
    try:
        found = msgspec.convert({"wal_file_bytes": EMBEDDED_FILE_BYTES, **settings}, Settings)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"settings: {error}") from None
    return Config(options=ServerOptions(), settings=check(found), keys=parse_keys(None))


def without_services(environment: Mapping[str, str]) -> dict[str, str]:
    """What somebody has set: the rest is about services beside us, and no setting of ours."""
    return {key: text for key, text in environment.items() if not _is_service(key, text)}


def _is_service(key: str, text: str) -> bool:
    """Whether Kubernetes has set this, for a service that is called topics."""
    return bool(_SERVICE.fullmatch(key)) or (key == "TOPICS_PORT" and "://" in text)


def is_loopback(host: str) -> bool:
    """Whether an address can only be reached from this machine."""
    name = host.strip("[]")
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _value(name: str, text: str, kind: Any) -> Any:
    if kind is bool:
        word = text.strip().lower()
        found = parse_bool(_SPELLINGS.get(word, word))
        if found is None:
            raise refused(name, f"is {text!r}, neither true nor false")
        return found
    try:
        return msgspec.convert(text, kind, strict=False)
    except msgspec.ValidationError:
        raise refused(name, f"is {text!r}, not a whole number") from None


def _keys(text: str | None, path: str) -> Keys:
    if path and text is not None:
        raise refused("api_keys_file", "and TOPICS_API_KEYS are both set: unset one of them")
    try:
        return read_keys(path) if path else parse_keys(text)
    except InvalidRequest as error:
        setting = "api_keys_file" if path else API_KEYS
        raise InvalidRequest(error.message, setting=setting) from None


def _check(config: Config) -> None:
    options = config.options
    for field in msgspec.structs.fields(ServerOptions):
        name, value = field.name, getattr(options, field.name)
        if isinstance(value, int):
            check_number(name, value, is_ms=name.endswith("_ms"))
    if not options.max_watch_topics:
        raise refused("max_watch_topics", "must be at least 1")
    if options.port > 65535:
        raise refused("port", f"is {options.port}; it must be at most 65535")
    if options.log_level not in LOG_LEVELS:
        near = meant(options.log_level, LOG_LEVELS)
        why = f"is {options.log_level!r}; it must be one of {', '.join(LOG_LEVELS)}{near}"
        raise refused("log_level", why)
    if bool(options.tls_cert) != bool(options.tls_key):
        raise refused("tls_cert", "and TOPICS_TLS_KEY belong together: set both or none")
    if not options.data_dir:
        raise refused("data_dir", "is empty")
    if not config.keys and not config.is_loopback and not options.allow_insecure_no_auth:
        raise InvalidRequest(
            f"refusing to start: {options.host} can be reached from other machines and there are "
            "no API keys. Set TOPICS_API_KEYS, bind 127.0.0.1, or, in a network where everybody "
            "may do everything, set TOPICS_ALLOW_INSECURE_NO_AUTH=1"
        )
