"""Tests the largest timestamp in the header of a batch, by which consumers find records. The scripted broker checks it.

Kafka's brokers check it only for batches that are compressed.
"""

import pytest
from probe.native import RecordBatchBuilder
from support.fault_rig import NOW, send_merged
from support.front_end import CONT, HEAD, READY, SUBMIT_FULL


@pytest.mark.parametrize("hint", ["of the owner", "of other records"])
@pytest.mark.parametrize("latest", range(6))
def test_any_record_of_a_chain_may_be_the_latest(rig, broker, latest, hint):
    """The chain has three chunks of two records. A hint about other records does not count."""
    front_end = rig.front_ends[rig.attach()]
    builder = RecordBatchBuilder(65_536)
    times = [NOW + 1000 * (index == latest) for index in range(6)]
    pieces = []
    for index, time in enumerate(times):
        before = len(builder.records())
        builder.append(time, None, b"%d" % index)
        pieces.append(builder.records()[before:])
    for slot in (2, 1, 0):
        front_end.write_chunk(
            slot, b"".join(pieces[2 * slot : 2 * slot + 2]), 2, topic=rig.number, partition=0, base=times[0],
            highest=max(times[2 * slot : 2 * slot + 2]), state=READY,
            flags=(0 if slot else HEAD) | (0 if slot == 2 else CONT), next_slot=0xFFFFFFFF if slot == 2 else slot + 1,
        )  # fmt: skip
        if hint == "of other records":
            front_end.set_row(slot, max_timestamp=NOW + 99_000, max_count=1)  # the hint is about one record
    front_end.submit(SUBMIT_FULL, 0)
    rig.sent[0].append((0, [b"%d" % index for index in range(6)]))
    rig.settle()
    assert rig.errors(0) == [0]
    assert broker.complaints == []
    assert broker.values(0) == [b"%d" % index for index in range(6)]


@pytest.mark.parametrize("latest", range(3))
def test_any_front_end_of_a_merged_batch_may_have_the_latest_record(rig, broker, latest, monkeypatch):
    rig.attach_many(3, linger_ms=20)
    send = rig.front_ends[latest].send

    def send_later(slot, records, **place):
        send(slot, [(time + 1000 * number, *rest) for number, (time, *rest) in enumerate(records)], **place)

    monkeypatch.setattr(rig.front_ends[latest], "send", send_later)
    send_merged(rig, 3, ())
    rig.check()
    assert [rig.errors(index) for index in range(3)] == [[0]] * 3
