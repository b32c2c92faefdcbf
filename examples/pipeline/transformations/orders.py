"""Orders from a topic: all of them in a table, losses in another, the big ones in a topic."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

spark = SparkSession.active()
url = spark.conf.get("topics.url")
assert url


def orders() -> DataFrame:
    source = spark.readStream.format("topics").option("url", url).option("subscribe", "orders")
    return source.option("failOnDataLoss", "false").load()


@dp.table(comment="Every order, with the seq that the log gave it")
def all_orders() -> DataFrame:
    amount = "parse_json(data):amount::bigint as amount"
    return orders().where("_kind = 'record'").selectExpr("epoch", "seq", "ts", "tag", amount)


@dp.table(comment="Each range of orders that the log says it has lost, and why")
def lost_orders() -> DataFrame:
    return orders().where("_kind = 'gap'").select("epoch", "seq", "_gap_to", "_gap_reason")


@dp.materialized_view(comment="What customers have spent")
def spent() -> DataFrame:
    return spark.read.table("all_orders").groupBy("tag").agg(F.sum("amount").alias("amount"))


dp.create_sink("big", "topics", {"url": url, "topic": "big-orders"})


@dp.append_flow(target="big")
def big_orders() -> DataFrame:
    amount = "parse_json(data):amount::bigint"
    return orders().where(f"_kind = 'record' and {amount} >= 1000").select("data", "tag")
