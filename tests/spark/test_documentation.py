"""The examples of the pages about Spark, run as they stand on the page.

Only what every reader changes is changed: where the server is, and where files go.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyspark
import pytest
from pyspark.sql import SparkSession

from tests.spark.support import Log
from tests.support.servers import Served, environment

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "pipeline"
RUN_S = 300


def blocks(page: str) -> list[str]:
    """The blocks of Python of a page, in order."""
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)


def run(page: str, url: str, folder: Path, known: dict[str, object]) -> dict[str, object]:
    """Runs the blocks of a page one after the other, as cells of one notebook."""
    found = blocks(page)
    assert found
    for number, block in enumerate(found):
        text = block.replace("http://127.0.0.1:4000", url).replace("/data/", f"{folder}/")
        exec(compile(text, f"{page}#{number}", "exec"), known)
    return known


def test_the_tour_is_as_it_says(served: Served, spark: SparkSession, tmp_path: Path) -> None:
    run("spark-tour.md", f"http://127.0.0.1:{served.port}", tmp_path, {"spark": spark})


def test_the_examples_of_the_page_about_spark_run(log: Log, tmp_path: Path) -> None:
    for name in "orders", "big-orders":
        log.client.put(f"/v0/topics/{name}", {})
    log.write("orders", {"amount": 5}, {"amount": 5000})
    run("spark.md", log.url, tmp_path, {"spark": log.spark})
    for query in log.spark.streams.active:
        query.processAllAvailable()
        query.stop()
    assert [record["data"] for record in log.records("big-orders")] == [{"amount": 5000}]


def run_pipeline(folder: Path) -> None:
    [line] = re.findall(r"\$ (spark-pipelines run .*)", (ROOT / "docs" / "spark.md").read_text())
    command = [str(Path(pyspark.__file__).parent / "bin" / line.split()[0]), *line.split()[1:]]
    given = environment(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
    given["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    ended = subprocess.run(
        command, cwd=folder, env=given, timeout=RUN_S, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout.decode()[-5000:]
    assert "Run is COMPLETED" in ended.stdout.decode()


def rows(folder: Path, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (
        ds.dataset(folder / "spark-warehouse" / table).to_table().to_pylist()
    )
    return found


@pytest.mark.full(share=0.1)
@pytest.mark.timeout(2 * RUN_S)
def test_the_example_of_a_declarative_pipeline_goes_on_where_it_ended(tmp_path: Path) -> None:
    pipeline = tmp_path / "pipeline"
    shutil.copytree(EXAMPLE, pipeline)
    with Served(tmp_path) as served:
        served.wait_ready()
        spec = pipeline / "spark-pipeline.yml"
        text = spec.read_text().replace("127.0.0.1:4000", f"127.0.0.1:{served.port}")
        kept = f"storage: file://{tmp_path}/kept"
        spec.write_text(re.sub("^storage: .*", kept, text, flags=re.MULTILINE))
        with served.client() as client:
            for name in "orders", "big-orders":
                client.put(f"/v0/topics/{name}", {})
            client.write("orders", *({"amount": 100 * n} for n in range(20)))
        run_pipeline(pipeline)
        assert sorted(row["amount"] for row in rows(pipeline, "all_orders")) == [
            100 * n for n in range(20)
        ]
        assert rows(pipeline, "lost_orders") == []

        with served.client() as client:
            client.put("/v0/topics/orders", {"cap_records": 1})
            client.write("orders", {"amount": 7}, {"amount": 7000})
        run_pipeline(pipeline)
        assert sorted(row["seq"] for row in rows(pipeline, "all_orders")) == [*range(1, 21), 22]
        [lost] = rows(pipeline, "lost_orders")
        assert (lost["seq"], lost["_gap_to"], lost["_gap_reason"]) == (21, 21, "cap")
        assert sum(row["amount"] for row in rows(pipeline, "spent")) == 26000
        with served.client() as client:
            large = client.post("/v0/topics/big-orders/range", {}).json["records"]
        assert [record["data"]["amount"] for record in large] == [*range(1000, 2000, 100), 7000]
