"""Mutants of transactions, in the front-end and in the sender."""

from mutants.mutant import Mutant

TRANSACTING = (
    Mutant(
        "commit-of-offsets-only",
        "a transaction that has only offsets counts as empty",
        "        is_empty = not self._now.has_more and _accepted(session) == self._now.accepted_before",
        "        is_empty = _accepted(session) == self._now.accepted_before",
        "P2",
        ("unit/producer/test_transaction_next_sender.py",),
    ),
    Mutant(
        "commit-continued-unproven",
        "another sender continues a commit of which a record has failed",
        "        if not session.outcomes.first_error and all(batch.done for batch in commit.batches):\n",
        "        if all(batch.done for batch in commit.batches):\n",
        "P2",
        ("unit/producer/test_transaction_next_sender.py",),
    ),
    Mutant(
        "commit-after-failure",
        "a transaction of which a record has failed is committed",
        "        await self._check_records(session, call)\n        is_empty",
        "        is_empty",
        "P5",
        ("unit/producer/test_transactions.py", "unit/producer/test_transaction_next_sender.py"),
    ),
    Mutant(
        "abort-settles",
        "a transaction is aborted while batches of it are under way",
        "            self.monitor.replace(call, command=None, failed_at=weakref.ref(session))\n"
        "        await self._await_outcomes(call)",
        "            self.monitor.replace(call, command=None, failed_at=weakref.ref(session))",
        "P7",
        ("unit/producer/test_transactions.py::test_an_abort_lets_unsent_records_fail_and_the_producer_can_go_on",),
    ),
    Mutant(
        "commit-stored-first",
        "a commit is sent before it is stored for a successor",
        "        producer.store(COMMITTING_TRANSACTION)",
        "        pass",
        "P2",
        (
            "unit/sender/test_sender_transactions.py"
            "::test_the_state_is_stored_before_the_request_that_ends_a_transaction",
        ),
    ),
    Mutant(
        "commit-of-a-failed-batch",
        "a batch that fails while a commit waits for it does not stop the commit",
        "        await self._until_idle(producer)\n        producer.refuse_if_failed()\n",
        "        await self._until_idle(producer)\n",
        "P5",
        ("unit/sender/test_sender_transactions.py::test_a_commit_fails_if_a_batch_fails_while_it_waits",),
    ),
    Mutant(
        "open-before-added",
        "a partition is added to a transaction that is not stored as open",
        "producer.store(IN_TRANSACTION)  # before the first byte of AddPartitionsToTxn",
        "pass",
        "P2",
        (
            "unit/sender/test_sender_transactions.py::test_it_is_stored_that_a_transaction_is_open_before_the_first_partition_is_added",
        ),
    ),
    Mutant(
        "commit-by-another-sender",
        "another sender continues a commit in the present epoch, whose sequences it does not know",
        "self._end_transaction(producer, command, commits=True, raises_epoch=True)",
        "self._end_transaction(producer, command, commits=True)",
        "P2",
        ("unit/sender/test_transaction_takeover.py::test_another_sender_takes_the_end_of_a_transaction_up",),
    ),
    Mutant(
        "offsets-sent-again",
        "offsets that are committed are sent again beside those with an error",
        "                left.pop(key, None)\n",
        "                pass\n",
        "P5",
        ("unit/sender/test_sender_transactions.py::test_only_offsets_with_an_error_are_sent_again",),
    ),
)
