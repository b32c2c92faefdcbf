"""The cold tier in a bucket: S3, Google Cloud Storage or Azure, through one client library.

The promises are those of `tiers.Store`; the provider keeps an object invisible until its upload
is complete. Retries are the client's, bounded here; a request has the client's own time limit.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import re
from collections.abc import Iterable, Iterator
from datetime import timedelta
from http import HTTPStatus
from http.client import HTTPException
from typing import TYPE_CHECKING, cast
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import from_url

from topics.errors import StorageError
from topics.storage.tiers import (
    NAME,
    SCHEME,
    Counter,
    Names,
    check_name,
    check_range,
    directory_of,
)

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import S3Store

# Objects up to this size are one request, larger ones parts of this size.
UPLOAD_PART_BYTES = 8 * 1024 * 1024
UPLOAD_PARTS_MAX = 10_000
UPLOADS_IN_FLIGHT_MAX = 4
REQUEST_SECONDS_MAX = 30
SIGNED_SECONDS = 300
RETRIES_MAX = 4
RETRY_SECONDS_MAX = 60
ERROR_TEXT_CHARS_MAX = 400

_NOT_PARTIAL = "non-partial response"
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")
# A query string of a URL may hold a signature.
_QUERY = re.compile(r"(://[^\s?\"']*)\?[^\s\"']*")


class ObjectStore:
    """Objects in a bucket: `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`.

    Credentials, region and endpoint come from the provider's usual variables (AWS_ENDPOINT_URL,
    AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ALLOW_HTTP; GOOGLE_…; AZURE_…).
    A large `put` that is interrupted leaves parts that nobody can see and the provider may bill:
    give the bucket a lifecycle rule that drops incomplete uploads.
    """

    def __init__(self, url: str) -> None:
        scheme = SCHEME.match(url)
        if scheme is None or scheme[1] not in ("s3", "gs", "az"):
            shown = _QUERY.sub(r"\1", url)
            raise StorageError(f"{shown!r} is not a store: use s3://, gs://, az:// or a directory")
        self._url = _QUERY.sub(r"\1", url)
        self._bytes_fetched = Counter()
        self._bucket_answered = False
        self._answers_ranges_with_200 = False
        try:
            self.bucket = from_url(
                url,
                retry_config={
                    "max_retries": RETRIES_MAX,
                    "retry_timeout": timedelta(seconds=RETRY_SECONDS_MAX),
                },
            )
        except BaseError as error:
            raise StorageError(f"{self._url}: {first_line(error)}", url=self._url) from None

    @property
    def bytes_fetched(self) -> int:
        return self._bytes_fetched.value

    def put(self, name: str, data_parts: Iterable[bytes]) -> None:
        check_name(name)
        parts = iter(data_parts)
        head = bytearray()
        for part in parts:
            head += part
            if len(head) > UPLOAD_PART_BYTES:
                break
        with self._errors(name):
            if len(head) <= UPLOAD_PART_BYTES:
                obstore.put(self.bucket, name, bytes(head), use_multipart=False)
                return
            obstore.put(
                self.bucket,
                name,
                _bounded(itertools.chain((bytes(head),), parts)),
                use_multipart=True,
                chunk_size=UPLOAD_PART_BYTES,
                max_concurrency=UPLOADS_IN_FLIGHT_MAX,
            )

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        check_range(name, offset, length)
        check_name(name)
        if length == 0:
            self.size(name)
            return b""
        try:
            data = self._fetch(name, offset, length)
        except FileNotFoundError:
            raise
        except OSError:
            # Servers differ on a range that passes the end: ask again for what there is.
            available = max(0, self.size(name) - offset)
            if available >= length:
                raise
            data = self._fetch(name, offset, available) if available else b""
        self._bytes_fetched.add(len(data))
        return data

    def size(self, name: str) -> int:
        check_name(name)
        with self._errors(name):
            return obstore.head(self.bucket, name)["size"]

    def exists(self, name: str) -> bool:
        try:
            self.size(name)
        except FileNotFoundError:
            return False
        return True

    def delete(self, name: str) -> None:
        check_name(name)
        with contextlib.suppress(FileNotFoundError), self._errors(name):
            obstore.delete(self.bucket, name)

    def list(self, prefix: str = "") -> Names:
        # The provider's prefix ends at a slash; the rest of ours is filtered here.
        directory = directory_of(prefix)
        with self._errors(prefix):
            pages = obstore.list(self.bucket, prefix=directory or None)
            paths = [entry["path"] for page in pages for entry in page]
        # Some endpoints list a name twice that was put twice at once.
        return sorted({path for path in paths if path.startswith(prefix) and NAME.fullmatch(path)})

    def sweep(self) -> int:
        """Nothing: a bucket shows no unfinished uploads; its lifecycle rule drops them."""
        return 0

    def _fetch(self, name: str, offset: int, length: int) -> bytes:
        if not self._answers_ranges_with_200:
            try:
                with self._errors(name):
                    options: GetOptions = {"range": (offset, offset + length)}
                    found = obstore.get(self.bucket, name, options=options)
                    data = found.bytes().to_bytes()
                    return self._checked(name, data, min(length, found.meta["size"] - offset))
            except OSError as error:
                if _NOT_PARTIAL not in str(error):
                    raise
                self._answers_ranges_with_200 = True
        return self._fetch_signed(name, offset, length)

    def _fetch_signed(self, name: str, offset: int, length: int) -> bytes:
        """A range from a server that sends it, labelled, but with status 200 instead of 206.

        The client refuses that answer and rclone gives it, so the request is signed by the client
        and made here.
        """
        with self._errors(name):
            bucket = cast("S3Store", self.bucket)
            url = obstore.sign(bucket, "GET", name, timedelta(seconds=SIGNED_SECONDS))
            request = Request(url, headers={"Range": f"bytes={offset}-{offset + length - 1}"})
            with urlopen(request, timeout=REQUEST_SECONDS_MAX) as response:
                data: bytes = response.read(length + 1)
                label = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if label is None or int(label[1]) != offset:
            detail = f"{self._url}: the server does not serve ranges of objects"
            raise OSError(errno.EIO, detail, name)
        return self._checked(name, data, min(length, int(label[2]) - offset))

    def _checked(self, name: str, data: bytes, expected: int) -> bytes:
        if len(data) != expected:
            detail = f"{self._url}: asked for {expected} bytes and got {len(data)}"
            raise OSError(errno.EIO, detail, name)
        return data

    @contextlib.contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        """Turns the client's errors into OSErrors that carry no query strings."""
        try:
            yield
        except (PermissionDeniedError, UnauthenticatedError) as error:
            raise PermissionError(errno.EACCES, self._says(error), name) from None
        except FileNotFoundError as error:
            self._require_bucket(error, name)
            raise FileNotFoundError(errno.ENOENT, f"not in {self._url}", name) from None
        except HTTPError as error:
            error.close()
            if error.code == HTTPStatus.NOT_FOUND:
                self._require_bucket(error, name)
                raise FileNotFoundError(errno.ENOENT, f"not in {self._url}", name) from None
            raise OSError(errno.EIO, self._says(error), name) from None
        except (BaseError, URLError, HTTPException) as error:
            raise OSError(errno.EIO, self._says(error), name) from None

    def _require_bucket(self, error: Exception, name: str) -> None:
        """Tells an absent object from an absent bucket, which would make every object absent."""
        if self._bucket_answered:
            return
        try:
            next(iter(obstore.list(self.bucket, chunk_size=1)), None)
        except (BaseError, OSError) as failure:
            raise OSError(errno.EIO, self._says(failure), name) from error
        self._bucket_answered = True

    def _says(self, error: Exception) -> str:
        return f"{self._url}: {first_line(error)}"


def _bounded(parts: Iterable[bytes]) -> Iterator[bytes]:
    room = UPLOAD_PART_BYTES * UPLOAD_PARTS_MAX
    for part in parts:
        room -= len(part)
        if room < 0:
            raise OSError(errno.EFBIG, f"larger than {UPLOAD_PARTS_MAX} parts")
        if part:
            yield part


def first_line(error: Exception) -> str:
    flat = " ".join(str(error).partition("\n\nDebug source")[0].split())
    return _QUERY.sub(r"\1", flat)[:ERROR_TEXT_CHARS_MAX]
