"""Mutants of the takeover after a sender's death, of its supervisor, and of what a sender tells about itself."""

from mutants.mutant import Mutant

TAKEOVER = (
    Mutant(
        "acks-zero-resent",
        "a successor sends batches with acks=0 again that may have been sent",
        "    return wire.acks != 0 and (wire.idempotent or wire.entry.attempts <= wire.wire.retries)",
        "    return wire.idempotent or wire.entry.attempts <= wire.wire.retries",
        "P2",
        (
            "integration/engine/test_engine_acks_zero.py"
            "::test_a_successor_does_not_send_what_its_predecessor_has_written_in_part",
        ),
    ),
    Mutant(
        "producer-id-lost",
        "a successor forgets the producer id",
        "    core.idempotence.producer_id = header.producer_id\n",
        "",
        "P2",
        ("integration/engine/test_takeover.py::test_sequences_go_on_where_they_were",),
    ),
    Mutant(
        "retries-after-takeover",
        "a successor sends a batch without idempotence again although it may have no retries",
        "            wire.wire.retries = min(wire.wire.retries, front_end.settings.retries)\n",
        "",
        "P2",
        ("integration/engine/test_takeover.py::test_without_retries_an_unsure_batch_is_unknown",),
    ),
    Mutant(
        "order-after-takeover",
        "a successor queues batches in the order of their slots",
        "    qsort(found, count, sizeof(Ranked), by_rank)\n",
        "",
        "P7",
        ("integration/engine/test_takeover.py",),
    ),
    Mutant(
        "released-batch-again",
        "a successor queues a batch again whose release it has found",
        "    if published_flags(front_end, slot, word_generation(word)) & CYP_OUTCOME_RELEASE:\n",
        "    if False:\n",
        "P2",
        ("integration/engine/test_takeover.py::test_a_batch_whose_release_was_published_is_not_queued_again",),
    ),
    Mutant(
        "sent-again-to-next",
        "a front-end gives the next sender a batch that the last one may have sent",
        "        if sent_is(&arena.sent[slot], arena.slots[slot].generation):",
        "        if sent_is(&arena.sent[slot], arena.slots[slot].generation + 1):",
        "P2",
        (
            "unit/producer/test_producer_memory.py"
            "::test_sender_gone_sent_batches_are_unknown_and_unsent_ones_go_to_the_next",
        ),
    ),
    Mutant(
        "delivery-timeout-anew",
        "the delivery timeout of a batch begins again with the next sender",
        "        return row.opened_ns - row.waited_ms * <uint64_t>1000000",
        "        return row.opened_ns",
        "P5",
        ("unit/producer/test_producer_reattach.py::test_the_delivery_timeout_counts_from_the_send",),
    ),
    Mutant(
        "unlinked-lock",
        "a lock on a file that has no path any more makes a second sender",
        "    return is_at(fd, path)\n",
        "    return True\n",
        "P2",
        ("unit/sender/test_election.py::test_the_lock_of_a_file_without_its_path_is_no_right",),
    ),
    Mutant(
        "crash-loop-backoff",
        "a sender that crashes again and again is started without pauses",
        "    if restarts_in_a_row <= 1:",
        "    if restarts_in_a_row <= 100:",
        "P2",
        ("unit/sender/test_handover.py::test_backoff",),
    ),
    Mutant(
        "handover-answered",
        "a successor believes that no front-end has had its answer",
        "            held.answered = True\n        elif",
        "            pass\n        elif",
        "P2",
        ("unit/sender/test_handover.py",),
    ),
    Mutant(
        "ledger-others",
        "the ledger of failures grows without a limit",
        "        if key not in self._rows and len(self._rows) >= ROWS_MAX:",
        "        if key not in self._rows and len(self._rows) > 2 * ROWS_MAX:",
        "P4",
        ("unit/observe/test_observe.py::test_ledger_is_bounded_and_loses_no_count",),
    ),
    Mutant(
        "status-transactions",
        "the status does not show transactional producers",
        "    if transactions:\n        lines +=",
        "    if not transactions:\n        lines +=",
        "P5",
        ("unit/cli/test_cli_status.py",),
    ),
    Mutant(
        "isolation-unfenced",
        "an isolation lane takes another producer id before the broker knows its raised epoch",
        " and not any_idempotent(lane) and not _fences(lane):\n",
        " and not any_idempotent(lane):\n",
        "P7",
        ("integration/engine/test_takeover.py::test_an_isolation_lane_fences_what_its_predecessor_has_sent",),
    ),
)
