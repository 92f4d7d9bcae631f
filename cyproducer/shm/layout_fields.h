/* Lists the fields of all structs in shared memory, with their places, for tests and for the inspection of a region.
 *
 * The compiler computes each place from the declaration. A test checks that no field is missing. */
#ifndef CYPRODUCER_LAYOUT_FIELDS_H
#define CYPRODUCER_LAYOUT_FIELDS_H

#include "cyproducer/shm/crashpoint.h"
#include "cyproducer/shm/layout.h"

typedef struct {
    const char *owner;          /* name of the struct */
    const char *name;           /* "" in the row with the size of the struct itself */
    size_t offset;
    size_t size;
    char form;                  /* as in Python's module struct; 's': an array, or a struct */
} cyp_field;

/* An array decays to a pointer, which has no form of its own, like a struct. */
#define CYP_FORM(value) _Generic((value), \
    int8_t: 'b', uint8_t: 'B', int16_t: 'h', uint16_t: 'H', int32_t: 'i', uint32_t: 'I', int64_t: 'q', uint64_t: 'Q', \
    default: 's')

/* STRUCT is the struct of the rows that follow. */
#define CYP_FIELD_OF(type, field) \
    {#type, #field, offsetof(type, field), sizeof(((type *)0)->field), CYP_FORM(((type *)0)->field)},
#define CYP_FIELD(type, field) CYP_FIELD_OF(type, field)
#define CYP_SIZE_OF(type) {#type, "", 0, sizeof(type), 's'},
#define CYP_SIZE(type) CYP_SIZE_OF(type)
#define F(field) CYP_FIELD(STRUCT, field)

static const cyp_field CYP_FIELDS[] = {
#define STRUCT cyp_slot_row
    CYP_SIZE(STRUCT)
    F(word) F(open_seq) F(topic) F(partition) F(base_timestamp) F(max_timestamp) F(max_count) F(next) F(opened_ns)
    F(chunk_bytes) F(waited_ms)
#undef STRUCT
#define STRUCT cyp_arena_header
    CYP_SIZE(STRUCT)
    F(magic) F(layout_version) F(slot_count) F(ring_entries) F(slots_offset) F(ring_offset) F(chunks_offset)
    F(region_bytes) F(reserved) F(submit_tail) F(sleeping) F(wants_snapshot) F(records_sent) F(bytes_in_use)
    F(blocked_ns) F(outcome_head) F(metrics)
#undef STRUCT
#define STRUCT cyp_outcome
    CYP_SIZE(STRUCT)
    F(slot) F(generation) F(first) F(count) F(base_offset) F(append_time) F(error) F(flags) F(cause) F(text)
    F(extents) F(reserved)
#undef STRUCT
#define STRUCT cyp_extent
    CYP_SIZE(STRUCT)
    F(state) F(slot) F(generation) F(first) F(count) F(error) F(cause) F(text) F(base_offset) F(append_time) F(next)
    F(reserved)
#undef STRUCT
#define STRUCT cyp_text
    CYP_SIZE(STRUCT)
    F(bytes) F(text)
#undef STRUCT
#define STRUCT cyp_outcomes_header
    CYP_SIZE(STRUCT)
    F(magic) F(layout_version) F(slot_count) F(ring_entries) F(sent_offset) F(ring_offset) F(region_bytes)
    F(attach_id) F(control) F(idle) F(outcome_tail) F(submit_head) F(extents_offset) F(extents_used) F(texts)
#undef STRUCT
#define STRUCT cyp_topic_row
    CYP_SIZE(STRUCT)
    F(word) F(leaders) F(name_bytes) F(generation) F(name) F(name_words)
#undef STRUCT
#define STRUCT cyp_snapshot_header
    CYP_SIZE(STRUCT)
    F(magic) F(layout_version) F(topics_max) F(sticky_offset) F(topics_offset) F(index_offset) F(changes_offset)
    F(leaders_offset) F(region_bytes) F(published) F(sleep) F(next_wake_ns) F(text) F(brokers) F(auth_failures)
    F(texts)
#undef STRUCT
#define STRUCT cyp_entry
    CYP_SIZE(STRUCT)
    F(state) F(flags) F(partition) F(count) F(producer_id) F(base_sequence) F(base_timestamp) F(max_timestamp)
    F(created_ns) F(length) F(crc) F(producer_epoch) F(attributes) F(acks) F(cause) F(attempts) F(contributors)
    F(body) F(error) F(base_offset) F(append_time) F(order) F(parent) F(reserved_tail)
#undef STRUCT
#define STRUCT cyp_contributor
    CYP_SIZE(STRUCT)
    F(attach_id) F(slot) F(generation) F(first) F(count) F(next) F(flags) F(start) F(reserved)
#undef STRUCT
#define STRUCT cyp_identity
    CYP_SIZE(STRUCT)
    F(producer_id) F(acked_end) F(producer_epoch) F(doubts) F(bumping) F(doubtful_ends)
#undef STRUCT
#define STRUCT cyp_topic_state
    CYP_SIZE(STRUCT)
    F(state) F(first) F(name)
#undef STRUCT
#define STRUCT cyp_partition_row
    CYP_SIZE(STRUCT)
    F(topic) F(partition) F(current) F(lane) F(identity)
#undef STRUCT
#define STRUCT cyp_state_header
    CYP_SIZE(STRUCT)
    F(magic) F(layout_version) F(topic_count) F(partition_count) F(reserved) F(next_attach_id) F(producer_id)
    F(producer_epoch) F(reserved_epoch) F(topics_offset) F(partitions_offset) F(entries_offset)
    F(contributors_offset) F(bodies_offset) F(region_bytes) F(transactions_offset) F(tick) F(pending)
    F(breadcrumb_attach) F(breadcrumb_slot)
#undef STRUCT
#define STRUCT cyp_transaction_place
    CYP_SIZE(STRUCT)
    F(producer_id) F(number) F(result) F(phase) F(failed) F(producer_epoch) F(v2) F(needs_epoch)
#undef STRUCT
#define STRUCT cyp_transaction_row
    CYP_SIZE(STRUCT)
    F(used) F(current) F(attach_id) F(timeout_ms) F(id_bytes) F(places) F(id)
#undef STRUCT
#define STRUCT cyp_sample
    CYP_SIZE(STRUCT)
    F(start_ns) F(last_ns) F(events) F(sum) F(max)
#undef STRUCT
#define STRUCT cyp_sensor
    CYP_SIZE(STRUCT)
    F(total) F(count) F(current) F(samples) F(reserved)
#undef STRUCT
#define STRUCT cyp_windows
    CYP_SIZE(STRUCT)
    F(window_ns) F(samples)
#undef STRUCT
#define STRUCT cyp_own_metrics
    CYP_SIZE(STRUCT)
    F(windows) F(waiting) F(times) F(sensors)
#undef STRUCT
#define STRUCT cyp_client_metrics
    CYP_SIZE(STRUCT)
    F(sensors)
#undef STRUCT
#define STRUCT cyp_topic_metrics
    CYP_SIZE(STRUCT)
    F(key) F(reserved) F(sensors)
#undef STRUCT
#define STRUCT cyp_share_metrics
    CYP_SIZE(STRUCT)
    F(client) F(windows) F(own_kept) F(reserved) F(topics)
#undef STRUCT
#define STRUCT cyp_node_metrics
    CYP_SIZE(STRUCT)
    F(key) F(reserved) F(sensors)
#undef STRUCT
#define STRUCT cyp_sender_metrics
    CYP_SIZE(STRUCT)
    F(client) F(windows) F(connections) F(in_flight) F(metadata_ns) F(reserved) F(network) F(ended) F(nodes)
    F(topics)
#undef STRUCT
#define STRUCT cyp_crash_page
    CYP_SIZE(STRUCT)
    F(armed) F(signal) F(hits) F(fired) F(role) F(name)
#undef STRUCT
};

#undef F
#define CYP_FIELD_COUNT (sizeof(CYP_FIELDS) / sizeof(CYP_FIELDS[0]))

#endif
