"""Requests whose heads came before: no parsing, and their bodies are gathered as they come.

A client that stays sends the same head again and again. llhttp stays the judge of what is HTTP: a
head is learnt only from reads that it took as one whole plain request and nothing else, and the
same bytes at the same place mean the same again.

What differs from one request to the next is left out of what is kept, and read from each of them:
how long the body is, and the Idempotency-Key. Where only the path is another one, as when a client
goes through many topics, the rest is taken from the head that it is known by: a path of plain
characters, in that place, is a path.

Left out is also what nobody may find here, the secret of a key: a head with one is kept by its
SHA-256 digest, as keys are, and only once the application has said whose it is. Finding it again by
that digest takes the same time whatever the secret is. A connection that has sent one will send it
again: there the digest is all that is looked for.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from hashlib import sha256
from typing import Protocol, TypeAlias
from urllib.parse import unquote_to_bytes

from topics.server.http.exchange import Exchange, RequestHub
from topics.server.http.gathered_body import Parts
from topics.server.http.limits import HttpLimits
from topics.server.http.message import PENDING, Head

# Where a connection's input stands.
IDLE, HEAD, BODY = 0, 1, 2
HEADS_MAX = 1024
SAMPLES_MAX = 256
HEAD_BYTES_MAX = 1024

# A head, the length of the body after it, and its Idempotency-Key.
Known: TypeAlias = tuple[Head, int, bytes]

_LENGTH = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: ([0-9]{1,18})(?=\r\n)")
_KEY_TEXT = rb"[!-~]+"
_KEY = re.compile(rb"\r\n[Ii]dempotency-[Kk]ey: (%b)(?=\r\n)" % _KEY_TEXT)
_IS_KEY = re.compile(_KEY_TEXT).fullmatch
# What is looked for first, because that is quick, and how far from there the key is.
_KEY_SIGN, _KEY_AT = b"dempotency-", len(b"dempotency-Key: ")
# What a path may be that was not parsed: no query, nothing that is spelt or read in two ways.
_PATH = re.compile(rb"([A-Z]+ )(/[0-9A-Za-z._~/-]*)(?= HTTP/1\.1\r\n)")
# What a secret may follow.
_SECRET = b"uthorization"
# In the place of what was left out. No head that is HTTP has one.
_LEFT_OUT = b"\0"


class KnownHeads:
    """Forgotten all at once when there are too many: hot ones are back after one request.

    `exact` has what came last, byte by byte, or for what has a secret in it `sealed`, by its
    digest. `forms` has what is left of it without what differs, with digests in texts for what has
    a secret. `samples` has forms without their paths, of heads without a secret: whose key it is
    may depend on the path. Of clients that give each request another Idempotency-Key heads without
    a secret are kept as what stands in front of the key and behind it.
    """

    __slots__ = (
        "_body_bytes_max", "_head_bytes_max", "_keyed", "_path_bytes_max", "exact", "forms",
        "samples", "sealed",
    )  # fmt: skip

    def __init__(self, limits: HttpLimits) -> None:
        self.exact: dict[bytes, Known] = {}
        self.sealed: dict[bytes, Known] = {}
        self.forms: dict[bytes | str, Head] = {}
        self.samples: dict[bytes, Head] = {}
        self._keyed: dict[tuple[bytes, bytes], tuple[Head, int]] = {}
        self._path_bytes_max = limits.target_bytes_max
        self._head_bytes_max = min(HEAD_BYTES_MAX, limits.head_bytes_max)
        self._body_bytes_max = limits.body_bytes_max

    def learn(self, raw: bytes, head: Head, body_bytes: int) -> None:
        """Keeps a head that was parsed, without what differs and without a secret."""
        if len(raw) > self._head_bytes_max or _LEFT_OUT in raw:
            return
        if b"token" in unquote_to_bytes(head.query):
            return
        form, length, key = _cut(raw)
        has_secret = b"authorization" in head.headers
        if has_secret != (head.caller is not None) or (has_secret and _SECRET not in raw):
            # Nobody has said whose it is, or it is somewhere else, or it would not be noticed.
            return
        differs = {b"authorization"}
        if length >= 0:
            differs.add(b"content-length")
        if key:
            differs.add(b"idempotency-key")
        if b"idempotency-key" in head.headers.keys() - differs:
            # Spelt so that it stays in the form, which would come once.
            return
        head = head.without(differs)
        head.body_bytes = body_bytes
        self._keep(_kept(form), head)
        found = None if has_secret else _PATH.match(form)
        if found is not None:
            if len(self.samples) >= SAMPLES_MAX:
                self.samples.clear()
            self.samples[found[1] + form[found.end() :]] = head

    def _keep(self, place: bytes | str, head: Head) -> None:
        if len(self.forms) >= HEADS_MAX:
            self.forms.clear()
            self.exact.clear()
            self.sealed.clear()
        self.forms[place] = head

    def forget(self) -> None:
        """Whose secret is in a head may be another matter from now on."""
        for known in (self.exact, self.sealed, self.forms, self.samples, self._keyed):
            known.clear()

    def find(self, raw: bytes) -> Known | None:
        """A known head that is perhaps not in `exact` by its bytes, or that has a secret."""
        before, key, behind = _around_key(raw)
        keyed = self._keyed.get((before, behind)) if key else None
        if keyed is not None and _IS_KEY(key):
            return *keyed, key
        came, place = self.exact, raw
        if _SECRET in raw:
            came, place = self.sealed, sha256(raw).digest()
        known = came.get(place)
        if known is not None:
            return known
        if len(raw) > self._head_bytes_max or _LEFT_OUT in raw:
            return None
        form, body_bytes, key = _cut(raw)
        head = self.forms.get(_kept(form)) or self._elsewhere(form)
        if head is None or body_bytes > self._body_bytes_max:
            return None
        known = (head, head.body_bytes if body_bytes < 0 else body_bytes, key)
        if not key:
            if len(came) >= HEADS_MAX:
                came.clear()
            came[place] = known
        elif came is self.exact and _KEY.match(raw, len(before) - _KEY_AT - 3):
            # That is the header itself, and not something that looks like it in front of it.
            if len(self._keyed) >= SAMPLES_MAX:
                self._keyed.clear()
            self._keyed[before, behind] = known[:2]
        return known

    def _elsewhere(self, form: bytes) -> Head | None:
        """The head of a form that differs from a known one in nothing but its path."""
        found = _PATH.match(form)
        if found is None or len(found[2]) > self._path_bytes_max:
            return None
        sample = self.samples.get(found[1] + form[found.end() :])
        if sample is None:
            return None
        head = Head(sample.method, found[2], sample.headers)
        head.body_bytes, head.is_json = sample.body_bytes, sample.is_json
        self._keep(form, head)
        return head


def _around_key(raw: bytes) -> tuple[bytes, bytes, bytes]:
    """What stands in front of what may be the Idempotency-Key, that, and what stands behind it."""
    start = raw.find(_KEY_SIGN) + _KEY_AT
    end = raw.find(b"\r\n", start)
    return (
        (raw[:start], raw[start:end], raw[end:])
        if start >= _KEY_AT and end > 0
        else (raw, b"", b"")
    )


def _cut(raw: bytes) -> tuple[bytes, int, bytes]:
    """A head without what differs; its length, -1 when it has none, and its Idempotency-Key."""
    body_bytes, key = -1, b""
    found = _LENGTH.search(raw)
    if found is not None:
        body_bytes = int(found[1])
        raw = raw[: found.start(1)] + _LEFT_OUT + raw[found.end(1) :]
    if _KEY_SIGN in raw:
        found = _KEY.search(raw)
        if found is not None:
            key = found[1]
            raw = raw[: found.start(1)] + _LEFT_OUT + raw[found.end(1) :]
    return raw, body_bytes, key


def _kept(raw: bytes) -> bytes | str:
    """What a head is kept by."""
    return sha256(raw).hexdigest() if _SECRET in raw else raw


class HeadsHub(RequestHub, Protocol):
    """A server that knows the heads that came before."""

    known_heads: KnownHeads


class Repeated(Exchange):
    """The short way in."""

    __slots__ = (
        "_awaited", "_body_bytes", "_find", "_has_secret", "_known", "_learning", "_missing_bytes",
        "_parts", "_phase", "_plain_head", "_sealed", "_since",
    )  # fmt: skip

    server: HeadsHub

    def __init__(self, server: HeadsHub) -> None:
        super().__init__(server)
        self._known = server.known_heads.exact
        self._sealed = server.known_heads.sealed
        self._find = server.known_heads.find
        # The head that was found last is known by its digest.
        self._has_secret = False
        self._phase = IDLE
        # When the phase began, on the server's coarse clock.
        self._since = server.now
        self._body_bytes = 0
        # A known head whose body has not come whole yet.
        self._awaited: Known | None = None
        self._parts: bytes | Parts = b""
        self._missing_bytes = 0
        # The head of the first plain request that this read completed.
        self._plain_head: Head | None = None
        # The bytes of a head that began a read and whose body goes on in the next ones.
        self._learning = b""

    def data_received(self, data: bytes) -> None:
        """Takes a known head and its body, or a part of that; anything else is parsed."""
        if self._awaited is not None:
            self._gather(self._awaited, data)
            return
        if self._phase == IDLE and not self._is_last:
            end = data.find(b"\r\n\r\n") + 4
            raw = data[:end]
            if self._has_secret:
                known = self._sealed.get(sha256(raw).digest())
            else:
                known = self._known.get(raw)
            if known is None:
                known = self._find(raw)
                self._has_secret = (
                    known is not None and known[0].caller is not None and not known[2]
                )
            if known is not None:
                missing = known[1] - (len(data) - end)
                if missing == 0:
                    self._receive(known, data[end:])
                    return
                if missing > 0 and self._is_awaitable(known[0]):
                    self._awaited, self._missing_bytes = known, missing
                    self._parts = data[end:]
                    self._phase, self._since = BODY, self.server.now
                    self._body_bytes = 0
                    self._grew(len(data) - end)
                    return
        self._parse(data)

    @abstractmethod
    def _parse(self, data: bytes) -> None:
        """The long way in."""

    @abstractmethod
    def _is_awaitable(self, known: Head) -> bool:
        """Whether the rest of a body is worth waiting for; if not, the long way finds out why."""

    @abstractmethod
    def _grew(self, size: int) -> None:
        """A body has grown and is not whole yet."""

    def _gather(self, known: Known, data: bytes) -> None:
        missing, parts = self._missing_bytes, self._parts
        if len(data) < missing:
            if isinstance(parts, bytes):
                parts = self._parts = Parts(parts)
            parts.add(data)
            self._missing_bytes -= len(data)
            self._grew(len(data))
            return
        self._awaited, self._parts, self._phase = None, b"", IDLE
        if isinstance(parts, bytes):
            body = parts + data[:missing]
        else:
            parts.add(data[:missing])
            body = parts.joined()
        self._receive(known, body)
        if self._has_body_entered and self._backlog is None:
            self._leave_body()
        if len(data) > missing:
            self.data_received(data[missing:])

    def _receive(self, known: Known, body: bytes) -> None:
        """One whole request."""
        self._since = self.server.now
        head, _, key = known
        request = self._request(self, head, body)
        if key:
            request.own_key = key
        self._is_feeding = True
        if self._queue or self._is_paused or self._is_portioned or self._backlog is not None:
            self._line_up(request)
        else:
            answer = self._call_handler(request)
            if answer is PENDING and request.output is None and request.successor is None:
                self._queue.append(request)
            else:
                self._conclude(request, answer)
        if self._out or self._is_due:
            self._end_read()
        else:
            self._is_feeding = False

    def _learn(self, data: bytes, is_start: bool, body_bytes_before: int) -> None:
        """Learns from a read that has just been parsed."""
        head, self._plain_head = self._plain_head, None
        raw, self._learning = self._learning, b""
        if is_start:
            raw = data[: data.find(b"\r\n\r\n") + 4]
            body_bytes_before = -len(raw)
        if self._phase == BODY:
            # Kept in mind until the body is whole, if this is all there was.
            is_one = head is None and self._body_bytes == body_bytes_before + len(data)
            self._learning = raw if is_one else b""
        elif self._phase == IDLE and head is not None and raw:
            length = int(head.headers.get(b"content-length", b"0"))
            if body_bytes_before + len(data) == length:
                self.server.known_heads.learn(raw, head, length)
