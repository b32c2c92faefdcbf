"""An authority of our own for tests with TLS: clients that trust it check what it has signed."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path


class Authority:
    """A certificate authority in a directory, which signs for localhost."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.cert = directory / "ca.pem"
        self._openssl(
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
            "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=test authority",
        )  # fmt: skip

    def sign(self, name: str, serial: int) -> tuple[Path, Path]:
        """A certificate and its key."""
        (self.directory / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
        self._openssl(
            "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
            "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", "/CN=localhost",
        )  # fmt: skip
        self._openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
            "-set_serial", str(serial), "-days", "2", "-extfile", "names", "-out", f"{name}.pem",
        )  # fmt: skip
        return self.directory / f"{name}.pem", self.directory / f"{name}.key"

    def trusting(self) -> ssl.SSLContext:
        """What a client checks us with."""
        return ssl.create_default_context(cafile=str(self.cert))

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.directory, check=True, capture_output=True)
