"""Single writes as people send them, each as a share of the plainest one's rate.

One server without keys and one with: the shapes take turns on them, so that whatever else the
machine does hits all alike, and the best round of each counts. Beside each rate stands what a
write cost the server's process, which a busy machine disturbs less: where the two shares differ,
the machine was not quiet enough for the first.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench.bodies import DATA
from bench.peers import wrk
from bench.report import Report
from tests.support.servers import Served

CONNECTIONS = 32
ROUNDS = 7
SECONDS = 1
TOKEN = "a-secret-of-some-length-0123456789"
# In a body or a header: another text in every request.
FRESH = "{fresh-of-16-ch}"

_CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Shape:
    name: str
    # The least share of the plain rate.
    target: str = ""
    fields: str = ""
    options: str = ""
    query: str = ""
    headers: tuple[str, ...] = ()
    has_key: bool = False

    def body(self) -> bytes:
        return f'{{"records":[{{"data":{DATA}{self.fields}}}]{self.options}}}'.encode()


TAG_AND_NODE = ',"tag":"customer-17","node":"web-3"'
PLAIN = Shape("plain")
SHAPES = (
    PLAIN,
    Shape("return_seqs=false", "≥ 0.95", query="?return_seqs=false"),
    Shape("with an API key", "≥ 0.9", has_key=True),
    Shape("with tag and node", "≥ 0.75", fields=TAG_AND_NODE),
    Shape("with an API key, tag and node", "≥ 0.7", fields=TAG_AND_NODE, has_key=True),
    Shape("with meta", fields=',"meta":{"trace":"4bf92f3577b34da6"}'),
    Shape("with an idempotency key", "≥ 0.6", options=f',"idempotency_key":"{FRESH}"'),
    Shape("with an Idempotency-Key header", headers=(f"Idempotency-Key: {FRESH}",)),
    Shape("with headers of a browser", headers=(
        "User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0",
        "Accept: */*", "Accept-Language: en-US,en;q=0.5", "Accept-Encoding: gzip, deflate, br",
    )),
)  # fmt: skip


def run(report: Report) -> None:
    with (
        tempfile.TemporaryDirectory() as open_path,
        tempfile.TemporaryDirectory() as keyed_path,
        Served(Path(open_path)).wait_ready() as is_open,
        Served(Path(keyed_path), TOPICS_API_KEYS=TOKEN).wait_ready(TOKEN) as keyed,
    ):
        rates: dict[Shape, list[float]] = {shape: [] for shape in SHAPES}
        costs_us: dict[Shape, list[float]] = {shape: [] for shape in SHAPES}
        for _ in range(ROUNDS):
            for shape in SHAPES:
                server = keyed if shape.has_key else is_open
                before_s = _spent_s(server.process.pid)
                rate = _rate(server, shape, open_path)
                spent_s = _spent_s(server.process.pid) - before_s
                rates[shape].append(rate)
                costs_us[shape].append(spent_s / (rate * SECONDS) * 1e6)
    for shape in SHAPES:
        what = f"single writes, {shape.name}"
        cost_us = min(costs_us[shape])
        report.add(what, max(rates[shape]), "writes/s")
        report.add(f"{what}: share", max(rates[shape]) / max(rates[PLAIN]), "×", shape.target)
        report.add(f"{what}: server's time", cost_us, "µs")
        report.add(f"{what}: share by that time", min(costs_us[PLAIN]) / cost_us, "×")


def _rate(server: Served, shape: Shape, path: str) -> float:
    url = f"http://127.0.0.1:{server.port}/v0/topics/shapes{shape.query}"
    headers = shape.headers
    if shape.has_key:
        headers = (*headers, f"Authorization: Bearer {TOKEN}")
    return wrk(url, shape.body(), CONNECTIONS, path, seconds=SECONDS, headers=headers)


def _spent_s(pid: int) -> float:
    """Processor time of a process until now."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS_PER_S
