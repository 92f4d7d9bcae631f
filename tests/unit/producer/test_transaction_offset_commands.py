"""Tests the commands that add offsets to a transaction: several for many offsets, timeouts and repetitions."""

import threading

import pytest
from kafka.structs import OffsetAndMetadata
from standin_transactions import HOLD, failed
from support.process import wait_until

from cyproducer import errors
from cyproducer.host import control_messages
from cyproducer.producer.shared_transaction import share

MANY = {("t", partition): partition for partition in range(5000)}  # too many for two commands


def sent(sender):
    """Return (group, offset) of all offsets that were added."""
    messages = [message for message in sender.commands.done if message["do"] == "offsets"]
    return [(message["group"]["group_id"], row[2]) for message in messages for row in message["offsets"]]


def time_out(sender, producer):
    """Let the call with MANY time out at its first command, which gets its answer afterwards."""
    sender.commands.script["offsets"] = [HOLD]
    with pytest.raises(errors.KafkaTimeoutError):
        producer.send_offsets_to_transaction(MANY, "g", 0.3)
    wait_until(lambda: sender.commands.holds, 10, "the command")  # the stand-in may read it later
    assert sent(sender) == []


def test_offsets_that_timed_out_are_finished_before_the_next_command(sender, begun):
    sender.commands.script["offsets"] = [HOLD] * 2
    for end in (begun.commit_transaction, begun.abort_transaction):
        sender.commands.script["offsets"] = [HOLD] * 2
        with pytest.raises(errors.KafkaTimeoutError):
            begun.send_offsets_to_transaction({("t", 1): 1}, "g", 0.05)
        wait_until(lambda: sender.commands.holds, 10, "the command")
        threading.Timer(0.1, sender.commands.release).start()
        end()
        begun.begin_transaction()
    assert sender.commands.does() == ["init", "offsets", "commit", "offsets", "fail", "abort"]


@pytest.mark.parametrize("answer", [None, failed("abortable", 22)])
def test_offsets_that_timed_out_are_not_sent_again_by_the_same_call(sender, begun, answer):
    """As in Java, the repeated call takes the result of the first one. The offsets are too many for one command."""
    offsets = {("t", partition): partition for partition in range(3000)}
    for _ in range(2):
        sender.commands.script["offsets"] = [HOLD] * 3
        for _ in range(2):
            with pytest.raises(errors.KafkaTimeoutError):
                begun.send_offsets_to_transaction(offsets, "g", 0.2)
        sender.commands.script["offsets"] = []
        sender.commands.release(answer)
        if answer is not None:
            with pytest.raises(errors.IllegalGenerationError):
                begun.send_offsets_to_transaction(offsets, "g")
            return
        begun.send_offsets_to_transaction(offsets, "g")
    assert [offset for _, offset in sent(sender)] == 2 * list(range(3000))
    begun.send_offsets_to_transaction(offsets, "g")  # this is another call, after one with a result
    assert len([m for m in sender.commands.done if m["do"] == "offsets"]) > 3


@pytest.mark.parametrize("values", [(1,), (1, 2)], ids=["the next call", "the same call again"])
def test_other_offsets_follow_those_that_timed_out(sender, begun, values):
    sender.commands.script["offsets"] = [HOLD] * len(values)
    for value in values:  # the call with 2 does not get as far as to send it
        with pytest.raises(errors.KafkaTimeoutError):
            begun.send_offsets_to_transaction({("t", 1): value}, "g", 0.3)
    sender.commands.release()
    begun.send_offsets_to_transaction({("t", 1): 2}, "g")
    assert sent(sender) == [("g", 1), ("g", 2)]


@pytest.mark.parametrize("then", ["commit", "share", "other offsets", "others twice"])
def test_all_offsets_of_a_call_that_timed_out_are_sent_before_another_command(sender, begun, then):
    time_out(sender, begun)
    sender.commands.release()
    others = []
    if then == "share":
        share(begun)
    elif then != "commit":
        for value in range(1 + (then == "others twice")):
            begun.send_offsets_to_transaction({("t", 5000): value}, "h")
            others.append(("h", value))
    begun.commit_transaction()
    assert sent(sender) == [("g", offset) for offset in range(5000)] + others
    assert sender.commands.does()[-1] == "commit"
    assert sender.commands.does().index("share") > 3 if then == "share" else "share" not in sender.commands.does()
    begun.begin_transaction()
    begun.commit_transaction()
    assert sender.commands.does()[-2:] == ["commit", "commit"]


def test_a_commit_that_times_out_in_the_offsets_goes_on_with_them(sender, begun):
    time_out(sender, begun)
    sender.commands.release()
    for _ in range(2):
        sender.commands.script["offsets"] = [HOLD]
        with pytest.raises(errors.KafkaTimeoutError):
            begun.commit_transaction(1)
        wait_until(lambda: sender.commands.holds, 30)
        sender.commands.release()
    begun.commit_transaction()
    assert sent(sender) == [("g", offset) for offset in range(5000)]
    assert sender.commands.does()[-1] == "commit"


@pytest.mark.parametrize("then", ["aborted", "failed"])
def test_offsets_of_a_transaction_that_is_aborted_or_has_failed_are_not_sent(sender, begun, then):
    time_out(sender, begun)
    if then == "failed":
        sender.commands.release(failed("abortable", 22))
        with pytest.raises(errors.IllegalGenerationError, match="offsets were not added"):
            begun.commit_transaction()
    else:
        sender.commands.release()
    begun.abort_transaction()
    assert sender.commands.does() == ["init", "offsets", "fail", "abort"]
    begun.begin_transaction()
    begun.send_offsets_to_transaction({("t", 1): 1}, "h")
    begun.commit_transaction()
    assert sender.commands.does() == ["init", "offsets", "fail", "abort", "offsets", "commit"]


def test_many_offsets_are_sent_in_several_commands(sender, begun):
    offsets = {("t", partition): partition for partition in range(10_000)}
    begun.send_offsets_to_transaction(offsets, "g")
    messages = [m for m in sender.commands.done if m["do"] == "offsets"]
    assert len(messages) > 1
    assert sent(sender) == [("g", offset) for offset in range(10_000)]
    assert [m["number"] for m in messages] == list(range(2, 2 + len(messages)))
    assert max(len(control_messages.encode(m)) for m in messages) < 100_000


def test_offsets_that_no_message_can_hold_are_refused_and_leave_the_transaction_open(sender, begun):
    """Nor are other offsets of the same call sent, now or later."""
    large = OffsetAndMetadata(1, "x" * 200_000, -1)
    refused = ({("t", 0): large}, "g"), ({("t", 0): 1}, "g" * 200_000), ({("t", 5000): large, **MANY}, "g")
    for offsets, group in refused:
        with pytest.raises(ValueError, match="too long to be sent"):
            begun.send_offsets_to_transaction(offsets, group)
    begun.send_offsets_to_transaction({("t", 0): 7}, "g" * 1000)
    begun.commit_transaction()
    assert sent(sender) == [("g" * 1000, 7)]
    assert [m["number"] for m in sender.commands.done] == [1, 2, 3]
