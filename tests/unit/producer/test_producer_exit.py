"""Tests the end of a process that used a producer and did not close it, against a stand-in sender."""

import pytest
from support.process import run_script


def test_exit_without_close_flushes_within_exit_flush_timeout(sender):
    code = (
        "import cyproducer, sys\n"
        "p = cyproducer.KafkaProducer(sender=sys.argv[1], exit_flush_timeout_ms=10000)\n"
        "for n in range(100): p.send('t', b'%d' % n)\n"
    )
    done = run_script(code, sender.path, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(sender.log) == 100


@pytest.mark.parametrize(
    "how",
    [
        "work()",
        "c = multiprocessing.get_context('fork').Process(target=work); c.start(); c.join()",
        "work(); c = multiprocessing.get_context('fork').Process(target=work); c.start(); c.join(); p.close(0)",
    ],
)
def test_exit_flush_timeout_of_a_process_and_of_multiprocessings_children(sender, how):
    """The sender holds the outcome back until the process has reported that it did not get one."""
    sender.hold = True
    code = (
        "import cyproducer, multiprocessing, sys\n"
        "p = cyproducer.KafkaProducer(sender=sys.argv[1], exit_flush_timeout_ms=50)\n"
        f"def work(): p.send('t', b'x')\n{how}\n"
    )
    done = run_script(code, sender.path, check=False)
    assert done.returncode == 0
    assert done.stderr.count("1 records in 1 batches have no outcome after exit_flush_timeout_ms=50") == 1


def test_records_sent_by_atexit_in_a_spawned_multiprocessing_child(sender):
    """Multiprocessing's finalizers have run by then. An earlier report is not repeated."""
    sender.hold = True
    child = (
        "import atexit, cyproducer\n"
        f"p = cyproducer.KafkaProducer(sender={sender.path!r}, exit_flush_timeout_ms=50)\n"
        "p.send('t', b'x', partition=1)\n"
    )
    for late, reports in (("", [1]), ("atexit.register(p.send, 't', b'y', partition=2)\n", [1, 2])):
        code = (
            "import multiprocessing\n"
            "spawn = multiprocessing.get_context('spawn')\n"
            f"c = spawn.Process(target=exec, args=({child + late!r}, {{}})); c.start(); c.join()\n"
        )
        lines = run_script(code, check=False).stderr.splitlines()
        assert [int(line.split()[0]) for line in lines] == reports


def test_a_sender_that_was_found_later_counts_at_exit(sender):
    """send() had no time to wait for the sender, and a thread continued."""
    code = (
        "import cyproducer, sys, time\n"
        "p = cyproducer.KafkaProducer(sender=sys.argv[1], exit_flush_timeout_ms=50)\n"
        "channel = p._channel()\n"
        "channel.attach_later(channel.session, 10)\n"
        "while not channel.session.alive: time.sleep(0.001)\n"
        "p.send('t', b'x')\n"
    )
    sender.hold = True
    done = run_script(code, sender.path, check=False)
    assert done.returncode == 0
    assert "1 records in 1 batches have no outcome after exit_flush_timeout_ms=50" in done.stderr


@pytest.mark.parametrize(
    "keep",
    [
        "string.keep = lambda: p",
        "string.keep = lambda: p\np.close()",
        "class H(logging.Handler):\n    def emit(self, record): pass\n"
        "h = H(); h.p = p\nlogging.getLogger().addHandler(h)",
        "async def send(): await (await p.send_async('t', b'y'))\n"
        "loop = asyncio.new_event_loop(); loop.run_until_complete(send())\nstring.keep = lambda: (p, loop)",
    ],
)
def test_a_producer_that_outlives_the_modules_says_nothing(sender, keep):
    code = (
        "import asyncio, cyproducer, logging, string, sys\n"
        "p = cyproducer.KafkaProducer(sender=sys.argv[1])\n"
        f"f = p.send('t', b'x')\nf.result(10)\n{keep}\n"
    )
    done = run_script(code, sender.path, check=False)
    assert (done.returncode, done.stderr) == (0, "")
