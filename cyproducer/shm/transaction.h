/* Declares the rows of transactional producers in the state region. layout.h includes it. */
#ifndef CYPRODUCER_TRANSACTION_H
#define CYPRODUCER_TRANSACTION_H

#include <stdalign.h>
#include <stddef.h>
#include <stdint.h>

#include "cyproducer/shm/sizes.h"

/* A transactional producer has a row. What changes together is in one of two places: a change fills the place that is
 * not in force, then stores `current`. IN_TRANSACTION, `failed` and `needs_epoch` are stored into the place that is in
 * force. */
#define CYP_TRANSACTIONS_MAX 1024u
#define CYP_TRANSACTIONAL_ID_BYTES 256           /* at most 255 are used */

/* cyproducer/transaction_states.py says what they mean. tools/generate.py writes them from it. */
enum cyp_transaction_state {
    CYP_TRANSACTION_UNINITIALIZED = 0,
    CYP_TRANSACTION_READY = 1,
    CYP_TRANSACTION_IN_TRANSACTION = 2,
    CYP_TRANSACTION_COMMITTING_TRANSACTION = 3,
    CYP_TRANSACTION_ABORTING_TRANSACTION = 4,
    CYP_TRANSACTION_FATAL_ERROR = 5,
};

typedef struct {
    int64_t producer_id;        /* -1: none yet */
    uint64_t number;            /* of the last command of the front-end that has a result; 0: none */
    int32_t result;             /* of that command: 0, or the code of its error */
    uint32_t phase;             /* a cyp_transaction_state */
    int32_t failed;             /* not 0: code of the first failed record. The transaction can only be aborted */
    int16_t producer_epoch;
    uint8_t v2;                 /* 1: a Produce request adds its partitions to the transaction (KIP-890) */
    uint8_t needs_epoch;        /* 1: batches with a sequence were dropped, so the next transaction needs a new epoch */
} cyp_transaction_place;

typedef struct {
    alignas(CYP_CACHE_LINE) uint32_t used;  /* 0: free; stored after the other fields */
    uint32_t current;           /* index of the place in force */
    uint64_t attach_id;         /* of its front-end; 0: several front-ends take part, and another process ends it */
    int32_t timeout_ms;
    uint32_t id_bytes;
    cyp_transaction_place places[2];
    char id[CYP_TRANSACTIONAL_ID_BYTES];
} cyp_transaction_row;
_Static_assert(sizeof(cyp_transaction_row) == 384, "six cache lines");

#endif
