"""The jars of Delta that Spark does not carry itself, fetched once into a cache of ours.

`python -m topics.spark.jars` fetches what is missing; `local()` names the files, so that a session
starts with them without any network. A file is in the cache only under its checksum: it is written
beside its place, checked, and renamed.
"""

from __future__ import annotations

import hashlib
import os
import sys
import urllib.request
from pathlib import Path

REPOSITORY = "https://repo1.maven.org/maven2"
TIMEOUT_S = 60.0

# group, artifact, version, sha256. The other jars that Delta's metadata names are among pyspark's.
JARS = (
    ("io.delta", "delta-spark_4.2_2.13", "4.4.0",
     "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead"),
    ("io.delta", "delta-storage", "4.4.0",
     "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc"),
    ("io.delta", "delta-kernel-api", "4.4.0",
     "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11"),
    ("io.delta", "delta-kernel-defaults", "4.4.0",
     "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b"),
    ("io.delta", "delta-kernel-unitycatalog", "4.4.0",
     "cea22dfb4ac562b3cd27bf652697750e8336009d73fb06631363aaaad5345ffa"),
    ("io.unitycatalog", "unitycatalog-client", "0.6.0",
     "48257499a86b801a3e2372cec55ac226ca1c1c7eabe5c118e7302f29a1fdbc19"),
    ("io.unitycatalog", "unitycatalog-hadoop", "0.6.0",
     "c47b63c961c87102b9e1d63809a0915ba4c86b7652f57c8d39ca3a05b441a150"),
)  # fmt: skip


class JarMissing(Exception):
    """A jar is not in the cache, or what the repository sent is not the one that was pinned."""


def cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "topics-log" / "jars"


def local() -> list[Path]:
    """Every jar, in the cache. Raises JarMissing when one was not fetched yet."""
    files = [cache() / name_of(artifact, version) for _, artifact, version, _ in JARS]
    for file in files:
        if not file.exists():
            raise JarMissing(f"{file} is not there yet: run python -m topics.spark.jars once")
    return files


def name_of(artifact: str, version: str) -> str:
    return f"{artifact}-{version}.jar"


def fetch() -> list[Path]:
    """Fetches what is missing and returns what it fetched. Raises JarMissing, OSError."""
    folder = cache()
    folder.mkdir(parents=True, exist_ok=True)
    fetched = []
    for group, artifact, version, sha256 in JARS:
        file = folder / name_of(artifact, version)
        if file.exists():
            continue
        path = "/".join((group.replace(".", "/"), artifact, version, file.name))
        with urllib.request.urlopen(f"{REPOSITORY}/{path}", timeout=TIMEOUT_S) as answer:
            content = answer.read()
        if hashlib.sha256(content).hexdigest() != sha256:
            raise JarMissing(f"{REPOSITORY}/{path} is not the file that was pinned")
        # Of this process alone, so that two set-ups side by side do not share a half.
        beside = file.with_suffix(f".{os.getpid()}")
        beside.write_bytes(content)
        beside.rename(file)
        fetched.append(file)
    return fetched


if __name__ == "__main__":
    for fetched in fetch():
        print(f"fetched {fetched}", file=sys.stderr)
