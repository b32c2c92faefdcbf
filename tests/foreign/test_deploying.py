"""The files of docs/deploying.md, in the programs that they are written for.

Ports and paths are this test's; every other line is the page's.
"""

from __future__ import annotations

import getpass
import http.client
import json
import shutil
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from tests.support.certificates import Authority
from tests.support.documents import ROOT, blocks
from tests.support.servers import Client, Served, environment

pytestmark = pytest.mark.slow
PAGE = "docs/deploying.md"
KEY = "secret"
START_S = 30.0
# Nothing comes on a stream after what is waited for, so this long means: it was held back.
HELD_BACK_S = 10.0
# What the distribution's own file has around a site. Streams ask nginx by a header not to be held
# back; without it the page's own line has to do that.
NGINX = """
daemon off;
user {user};
pid {home}/nginx.pid;
error_log {home}/error.log;
events {{}}
http {{
    access_log off;
    proxy_ignore_headers X-Accel-Buffering;
    client_body_temp_path {home}/body;
    proxy_temp_path {home}/proxy;
    {site}
}}
"""
CADDY = """
{{
    admin off
    auto_https disable_redirects
    grace_period 1s
}}
{site}
"""


def block(language: str) -> str:
    (found,) = (one.code for one in blocks(PAGE) if one.language == language)
    return found


def put(text: str, *places: tuple[str, str]) -> str:
    """The block with other ports and paths; each has to be there, once."""
    for place, ours in places:
        assert text.count(place) == 1, f"{place!r} is not once in {PAGE}"
        text = text.replace(place, ours)
    return text


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Proxied:
    """A server behind a proxy that speaks TLS."""

    def __init__(self, served: Served, authority: Authority, port: int) -> None:
        self.served, self.port = served, port
        self.context = authority.trusting()
        self.headers = {"Authorization": f"Bearer {KEY}"}

    def client(self) -> Client:
        connection = http.client.HTTPSConnection(
            "localhost", self.port, timeout=40, context=self.context
        )
        return Client(self.port, KEY, connection)

    def wait(self, process: subprocess.Popen[bytes], said: Callable[[], str]) -> None:
        deadline = time.monotonic() + START_S
        while True:
            assert process.poll() is None, said()
            try:
                with self.client() as client:
                    assert client.get("/v0/ready").status == 200
                return
            except OSError:
                assert time.monotonic() < deadline, said()
                time.sleep(0.02)


def nginx(home: Path, served: Served, authority: Authority, port: int) -> list[str]:
    cert, key = authority.sign("proxy", 1)
    site = put(
        block("nginx"),
        ("server 127.0.0.1:4000;", f"server 127.0.0.1:{served.port};"),
        ("listen 443 ssl;", f"listen 127.0.0.1:{port} ssl;"),
        ("/etc/ssl/log.example.com.pem", str(cert)),
        ("/etc/ssl/log.example.com.key", str(key)),
    )
    (home / "conf").write_text(NGINX.format(user=getpass.getuser(), home=home, site=site))
    return ["nginx", "-c", str(home / "conf"), "-p", str(home), "-e", str(home / "error.log")]


def caddy(home: Path, served: Served, authority: Authority, port: int) -> list[str]:
    cert, key = authority.sign("proxy", 1)
    site = put(
        block("caddyfile"),
        # It would ask a public authority for the certificate of a public name.
        ("log.example.com {", f"localhost:{port} {{\n    tls {cert} {key}"),
        ("127.0.0.1:4000", f"127.0.0.1:{served.port}"),
    )
    (home / "conf").write_text(CADDY.format(site=site))
    return ["caddy", "run", "--adapter", "caddyfile", "--config", str(home / "conf")]


