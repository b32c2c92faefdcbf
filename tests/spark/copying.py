"""A driver of its own, to be killed: copies a topic to another one until it is told to stop.

python -m tests.spark.copying URL SOURCE DESTINATION FOLDER [MASTER]
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pyspark_topics
from tests.spark.support import session


def main(url: str, source: str, destination: str, folder: str, master: str = "local[2]") -> None:
    at = Path(folder)
    spark = session(at / "local", master)
    if not master.startswith("local"):
        # Executors get the package alone, as they would on other machines.
        package = Path(pyspark_topics.__file__).parent
        packed = shutil.make_archive(
            str(at / "pyspark_topics"), "zip", package.parent, base_dir=package.name
        )
        spark.sparkContext.addPyFile(packed)
    reader = spark.readStream.format("topics").options(
        url=url, subscribe=source, cursor="copying", maxOffsetsPerTrigger=1000, minPartitions=2
    )
    writer = reader.load().select("data", "tag").writeStream.format("topics")
    writer = writer.options(url=url, topic=destination)
    writer.option("checkpointLocation", str(at / "check")).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
