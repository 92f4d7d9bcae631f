"""Tests that the green threads of gevent and eventlet go on while others of them wait for outcomes and for memory."""

import threading
import time

import pytest
from support.process import run_script

from cyproducer.shm.native import SANITIZED

PROGRAM = """
import sys
import warnings
warnings.simplefilter("ignore")
library = sys.argv[1]
if library == "gevent":
    from gevent import monkey, spawn, sleep
    monkey.patch_all()
    wait = lambda green: green.get()
else:
    import eventlet
    from eventlet import spawn, sleep
    eventlet.monkey_patch()
    wait = lambda green: green.wait()
import os
import threading
import cyproducer

ticks, called = [], []
def tick():
    while True:
        ticks.append(1)
        sleep(0.01)
def task(number):
    future = producer.send("one", b"x" * 50_000, on_delivery=lambda error, record: called.append(error))
    sleep(0)
    return future.result(50).offset
with cyproducer.KafkaProducer(sender=sys.argv[2], buffer_memory=1 << 20) as producer:
    producer.partitions_for("one")
    spawn(tick)
    before = len(os.listdir("/proc/self/fd"))
    tasks = [spawn(task, number) for number in range(40)]
    offsets = sorted(wait(each) for each in tasks)
    producer.flush(50)
    left = len(os.listdir("/proc/self/fd")) - before
print(offsets == list(range(40)), len(ticks) > 5, called == 40 * [None], left <= 2)
"""


@pytest.mark.skipif(SANITIZED, reason="greenlet moves stacks, which AddressSanitizer takes for an underflow")
@pytest.mark.parametrize("library", ["gevent", "eventlet"])
def test_many_green_threads_wait_for_results_and_memory(sender, library):
    sender.hold = True

    def release():
        while not sender.attached:  # importing the library takes its time
            time.sleep(0.01)
        time.sleep(1)
        sender.release()

    thread = threading.Thread(target=release)
    thread.start()
    done = run_script(PROGRAM, library, sender.path, check=False)
    thread.join()
    assert done.stdout == "True True True True\n", done.stdout + done.stderr
