"""Who is calling, and what may they do.

    TOPICS_API_KEYS = entry, entry, …
    entry           = secret[:scopes[:prefixes]]
    scopes          = read + write + delete + admin, or r, w, d, a, rw;  empty: all
    prefixes        = prefix | prefix | …                                empty: every name

TOPICS_API_KEYS_FILE names a file of such entries, in one line or many; a line that begins with # is
none. Its keys may change while the server runs: a key that is gone is known nowhere from then on.

Only SHA-256 digests of the secrets are kept. A presented token is hashed and compared with every
key in constant time, without stopping at a match, so that timing tells nothing about the keys.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator, Sequence
from urllib.parse import unquote_to_bytes

from topics.errors import Forbidden, InvalidRequest, Throttled, Unauthorized
from topics.server.http.message import Request
from topics.types import ConfigInput, ConfigPatch

READ, WRITE, DELETE, ADMIN = 1, 2, 4, 8
# Added to what a key has in flight when it is removed: more than it may ever have.
REMOVED = 1 << 62
ALL_SCOPES = READ | WRITE | DELETE | ADMIN
SCOPE_NAMES = {READ: "read", WRITE: "write", DELETE: "delete", ADMIN: "admin"}

_SCOPES = {
    "read": READ, "r": READ, "write": WRITE, "w": WRITE, "rw": READ | WRITE,
    "delete": DELETE, "d": DELETE, "admin": ADMIN, "a": ADMIN,
}  # fmt: skip


class Key:
    """One key: its rights, and what it holds at the moment."""

    __slots__ = ("digest", "inflight", "number", "prefixes", "scopes", "streams")

    def __init__(self, number: int, digest: bytes, scopes: int, prefixes: tuple[str, ...]) -> None:
        # Its place in the configuration: a name that is safe to log.
        self.number = number
        self.digest = digest
        self.scopes = scopes
        self.prefixes = prefixes
        # Requests and streams open now.
        self.inflight = 0
        self.streams = 0

    def may_name(self, name: str) -> bool:
        """Whether a topic or router of this name is within the key's prefixes."""
        return not self.prefixes or name.startswith(self.prefixes)

    def require_scopes(self, scopes: int) -> None:
        """Raises Forbidden naming the scope that is missing."""
        if self.scopes & scopes != scopes:
            missing = scope_names(scopes & ~self.scopes)
            raise Forbidden(f"this API key lacks the scope {' and '.join(missing)}", scopes=missing)

    def require_name(self, name: str) -> None:
        """Raises Forbidden for a name outside the prefixes."""
        if not self.may_name(name):
            raise Forbidden(f"this API key may not touch {name[:255]!r}", name=name[:255])

    def require_config(self, config: ConfigInput | ConfigPatch) -> None:
        """Raises Forbidden for a config that would write into a topic outside the prefixes."""
        if isinstance(config.dead_letter, str):
            self.require_name(config.dead_letter)

    def enter(self, inflight_max: int) -> None:
        """Raises Throttled when the key has as many requests in flight as it may.

        Raises Unauthorized for a key that was removed while somebody still knew it.
        """
        if self.inflight >= REMOVED // 2:
            raise Unauthorized("this API key is not known")
        if inflight_max and self.inflight >= inflight_max:
            raise Throttled(
                f"this API key has {inflight_max} requests in flight, the most it may have; "
                "retry when some of them are answered",
                limit="max_inflight_per_key",
                max=inflight_max,
            )


