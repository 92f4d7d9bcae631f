"""Allocates and frees the sender's tables, and sets the pointers into the state region.

Sizes: 8,192 entries are enough for 1,638 partitions with five batches in flight each. 65,536 contributors are eight
front-ends for each entry. 512 bodies of 64 KiB limit the memory of merged batches to 32 MiB. How much of each table a
broker and a front-end may use depends on what is free (drain.pyx). New batches beyond that wait; none is lost.
"""


cdef object core_new(Core *core):
    """Allocate the private tables. Raise MemoryError."""
    cdef uint32_t index
    core.wires = <WireBatch *>calloc(CYP_ENTRIES_MAX, sizeof(WireBatch))
    core.free_wires = <uint32_t *>calloc(CYP_ENTRIES_MAX, sizeof(uint32_t))
    core.free_contributors = <uint32_t *>calloc(CYP_CONTRIBUTORS_MAX, sizeof(uint32_t))
    core.contributor_batches = <ClientBatch **>calloc(CYP_CONTRIBUTORS_MAX, sizeof(ClientBatch *))
    core.free_bodies = <uint32_t *>calloc(CYP_BODIES_MAX, sizeof(uint32_t))
    core.failures = <Failure *>calloc(FAILURES_MAX, sizeof(Failure))
    core.transactions = <Transaction *>calloc(CYP_TRANSACTIONS_MAX, sizeof(Transaction))
    core.named = <Named *>calloc(NAMED_MAX, sizeof(Named))
    core.free_topics = <uint32_t *>calloc(CYP_TOPICS_MAX, sizeof(uint32_t))
    core.free_rows = <uint32_t *>calloc(CYP_PARTITIONS_MAX, sizeof(uint32_t))
    if core.wires == NULL or core.free_wires == NULL or core.free_contributors == NULL \
            or core.contributor_batches == NULL or core.free_bodies == NULL or core.failures == NULL \
            or core.named == NULL or core.free_topics == NULL or core.free_rows == NULL or core.transactions == NULL:
        raise MemoryError
    # last in, first out: the lowest rows, which are in the CPU cache, are used first
    for index in range(CYP_ENTRIES_MAX):
        core.free_wires[index] = CYP_ENTRIES_MAX - 1 - index
    for index in range(CYP_CONTRIBUTORS_MAX):
        core.free_contributors[index] = CYP_CONTRIBUTORS_MAX - 1 - index
    for index in range(CYP_BODIES_MAX):
        core.free_bodies[index] = CYP_BODIES_MAX - 1 - index
    core.free_wire_count = CYP_ENTRIES_MAX
    core.free_contributor_count = CYP_CONTRIBUTORS_MAX
    core.free_body_count = CYP_BODIES_MAX
    core.producer_id = -1
    core.producer_epoch = -1
    core.isolation_producer_id = -1
    core.isolation_producer_epoch = -1


cdef void core_state(Core *core, uint8_t *base, StateGeometry *geometry) noexcept:
    """Set the pointers into a state region."""
    core.state = base
    core.state_header = <cyp_state_header *>base
    core.partition_rows = <cyp_partition_row *>(base + geometry.partitions_offset)
    core.entries = <cyp_entry *>(base + geometry.entries_offset)
    core.contributors = <cyp_contributor *>(base + geometry.contributors_offset)
    core.bodies = base + geometry.bodies_offset
    core.transaction_rows = <cyp_transaction_row *>(base + geometry.transactions_offset)
    place_transactions(core)


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
    for index in range(core.topic_count):
        free(core.topics[index].partitions)
        free(core.topics[index])
    for index in range(core.lane_count):
        free(core.lanes[index])
    for index in range(core.node_count):
        free(core.nodes[index].input)
        free(core.nodes[index].asked)
        free(core.nodes[index])
    while core.spare_requests != NULL:
        request = core.spare_requests
        core.spare_requests = request.next
        free_request(core, request)
    if CYPRODUCER_DEBUG:
        check(core.requests_made == 0, b"every request was returned by its connection")
    free(core.topics)
    free(core.free_topics)
    free(core.lanes)
    free(core.free_rows)
    free(core.nodes)
    free(core.wires)
    free(core.free_wires)
    free(core.free_contributors)
    free(core.contributor_batches)
    free(core.free_bodies)
    free(core.events)
    free(core.hints)
    free(core.failures)
    free(core.named)
    free(core.transactions)
    free(core.deadlines)
    free(core.tagged)