@pytest.fixture(params=[nginx, caddy], ids=["nginx", "caddy"])
def proxied(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Proxied]:
    name = request.param.__name__
    for program in (name, "openssl"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    authority, port = Authority(tmp_path), free_port()
    with Served(tmp_path, TOPICS_API_KEYS=KEY) as served:
        served.wait_ready(KEY)
        log = tmp_path / "proxy.log"
        home = {"HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}
        with log.open("wb") as output:
            command = request.param(tmp_path, served, authority, port)
            process = subprocess.Popen(
                command, env=environment(**home), stdout=output, stderr=output
            )
        try:
            proxied = Proxied(served, authority, port)
            proxied.wait(process, log.read_text)
            yield proxied
        finally:
            process.terminate()
            process.wait(20)


def test_everything_passes_the_proxies_of_the_page(proxied: Proxied) -> None:
    """In one test, because a server, an authority and a proxy are started for it."""
    writes(proxied)
    long_polls(proxied)
    streams(proxied)
    sockets(proxied)


def writes(proxied: Proxied) -> None:
    """Over a connection that is kept, large ones too; the server's own errors come through."""
    with proxied.client() as client:
        assert [client.write("a", number).status for number in range(20)] == [201] + [200] * 19
        # Larger than what either program would keep in memory.
        assert client.write("large", *["x" * 1000] * 3000).status == 201
        assert len(client.diff("large", limit=1000).json["records"]) == 1000
        # The slash of a key, which a proxy that decodes paths would make a part of the path.
        assert client.put("/v0/kv/b/keys/a%2Fb", 7).status == 200
        assert client.get("/v0/kv/b/keys/a%2Fb").json["key"] == "a/b"
        assert client.with_token("other").get("/v0/topics/a").code == "unauthorized"


def long_polls(proxied: Proxied) -> None:
    """A read that waits is answered with the write that ends its wait."""
    found: dict[str, Any] = {}

    def wait() -> None:
        with proxied.client() as waiting:
            found.update(waiting.diff("a", from_seq=20, wait_ms=30_000).json)

    thread = threading.Thread(target=wait)
    began_s = time.monotonic()
    thread.start()
    with proxied.client() as client:
        while client.metrics()["topics_long_polls"] == 0:
            assert time.monotonic() - began_s < START_S
        client.write("a", "awaited")
    thread.join(HELD_BACK_S)
    assert [record["data"] for record in found["records"]] == ["awaited"]


def streams(proxied: Proxied) -> None:
    """Events leave the proxy as they come, while the stream is open and nothing follows them."""
    connection = http.client.HTTPSConnection(
        "localhost", proxied.port, timeout=HELD_BACK_S, context=proxied.context
    )
    connection.request("GET", "/v0/topics/a/stream?tail=true", headers=proxied.headers)
    response = connection.getresponse()
    assert response.status == 200
    with proxied.served.client(KEY) as client:
        for number in range(3):
            client.write("a", {"event": number})
            assert next_record(response)["event"] == number
    connection.close()


def next_record(response: http.client.HTTPResponse) -> Any:
    while True:
        line = response.readline()
        assert line, "the stream has ended"
        if line.startswith(b"data:") and (records := json.loads(line[5:]).get("records")):
            return records[0]["data"]


def sockets(proxied: Proxied) -> None:
    """A publish is acknowledged, and its record comes back to the subscription."""
    url = f"wss://localhost:{proxied.port}/v0/ws"
    with connect(url, ssl=proxied.context, additional_headers=proxied.headers) as socket:
        socket.send(json.dumps({"op": "subscribe", "topic": "ws-a", "tail": True}))
        assert json.loads(socket.recv(HELD_BACK_S))["code"] == "topic_not_found"
        socket.send(json.dumps({"op": "publish", "topic": "ws-a", "records": [{"data": 1}]}))
        assert json.loads(socket.recv(HELD_BACK_S))["op"] == "ack"
        socket.send(json.dumps({"op": "subscribe", "topic": "ws-a"}))
        told = [json.loads(socket.recv(HELD_BACK_S))["op"] for _ in range(3)]
        assert told == ["subscribed", "record", "caught_up"]


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """It says so of a setting that it does not know, and of a program that is not there."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    program = Path(sys.executable).with_name("topics")
    if not program.exists():
        pytest.skip("the command is not installed beside this interpreter")
    unit = put(block("ini"), ("/opt/topics/bin/topics", str(program)))
    path = tmp_path / "topics.service"
    path.write_text(unit)
    assert verified(analyze, path) == []
    path.write_text(unit.replace("TimeoutStopSec=60", "TimeoutStopSecs=60"))
    assert len(verified(analyze, path)) == 1, "it would have been passed over in silence"


def verified(analyze: str, path: Path) -> list[str]:
    """What is said of this unit, not of others that it names."""
    done = subprocess.run(
        [analyze, "verify", "--man=no", "--generators=no", str(path)],
        capture_output=True, text=True, check=False, env=environment(SYSTEMD_COLORS="0"),
    )  # fmt: skip
    return [line for line in done.stderr.splitlines() if path.name in line]


def test_the_image_copies_what_its_installation_needs(tmp_path: Path) -> None:
    """And no more: an environment of a gigabyte lies beside it in a checkout."""
    copied = [line.split()[1:] for line in block("dockerfile").splitlines() if "COPY" in line]
    for *sources, target in copied:
        place = tmp_path / target.lstrip("/")
        for source in sources:
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, place)
            else:
                place.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / source, place)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
         "--disable-pip-version-check", "-c", "src/constraints.txt", "-w", "wheels", "./src"],
        cwd=tmp_path, env=environment(), check=True, capture_output=True,
    )  # fmt: skip
    (wheel,) = (tmp_path / "wheels").iterdir()
    names = zipfile.ZipFile(wheel).namelist()
    assert {"topics/cli/main.py", "topics/server/process.py"} <= set(names)
