"""Runs a Kafka node for development: ``python tools/devkafka``. It needs Java 17, and downloads Kafka at first."""

import argparse
import signal
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from devkafka.node import DownloadError, JavaMissingError, KafkaCluster, KafkaStartError

    parser = argparse.ArgumentParser(
        prog="python tools/devkafka",
        description="Run a Kafka node on this machine until Ctrl-C. Its data are removed at the end.",
    )
    parser.add_argument("--port", type=int, default=9092, help="default: %(default)s")
    chosen = parser.parse_args()
    try:
        print("Starting a Kafka node ...", flush=True)
        with KafkaCluster(1, ports=[chosen.port], auto_create=True) as cluster:
            print(f"Kafka answers at {cluster.bootstrap_servers}. Ctrl-C ends it.", flush=True)
            signal.pause()
    except (DownloadError, JavaMissingError, KafkaStartError) as error:
        sys.exit(f"devkafka: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
