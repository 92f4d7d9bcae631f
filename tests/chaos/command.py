"""Starts a chaos run from the command line: random kills and stops, and a report on every record."""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from devkafka.security import MECHANISMS
from support.process import script_environment

from chaos.clients import PROTOCOLS, running_brokers
from chaos.monkey import ACTIONS
from chaos.run import Plan, run


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=50, help="SIGKILLs; stops come on top")
    parser.add_argument("--seed", type=int, default=None, help="seed of the schedule; drawn and printed if not given")
    parser.add_argument("--minutes", type=float, default=None, help="duration of the kills; 1.5 s each if not given")
    parser.add_argument("--rate", type=float, default=300, help="records a second of each of the 8 front-ends")
    parser.add_argument("--only", action="append", choices=sorted(ACTIONS), help="only this action; may be repeated")
    parser.add_argument(
        "--double-starts", type=int, metavar="N", help="instead of a run: start two senders at once, N times; no broker"
    )
    parser.add_argument(
        "--max-message-bytes", type=int, default=0, metavar="N", help="of the topic: batches are sent in parts; 0: no"
    )
    parser.add_argument("--security", choices=PROTOCOLS, default="PLAINTEXT", help="security_protocol of all clients")
    parser.add_argument("--mechanism", choices=MECHANISMS, default="SCRAM-SHA-512", help="of SASL, where it is used")
    parser.add_argument("--keep", metavar="DIR", help="for journals and logs; default: temporary, removed if clean")
    return parser.parse_args()


def double_starts(rounds: int, seed: int) -> int:
    """Print how the rounds ended; return the exit status."""
    with tempfile.TemporaryDirectory(prefix="cyp-") as runtime:
        environment = script_environment({"CYPRODUCER_RUNTIME_DIR": runtime})
        ended = subprocess.run([sys.executable, "-m", "chaos.starts", str(rounds), str(seed)], env=environment)
        if ended.returncode:
            print("".join(path.read_text(errors="replace")[-20_000:] for path in Path(runtime).glob("*.log")))
    return ended.returncode


def main() -> int:
    chosen = arguments()
    seed = random.SystemRandom().randrange(10**6) if chosen.seed is None else chosen.seed
    if chosen.double_starts:
        return double_starts(chosen.double_starts, seed)
    seconds = chosen.kills * 1.5 if chosen.minutes is None else chosen.minutes * 60
    actions = {name: weight for name, weight in ACTIONS.items() if not chosen.only or name in chosen.only}
    directory = Path(chosen.keep or tempfile.mkdtemp(prefix="cyp-chaos-"))
    runtime = tempfile.mkdtemp(prefix="cyp-")
    os.environ["CYPRODUCER_RUNTIME_DIR"] = runtime
    print(f"seed {seed}, {chosen.kills} kills in about {seconds:.0f} s, in {directory}", file=sys.stderr)
    plan = Plan(chosen.kills, seed, seconds, chosen.rate, actions, max_message_bytes=chosen.max_message_bytes)
    mechanism = chosen.mechanism if chosen.security.startswith("SASL") else None
    with running_brokers(chosen.security, mechanism) as clients:
        result = run(plan, clients, directory / "run", True)
    print(result.text())
    for log in Path(runtime).glob("*.log*"):
        shutil.copy(log, directory)
    shutil.rmtree(runtime, ignore_errors=True)
    (directory / "report.txt").write_text(result.text() + "\n")
    events = "".join(f"{e.time / 1e9:.3f} {e.action} {e.pid} {e.what}\n" for e in result.monkey.events)
    (directory / "events.txt").write_text(events)
    if result.clean and not chosen.keep:
        shutil.rmtree(directory, ignore_errors=True)
    else:
        print(f"journals, logs and events are in {directory}", file=sys.stderr)
    return 0 if result.clean else 1
