"""Mutants of the shared memory and of the arena of a front-end."""

from mutants.mutant import Mutant

MEMORY = (
    Mutant(
        "pool-free-bytes",
        "a chunk that is freed does not count as free memory",
        "        self.free_bytes += class_bytes(self.chunk_class[slot])\n",
        "",
        "P4",
        ("unit/producer/test_producer_memory.py::test_exhausted_memory_raises_and_the_producer_stays_good",),
    ),
    Mutant(
        "pool-coalesce",
        "a block is put together although one of its chunks is in use",
        "            if self.free_units[block] == 0xffff:",
        "            if self.free_units[block] >= 0x7fff:",
        "P4",
        ("unit/shm/test_shm_memory.py",),
    ),
    Mutant(
        "announce-first-record",
        "a batch is announced to the sender with its second record",
        "    if chain.total == count:\n",
        "    if chain.total == count + 1:\n",
        "P1",
        ("unit/producer/test_producer_send.py::test_record_arrives_and_future_resolves",),
    ),
    Mutant(
        "grow-without-backlog",
        "a batch grows although no earlier one of its partition waits",
        " or not self.is_waiting(chain.former, chain.former_generation):",
        ":",
        "P4",
        ("unit/producer/test_batch_growth.py",),
    ),
    Mutant(
        "stale-outcome",
        "an outcome of a batch that was freed is taken for that of the next batch in its slot",
        " or not outcome_is_current(outcome, self.arena.slots[slot].generation):",
        ":",
        "P5",
        ("unit/producer/test_producer_memory.py::test_an_outcome_of_a_former_batch_of_its_slot_is_left_alone",),
    ),
    Mutant(
        "seal-generation",
        "a batch is sealed by a hint about the batch before it in its slot",
        " || (head && cyp_word_generation(seen) != generation)) return 0;",
        ") return 0;",
        "P5",
        ("unit/shm/test_shm_protocol.py::test_a_stale_generation_seals_and_opens_nothing",),
    ),
)
