"""TLS in the process, with clients that check the certificate against their own authority."""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from websockets.sync.client import connect

from tests.support.certificates import Authority
from tests.support.servers import Client, Served, environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not there"),
]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def served(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    cert, key = authority.sign("server", 1)
    settings = {"TOPICS_TLS_CERT": str(cert), "TOPICS_TLS_KEY": str(key)}
    with Served(tmp_path_factory.mktemp("tls"), **settings) as served:
        wait_ready(served, authority)
        yield served
        assert served.stop() == 0
    assert "listens on https://" in served.log()
    assert "Traceback" not in served.log()


def secure(served: Served, authority: Authority) -> Client:
    connection = http.client.HTTPSConnection(
        "localhost", served.port, timeout=20, context=authority.trusting()
    )
    return Client(served.port, connection=connection)


def wait_ready(served: Served, authority: Authority) -> None:
    deadline = time.monotonic() + 30
    while True:
        with secure(served, authority) as client:
            if client.get("/v0/ready").status == 200:
                return
        assert time.monotonic() < deadline
        time.sleep(0.02)


def curl(served: Served, authority: Authority, *options: str, path: str) -> list[str]:
    done = subprocess.run(
        ["curl", "-sS", "--cacert", str(authority.cert), "--max-time", "20", *options,
         "-w", "\n%{http_version} %{http_code}", f"https://localhost:{served.port}{path}"],
        capture_output=True, text=True, check=True, env=environment(),
    )  # fmt: skip
    return done.stdout.rsplit("\n", 1)[-1].split()


def test_a_python_client_writes_reads_and_keeps_its_connection(
    served: Served, authority: Authority
) -> None:
    with secure(served, authority) as client:
        for number in range(5):
            assert client.write("a", number).status in (200, 201)
        assert len(client.diff("a").json["records"]) == 5
        large = ["x" * 1000] * 3000
        assert client.write("large", *large).status == 201
        assert len(client.diff("large", limit=1000).json["records"]) == 1000


def test_a_client_that_does_not_trust_us_gets_nothing(served: Served) -> None:
    with pytest.raises(ssl.SSLError):
        http.client.HTTPSConnection(
            "localhost", served.port, timeout=20, context=ssl.create_default_context()
        ).request("GET", "/v0/health")


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not there")
@pytest.mark.parametrize(("option", "version"), [("--http1.1", "1.1"), ("--http2", "2")])
def test_curl_speaks_the_version_that_it_asks_for(
    served: Served, authority: Authority, tmp_path: Path, option: str, version: str
) -> None:
    (tmp_path / "body").write_text(json.dumps({"records": [{"data": "y" * 200_000}]}))
    headers = ("-H", "Content-Type: application/json", "-d", f"@{tmp_path / 'body'}")
    found = curl(served, authority, option, *headers, path=f"/v0/topics/curl-{version}")
    assert found == [version, "201"]


def test_a_library_with_its_own_authority(served: Served, authority: Authority) -> None:
    with httpx.Client(verify=authority.trusting()) as client:
        answer = client.get(f"https://localhost:{served.port}/v0/health")
    assert answer.json()["status"] == "ok"


def test_events_come_over_tls_and_end_with_it(served: Served, authority: Authority) -> None:
    with secure(served, authority) as client:
        client.write("events", 1)
        url = f"https://localhost:{served.port}/v0/topics/events/stream?from_seq=0"
        with (
            httpx.Client(verify=authority.trusting()) as reader,
            reader.stream("GET", url) as stream,
        ):
            lines = stream.iter_lines()
            assert any('"data":1' in line for line in lines)
            client.write("events", "next")
            assert any('"data":"next"' in line for line in lines)


def test_a_web_socket_comes_over_tls(served: Served, authority: Authority) -> None:
    url = f"wss://localhost:{served.port}/v0/ws"
    with connect(url, ssl=authority.trusting()) as peer:
        peer.send(json.dumps({"op": "publish", "topic": "ws", "records": [{"data": 1}]}))
        answer = json.loads(peer.recv(10))
    assert answer["head_seq"] == 1


def test_what_is_not_tls_or_not_http_harms_nobody(served: Served, authority: Authority) -> None:
    with socket.create_connection(("127.0.0.1", served.port)) as peer:
        peer.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        peer.settimeout(20)
        assert b"HTTP" not in peer.recv(4096)
    with (
        socket.create_connection(("127.0.0.1", served.port)) as raw,
        authority.trusting().wrap_socket(raw, server_hostname="localhost") as peer,
    ):
        peer.sendall(b"no HTTP at all\r\n\r\n")
        assert b" 400 " in peer.recv(4096)
        # We close, and do not wait for the client to do so first.
        assert peer.recv(4096) == b""
    with secure(served, authority) as client:
        assert client.get("/v0/health").status == 200


def test_a_new_certificate_is_used_after_sighup_and_a_bad_one_is_not(
    tmp_path: Path, authority: Authority
) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def use(name: str, serial: int) -> None:
        for source, target in zip(authority.sign(name, serial), (cert, key), strict=True):
            target.write_bytes(source.read_bytes())

    def serial() -> str:
        with (
            socket.create_connection(("127.0.0.1", served.port)) as raw,
            authority.trusting().wrap_socket(raw, server_hostname="localhost") as peer,
        ):
            return str((peer.getpeercert() or {})["serialNumber"])

    def signal_until(words: str) -> None:
        served.signal(signal.SIGHUP)
        deadline = time.monotonic() + 30
        while words not in served.log():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    use("first", 0x11)
    settings = {"TOPICS_TLS_CERT": str(cert), "TOPICS_TLS_KEY": str(key)}
    with Served(tmp_path, **settings) as served:
        wait_ready(served, authority)
        with secure(served, authority) as client:
            client.get("/v0/health")
            assert serial() == "11"
            key.write_text("no key")
            signal_until("the certificate stays as it was")
            assert serial() == "11"
            use("second", 0x22)
            signal_until("the certificate was read again")
            assert serial() == "22"
            assert client.get("/v0/health").status == 200, "open connections go on"
        assert served.stop() == 0


@pytest.mark.parametrize("missing", ["TOPICS_TLS_CERT", "TOPICS_TLS_KEY"])
def test_half_a_pair_is_refused(tmp_path: Path, authority: Authority, missing: str) -> None:
    cert, key = authority.sign("half", 3)
    settings = {"TOPICS_TLS_CERT": str(cert), "TOPICS_TLS_KEY": str(key)}
    settings[missing] = str(tmp_path / "missing")
    with pytest.raises(RuntimeError, match="can not be used: No such file or directory"):
        Served(tmp_path, **settings)
    del settings[missing]
    with pytest.raises(RuntimeError, match="belong together"):
        Served(tmp_path, **settings)
