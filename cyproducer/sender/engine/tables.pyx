"""Allocates and frees the sender's tables, and sets the pointers into the state region.

Sizes: 8,192 entries are enough for 1,638 partitions with five batches in flight each. 65,536 contributors are eight
front-ends for each entry. 512 bodies of 64 KiB limit the memory of merged batches to 32 MiB. How much of each table a
broker and a front-end may use depends on what is free (drain.pyx). New batches beyond that wait; none is lost.
"""


cdef object core_new(Core *core):
    """Allocate the private tables. Raise MemoryError."""
    cdef uint32_t index
    core.wires = <WireBatch *>calloc(CYP_ENTRIES_MAX, sizeof(WireBatch))
    core.wire.free_wires = <uint32_t *>calloc(CYP_ENTRIES_MAX, sizeof(uint32_t))
    core.wire.free_contributors = <uint32_t *>calloc(CYP_CONTRIBUTORS_MAX, sizeof(uint32_t))
    core.contributor_batches = <ClientBatch **>calloc(CYP_CONTRIBUTORS_MAX, sizeof(ClientBatch *))
    core.wire.free_bodies = <uint32_t *>calloc(CYP_BODIES_MAX, sizeof(uint32_t))
    core.outcome.failures = <Failure *>calloc(FAILURES_MAX, sizeof(Failure))
    core.transactions.table = <Transaction *>calloc(CYP_TRANSACTIONS_MAX, sizeof(Transaction))
    core.named = <Named *>calloc(NAMED_MAX, sizeof(Named))
    core.topics.free_topics = <uint32_t *>calloc(CYP_TOPICS_MAX, sizeof(uint32_t))
    core.topics.free_rows = <uint32_t *>calloc(CYP_PARTITIONS_MAX, sizeof(uint32_t))
    if core.wires == NULL or core.wire.free_wires == NULL or core.wire.free_contributors == NULL \
            or core.contributor_batches == NULL or core.wire.free_bodies == NULL or core.outcome.failures == NULL \
            or core.named == NULL or core.topics.free_topics == NULL or core.topics.free_rows == NULL \
            or core.transactions.table == NULL:
        raise MemoryError
    # last in, first out: the lowest rows, which are in the CPU cache, are used first
    for index in range(CYP_ENTRIES_MAX):
        core.wire.free_wires[index] = CYP_ENTRIES_MAX - 1 - index
    for index in range(CYP_CONTRIBUTORS_MAX):
        core.wire.free_contributors[index] = CYP_CONTRIBUTORS_MAX - 1 - index
    for index in range(CYP_BODIES_MAX):
        core.wire.free_bodies[index] = CYP_BODIES_MAX - 1 - index
    core.wire.free_wire_count = CYP_ENTRIES_MAX
    core.wire.free_contributor_count = CYP_CONTRIBUTORS_MAX
    core.wire.free_body_count = CYP_BODIES_MAX
    clear_producer_ids(core)


cdef void core_state(Core *core, uint8_t *base, StateGeometry *geometry) noexcept:
    """Set the pointers into a state region."""
    core.state = base
    core.state_header = <cyp_state_header *>base
    core.partition_rows = <cyp_partition_row *>(base + geometry.partitions_offset)
    core.entries = <cyp_entry *>(base + geometry.entries_offset)
    core.contributors = <cyp_contributor *>(base + geometry.contributors_offset)
    core.bodies = base + geometry.bodies_offset
    core.transaction_rows = <cyp_transaction_row *>(base + geometry.transactions_offset)
    map_transactions(core)


cdef void begin_state(Core *core, StateGeometry *geometry) noexcept:
    """Fill in the header of a new state region."""
    core.state_header.topics_offset = geometry.topics_offset
    core.state_header.partitions_offset = geometry.partitions_offset
    core.state_header.entries_offset = geometry.entries_offset
    core.state_header.contributors_offset = geometry.contributors_offset
    core.state_header.bodies_offset = geometry.bodies_offset
    core.state_header.transactions_offset = geometry.transactions_offset
    core.state_header.region_bytes = geometry.region_bytes
    core.state_header.next_attach_id = 1
    core.state_header.producer_id = -1
    core.state_header.producer_epoch = -1
    core.state_header.layout_version = CYP_LAYOUT_VERSION
    core.state_header.magic = CYP_STATE_MAGIC


cdef void core_free(Core *core) noexcept:
    """Free all private memory of the engine."""
    cdef uint32_t index
    cdef Request *request
    for index in range(core.topics.count):
        free(core.topics.table[index].topics.partitions)
        free(core.topics.table[index])
    for index in range(core.topics.lane_count):
        free(core.topics.lanes[index])
    for index in range(core.connection.node_count):
        free(core.connection.nodes[index].connection.input)
        free(core.connection.nodes[index].idempotence.asked)
        free(core.connection.nodes[index])
    while core.produce.spare_requests != NULL:
        request = core.produce.spare_requests
        core.produce.spare_requests = request.connection.next
        free_request(core, request)
    if CYPRODUCER_DEBUG:
        check(core.produce.requests_made == 0, b"every request was returned by its connection")
    free(core.topics.table)
    free(core.topics.free_topics)
    free(core.topics.lanes)
    free(core.topics.free_rows)
    free(core.connection.nodes)
    free(core.wires)
    free(core.wire.free_wires)
    free(core.wire.free_contributors)
    free(core.contributor_batches)
    free(core.wire.free_bodies)
    free(core.outcome.events)
    free(core.produce.hints)
    free(core.outcome.failures)
    free(core.named)
    free(core.transactions.table)
    free(core.loop.deadlines)
    free(core.front_end.tagged)
