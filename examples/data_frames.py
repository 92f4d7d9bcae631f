"""Sends the rows of pandas, Polars and DuckDB to Kafka, without a Python object for each of them.

python examples/data_frames.py localhost:9092 TOPIC
"""

import sys

import duckdb
import pandas as pd
import polars as pl

from cyproducer import KafkaProducer

ORDERS = {"customer": ["Ann", "Bo", "Cy"] * 1000, "amount": list(range(3000))}


def of_polars() -> pl.DataFrame:
    """Return the key and the JSON text of each row."""
    orders = pl.DataFrame(ORDERS)
    return orders.select(key="customer", value=pl.struct("customer", "amount").struct.json_encode())


def of_pandas() -> pd.DataFrame:
    """Return the same records. `to_json` makes one text for all rows, so it is divided into lines."""
    orders = pd.DataFrame(ORDERS)
    return pd.DataFrame({"key": orders["customer"], "value": orders.to_json(orient="records", lines=True).splitlines()})


def of_duckdb() -> duckdb.DuckDBPyRelation:
    """Return the same records as a query, which has not run yet."""
    return duckdb.connect().sql(
        """
        SELECT customer AS key, to_json({'customer': customer, 'amount': amount})::VARCHAR AS value
        FROM (SELECT ['Ann', 'Bo', 'Cy'][amount % 3 + 1] AS customer, amount FROM range(3000) AS numbers(amount))
        """
    )


def main(bootstrap_servers: str, topic: str) -> None:
    """Send the records of each library, and print how many were written."""
    with KafkaProducer(bootstrap_servers=bootstrap_servers) as producer:
        for rows in (of_polars(), of_pandas(), of_duckdb()):
            written = producer.send_arrow(rows, topic=topic).result(timeout=60)
            print(f"{type(rows).__module__.partition('.')[0]}: {len(written.offset)} records written")


if __name__ == "__main__":
    main(*sys.argv[1:3])
