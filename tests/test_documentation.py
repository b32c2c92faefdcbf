"""Every block of code in README.md and docs/ is run, in the order of its page, or says why not.

A page has a server of its own, on the port where it says 4000. Blocks of the same language go on
with what those before them have made.
"""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.commands import here
from tests.support.documents import INDENTED, ROOT, Block, Desk, blocks, pages
from tests.support.servers import environment, inside
from topics.server.config import ELSEWHERE, defaults

# Drawings, bytes, usage lines: nothing that could run.
TEXT = {"", "text", "mermaid"}
# Their blocks need a JVM, and are run beside the other tests that have one.
WITH_SPARK = {"docs/spark.md", "docs/spark-tour.md"}
# These start a JVM, or need what one has made: here they are held to the flags they take.
WITH_JVM = re.compile(r"(topics (lake|erase) .*\n)+")
# Blocks that are not run here, by their first line, and who does it instead.
NOT_RUN = {
    ("README.md", "make run    # install what the server needs, and start it"): "test_makefile.py",
    ("docs/deploying.md", "kubectl apply -f topics.yaml"): "needs a cluster; its file is checked",
    ("docs/cli.md", "topics kv follow http://primary:4000 profiles --into profiles"): "test_kv.py",
    ("docs/cli.md", "topics backup s3://backups/orders"): "needs a bucket",
    ("docs/cli.md", "topics restore s3://backups/orders --to ./data --at 2026-11-16T15:00:00Z"): ""
    "needs a bucket",
}
# What a page takes for granted.
BEFORE = {
    "docs/cli.md": """
        topics topic create orders --durability fsync --ttl 30d
        for name in payments scratch; do topics topic create $name; done
        seq 20 | topics queue produce mails
        printf '#!/bin/sh\\ncat\\n' > send-mail
        chmod +x send-mail
    """,
    # A server that was stopped.
    "docs/upgrading.md": """
        topics serve --data-dir ./data
        kill $(cat serving.pids)
        while kill -0 $(cat serving.pids); do sleep 0.1; done
    """,
}
# An example of one command may find nothing to do, or a directory that the server of another has:
# its words are what is held to the command.
CODES = {"docs/cli.md": {0, 1, 3}}
# One command that ends by itself.
PLAIN = re.compile(r"topics (?!serve|tail -f|top |queue work)[^|&;<>$\\\n]*\n")
# Set by Kubernetes, and for the command that works through a queue.
NO_SETTINGS = {"TOPICS_SERVICE_HOST", "TOPICS_JOB_SEQ", "TOPICS_JOB_DELIVERIES"}
ALL = pages()
SETTINGS = {f"TOPICS_{name.upper()}" for name in defaults()} | ELSEWHERE


