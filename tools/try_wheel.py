"""Uses the installed package: `python tools/try_wheel.py [HOST:PORT]`.

With the address of a broker, a record must get an offset. Without, a sender must start and say that nobody listens.
"""

import os
import sys
import tempfile

import cyproducer
from cyproducer import KafkaProducer, errors
from cyproducer.observe import status


def main(address: str | None) -> None:
    """Send a record. Raise an error if the outcome is not the expected one."""
    with KafkaProducer(bootstrap_servers=address or "127.0.0.1:1", max_block_ms=60000 if address else 5000) as producer:
        try:
            outcome = f"offset {producer.send('wheel', b'value').result(60).offset}"
        except errors.KafkaTimeoutError as error:
            if address or "127.0.0.1:1" not in str(error):
                raise
            outcome = "the sender runs"
    print(
        f"Python {sys.version.split()[0]}, cyproducer {cyproducer.__version__} of {cyproducer.__path__[0]}: {outcome}"
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        os.environ["CYPRODUCER_RUNTIME_DIR"] = directory
        try:
            main(*sys.argv[1:2] or [None])
        finally:
            for path in status.senders():
                status.stop(path, 60)