class Keys:
    """All keys of a server. Without any, everybody may do everything."""

    __slots__ = ("_keys",)

    def __init__(self, keys: Sequence[Key]) -> None:
        self._keys = tuple(keys)

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._keys)

    def replace(self, others: Keys) -> list[Key]:
        """Takes on the keys of another configuration; those that are gone, or have other rights.

        A key that stays is the same object, so that what it holds is still counted.
        """
        before = {(key.digest, key.scopes, key.prefixes): key for key in self._keys}
        kept = []
        for key in others:
            known = before.pop((key.digest, key.scopes, key.prefixes), key)
            known.number = key.number
            kept.append(known)
        self._keys = tuple(kept)
        for gone in before.values():
            gone.inflight += REMOVED
        return list(before.values())

    def find(self, token: bytes) -> Key | None:
        """The key of a token. Takes the same time whichever key it is, or none."""
        digest = hashlib.sha256(token).digest()
        found = None
        for key in self._keys:
            if hmac.compare_digest(digest, key.digest):
                found = key
        return found

    def of(self, request: Request, *, takes_query_token: bool = False) -> Key:
        """The key a request presents. Raises Unauthorized for none and for an unknown one."""
        token = bearer_token(request)
        if token is None and takes_query_token:
            token = query_token(request.query)
        if token is None:
            raise Unauthorized("this needs an API key: send Authorization: Bearer <key>")
        key = self.find(token)
        if key is None:
            raise Unauthorized("this API key is not known")
        return key


def bearer_token(request: Request) -> bytes | None:
    header = request.headers.get(b"authorization")
    if header is None:
        return None
    scheme, _, token = header.strip().partition(b" ")
    token = token.strip()
    return token if scheme.lower() == b"bearer" and token else None


def query_token(query: bytes) -> bytes | None:
    """The first `token=` of a query, form-decoded."""
    for pair in query.split(b"&"):
        name, found, value = pair.partition(b"=")
        if found and unquote_to_bytes(name.replace(b"+", b" ")) == b"token":
            return unquote_to_bytes(value.replace(b"+", b" "))
    return None


def scope_names(scopes: int) -> list[str]:
    return [name for bit, name in SCOPE_NAMES.items() if scopes & bit]


def parse_keys(text: str | None, source: str = "TOPICS_API_KEYS") -> Keys:
    """The keys of a configuration. Raises InvalidRequest for what is not exactly understood.

    None is no configuration, and no keys; a text without a key in it is a mistake, since it would
    open the server to everybody. Messages name an entry by its place, never by its content.
    """
    keys: list[Key] = []
    if text is None:
        return Keys(keys)
    entries = [entry.strip() for entry in text.split(",")]
    for number, entry in enumerate(entries, 1):
        if not entry:
            continue
        key = _parse_key(number, entry, source)
        if any(hmac.compare_digest(key.digest, other.digest) for other in keys):
            raise InvalidRequest(f"{source}: entry {number} repeats the secret of another")
        keys.append(key)
    if not keys:
        raise InvalidRequest(f"{source} is set but names no key: correct it or unset it")
    return Keys(keys)


def read_keys(path: str) -> Keys:
    """The keys of a file. Raises InvalidRequest, as `parse_keys` or where it can not be read."""
    source = "TOPICS_API_KEYS_FILE"
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError as error:
        raise InvalidRequest(f"{source} can not be read: {error.strerror}: {path}") from None
    except UnicodeDecodeError:
        raise InvalidRequest(f"{source} is not UTF-8: {path}") from None
    entries = [line for line in map(str.strip, lines) if line and not line.startswith("#")]
    return parse_keys(",".join(entries), source)


def _parse_key(number: int, entry: str, source: str) -> Key:
    secret, _, rest = entry.partition(":")
    scope_field, _, prefix_field = rest.partition(":")
    if not secret:
        raise InvalidRequest(f"{source}: entry {number} has no secret")
    scopes = 0
    for word in scope_field.split("+") if scope_field else ():
        bit = _SCOPES.get(word)
        if bit is None:
            raise InvalidRequest(
                f"{source}: entry {number} has a scope that is none of read, write, "
                "delete, admin, r, w, d, a, rw"
            )
        scopes |= bit
    prefixes = tuple(prefix_field.split("|")) if prefix_field else ()
    if not all(prefixes):
        # It would match every name.
        raise InvalidRequest(f"{source}: entry {number} has an empty prefix in its list")
    digest = hashlib.sha256(secret.encode()).digest()
    return Key(number, digest, scopes or ALL_SCOPES, prefixes)