class Page:
    """Runs the blocks of one page."""

    def __init__(self, page: str, path: Path, port: int) -> None:
        self.page = page
        self.desk = Desk(path, port)
        self.scope: dict[str, Any] = {"__name__": "example", "path": str(path / "embedded")}

    def sh(self, block: Block) -> None:
        if WITH_JVM.fullmatch(block.code):
            for line in block.code.splitlines():
                self._takes(shlex.split(line, comments=True))
            return
        if PLAIN.fullmatch(block.code):
            # A process for each would take minutes.
            words = shlex.split(self.desk.here(block.code))
            done = here(*words[1:], environment=self.desk.environment)
        else:
            done = self.desk.shell(block.code)
        said = f"{block.place}: {done.stderr or done.stdout}"
        assert done.returncode in CODES.get(self.page, {0}), said
        assert "Traceback" not in done.stderr, said
        assert '"error":' not in done.stdout, said

    def python(self, block: Block) -> None:
        if "pytest_plugins" in block.code:
            self._pytest(block)
            return
        code = self.desk.here(block.code)
        # Its lines are those of the page, for whoever reads the traceback.
        exec(compile("\n" * block.line + code, block.page, "exec"), self.scope)

    def _pytest(self, block: Block) -> None:
        (self.desk.path / "test_example.py").write_text(block.code)
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_example.py"],
            cwd=self.desk.path, env=environment(), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout

    def js(self, block: Block) -> None:
        node = shutil.which("node")
        if node is None:
            pytest.skip("Node is not installed")
        script = self.desk.path / "example.mjs"
        script.write_text(self.desk.here(block.code))
        done = subprocess.run([node, script], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{block.place}: {done.stderr}"

    def json(self, block: Block) -> None:
        """One value, or several under each other."""
        decoder, rest = json.JSONDecoder(), block.code.strip()
        while rest:
            rest = rest[decoder.raw_decode(rest)[1] :].lstrip()

    def toml(self, block: Block) -> None:
        tomllib.loads(block.code)

    def yaml(self, block: Block) -> None:
        assert all(isinstance(part, dict) for part in yaml.safe_load_all(block.code))

    def ini(self, block: Block) -> None:
        unit = configparser.RawConfigParser(strict=False)
        unit.optionxform = str  # type: ignore[assignment, method-assign]
        unit.read_string(block.code)
        self._takes(shlex.split(unit["Service"]["ExecStart"]))

    def dockerfile(self, block: Block) -> None:
        words = [line.split()[0] for line in block.code.replace("\\\n", " ").splitlines() if line]
        assert {"FROM", "CMD"} <= set(words) <= {
            "FROM", "COPY", "RUN", "USER", "VOLUME", "EXPOSE", "ENV", "CMD",
        }  # fmt: skip
        self._takes(json.loads(block.code.rpartition("CMD ")[2]))

    def _takes(self, command: list[str]) -> None:
        """The command knows the flags; help is shown only if it does."""
        assert command[0].rpartition("/")[2] == "topics"
        done = here(*command[1:], "--help", environment=environment())
        assert done.returncode == 0, done.stderr

    def nginx(self, block: Block) -> None:
        _braced(block)
        lines = [line.partition("#")[0].strip() for line in block.code.splitlines()]
        assert all(line[-1] in ";{}" for line in lines if line), block.place

    def caddyfile(self, block: Block) -> None:
        _braced(block)


def _braced(block: Block) -> None:
    depth = 0
    for character in re.sub(r"[^{}]", "", block.code):
        depth += 1 if character == "{" else -1
        assert depth >= 0, block.place
    assert depth == 0, block.place


def _run(block: Block) -> Callable[[Page, Block], None] | None:
    return getattr(Page, block.language, None) if block.language not in TEXT else None


@pytest.fixture
def page(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Page]:
    with inside(tmp_path / "served") as server:
        page = Page(request.param, tmp_path / "desk", server.port)
        try:
            yield page
        finally:
            page.desk.close()


def _slow(page: str) -> Any:
    is_slow = any(one.language == "sh" or "pytest_plugins" in one.code for one in blocks(page))
    return pytest.param(page, marks=pytest.mark.slow if is_slow else ())


@pytest.mark.parametrize(
    "page", [_slow(one) for one in ALL if one not in WITH_SPARK], indirect=True
)
def test_every_block_runs(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(page.desk.path)
    if page.page in BEFORE:
        done = page.desk.shell(BEFORE[page.page])
        assert done.returncode == 0, done.stderr
    for block in blocks(page.page):
        if block.language in TEXT or (page.page, block.first_line) in NOT_RUN:
            continue
        run = _run(block)
        assert run is not None, f"{block.place}: nothing here runs {block.language!r}"
        run(page, block)


def test_what_is_not_run_is_there() -> None:
    """And what should do it instead is."""
    found = {(page, block.first_line) for page in ALL for block in blocks(page)}
    assert NOT_RUN.keys() <= found
    for page in WITH_SPARK & set(ALL):
        assert blocks(page)
        assert Path(page).name in (ROOT / "tests/spark/test_documentation.py").read_text()


@pytest.mark.parametrize("page", ALL)
def test_code_stands_between_fences(page: str) -> None:
    """Nothing is code by its indentation alone: it would be run by nobody."""
    text = (ROOT / page).read_text()
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    lists = re.compile(r"^ *([-*]|\d+\.) .*(\n( +.*)?)*", re.MULTILINE)
    assert not INDENTED.findall(lists.sub("", prose))


@pytest.mark.parametrize("page", ALL)
def test_every_setting_that_is_named_is_one(page: str) -> None:
    text = (ROOT / page).read_text()
    named = set(re.findall(r"\bTOPICS_[A-Z][A-Z_]*[A-Z]\b", text))
    assert named <= SETTINGS | NO_SETTINGS
