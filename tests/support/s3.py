"""A real S3 endpoint on loopback for tests: `rclone serve s3` over a temporary directory."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import obstore
from obstore.store import S3Store

START_SECONDS_MAX = 20
STOP_SECONDS_MAX = 5
# A port found free may be taken before rclone binds it.
START_ATTEMPTS_MAX = 3
# rclone refuses access keys of only a few characters.
ACCESS_KEY = "topics-test-key"
SECRET_KEY = "topics-test-secret"


class S3Server:
    """Serves `tmp_path/s3` while its `with` block runs; `stop` and `start` simulate an outage."""

    def __init__(self, tmp_path: Path) -> None:
        self.root = tmp_path / "s3"
        self.port = 0
        self._log_path = tmp_path / "rclone.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def env(self) -> dict[str, str]:
        """The variables a client needs to reach this server."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    def url(self, bucket: str) -> str:
        """The URL of `bucket` (`bucket/prefix` works too), which is created if it is absent."""
        # Created by request: rclone does not notice a directory that is made behind its back.
        self._create(bucket.partition("/")[0])
        return f"s3://{bucket}"

    def store(self, bucket: str) -> S3Store:
        return S3Store(
            bucket,
            endpoint=self.env["AWS_ENDPOINT_URL"],
            access_key_id=ACCESS_KEY,
            secret_access_key=SECRET_KEY,
            region="us-east-1",
            client_options={"allow_http": True},
        )

    def _create(self, bucket: str) -> None:
        url = obstore.sign(self.store(bucket), "PUT", "", timedelta(minutes=1))
        try:
            urlopen(Request(url, method="PUT", data=b""), timeout=START_SECONDS_MAX).close()
        except HTTPError as error:
            error.close()
            if error.code != HTTPStatus.CONFLICT:
                raise

    @contextlib.contextmanager
    def environment(self) -> Iterator[None]:
        """Puts `env` into this process, and takes every other AWS_ variable out, for a while."""
        saved = {key: value for key, value in os.environ.items() if key.startswith("AWS_")}
        for key in saved:
            del os.environ[key]
        os.environ.update(self.env)
        try:
            yield
        finally:
            for key in [key for key in os.environ if key.startswith("AWS_")]:
                del os.environ[key]
            os.environ.update(saved)

    def __enter__(self) -> S3Server:
        self.root.mkdir(parents=True, exist_ok=True)
        for _ in range(START_ATTEMPTS_MAX):
            self.port = _free_port()
            if self.start():
                return self
        raise RuntimeError(f"rclone did not start:\n{self._log_path.read_text()}")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> bool:
        """Starts on `self.port`; False when the process ended or never listened."""
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    _rclone(), "serve", "s3", "--config", "/dev/null",
                    "--auth-key", f"{ACCESS_KEY},{SECRET_KEY}",
                    "--addr", f"127.0.0.1:{self.port}",
                    str(self.root),
                ],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return True
            time.sleep(0.02)
        self.stop()
        return False

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None


def _rclone() -> str:
    directories = [sysconfig.get_path("scripts"), str(Path(sys.executable).parent)]
    found = shutil.which("rclone", path=os.pathsep.join(directories)) or shutil.which("rclone")
    if found is None:
        raise RuntimeError("rclone is not installed: it comes with the extra `dev` (make setup)")
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
