/* Measures the physical limits of the machine, as JSON: encoding a record, passing a word to a thread, loopback TCP.
 *
 * Usage: limits VALUE_BYTES MILLISECONDS. Each figure is the best of several stretches that together take about
 * MILLISECONDS: encode_ns (a Kafka record of one value into memory in the cache), ring_ns (one 64-bit entry through
 * a single-producer single-consumer ring), loopback_gb_per_s and loopback_ns_per_byte (CPU of the sending side).
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CHUNK = 64 << 10, RING = 1024, BLOCK = 256 << 10, STRETCHES = 5 };

static double now(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static uint8_t *put_varint(uint8_t *at, uint32_t value)
{
    for (value <<= 1; value > 0x7f; value >>= 7)
        *at++ = (uint8_t)(value | 0x80);
    *at++ = (uint8_t)value;
    return at;
}

/* length, attributes, timestamp delta, offset delta, no key, value, no headers (RecordBatch v2). */
static uint8_t *put_record(uint8_t *at, uint32_t delta, const uint8_t *value, uint32_t size)
{
    at = put_varint(at, size + 8);
    *at++ = 0;
    at = put_varint(at, 1);
    at = put_varint(at, delta);
    *at++ = 1;
    at = put_varint(at, size);
    memcpy(at, value, size);
    at += size;
    *at++ = 0;
    return at;
}

static double encode_ns(uint32_t size, double budget)
{
    static uint8_t chunk[CHUNK + 64];
    uint8_t *value = malloc(size);
    uint32_t per_chunk = CHUNK / (size + 24);
    double best = 1e18, end = now(CLOCK_MONOTONIC) + budget;
    if (!value || !per_chunk)
        fail("a value fits in no chunk");
    memset(value, 'v', size);
    do {
        double begin = now(CLOCK_MONOTONIC);
        for (int round = 0; round < 200; round++) {
            uint8_t *at = chunk;
            for (uint32_t i = 0; i < per_chunk; i++)
                at = put_record(at, i, value, size);
            __asm__ volatile("" : : "r"(at) : "memory");
        }
        double each = (now(CLOCK_MONOTONIC) - begin) / (200.0 * per_chunk);
        best = each < best ? each : best;
    } while (now(CLOCK_MONOTONIC) < end);
    free(value);
    return best;
}

static struct {
    _Alignas(64) _Atomic uint64_t head;
    _Alignas(64) _Atomic uint64_t tail;
    _Alignas(64) uint64_t entries[RING];
} ring;

static uint64_t ring_total;

static void *consume(void *unused)
{
    uint64_t sum = 0;
    (void)unused;
    for (uint64_t head = 0; head < ring_total;) {
        /* Pairs with the producer's release: the entries below `tail` are written. */
        uint64_t tail = atomic_load_explicit(&ring.tail, memory_order_acquire);
        if (tail == head)
            sched_yield();
        for (; head < tail; head++)
            sum += ring.entries[head % RING];
        /* Pairs with the producer's acquire: the entries below `head` have been read. */
        atomic_store_explicit(&ring.head, head, memory_order_release);
    }
    return (void *)(uintptr_t)sum;
}

static double ring_ns(uint64_t total)
{
    double best = 1e18;
    ring_total = total;
    for (int stretch = 0; stretch < STRETCHES; stretch++) {
        pthread_t consumer;
        atomic_store(&ring.head, 0);
        atomic_store(&ring.tail, 0);
        double begin = now(CLOCK_MONOTONIC);
        if (pthread_create(&consumer, NULL, consume, NULL))
            fail("pthread_create");
        for (uint64_t tail = 0; tail < total; tail++) {
            /* Pairs with the consumer's release: the place is free again. */
            while (tail - atomic_load_explicit(&ring.head, memory_order_acquire) == RING)
                sched_yield();
            ring.entries[tail % RING] = tail;
            /* Pairs with the consumer's acquire: the entry is written. */
            atomic_store_explicit(&ring.tail, tail + 1, memory_order_release);
        }
        pthread_join(consumer, NULL);
        double each = (now(CLOCK_MONOTONIC) - begin) / (double)total;
        best = each < best ? each : best;
    }
    return best;
}

static void drain(int listener)
{
    static uint8_t block[BLOCK];
    int fd = accept(listener, NULL, NULL);
    while (fd >= 0 && read(fd, block, sizeof block) > 0)
        ;
    _exit(0);
}

static void loopback(size_t total, double *gb_per_s, double *ns_per_byte)
{
    static uint8_t block[BLOCK];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    *gb_per_s = 0;
    *ns_per_byte = 1e18;
    for (int stretch = 0; stretch < STRETCHES; stretch++) {
        int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        address.sin_port = 0;
        if (bind(listener, (struct sockaddr *)&address, length) || listen(listener, 1) ||
            getsockname(listener, (struct sockaddr *)&address, &length))
            fail("listen");
        pid_t child = fork();
        if (child < 0)
            fail("fork");
        if (!child)
            drain(listener);
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fd, (struct sockaddr *)&address, length))
            fail("connect");
        double begin = now(CLOCK_MONOTONIC), used = now(CLOCK_PROCESS_CPUTIME_ID);
        for (size_t sent = 0; sent < total;) {
            ssize_t one = write(fd, block, sizeof block);
            if (one < 0)
                fail("write");
            sent += (size_t)one;
        }
        close(fd);
        close(listener);
        waitpid(child, NULL, 0);
        double rate = (double)total / (now(CLOCK_MONOTONIC) - begin);
        double each = (now(CLOCK_PROCESS_CPUTIME_ID) - used) / (double)total;
        *gb_per_s = rate > *gb_per_s ? rate : *gb_per_s;
        *ns_per_byte = each < *ns_per_byte ? each : *ns_per_byte;
    }
}

int main(int argc, char **argv)
{
    if (argc != 3 || atoi(argv[1]) < 1 || atoi(argv[2]) < 1) {
        fprintf(stderr, "usage: limits VALUE_BYTES MILLISECONDS\n");
        return 2;
    }
    double third = atoi(argv[2]) / 3.0, gb_per_s, ns_per_byte;
    double encode = encode_ns((uint32_t)atoi(argv[1]), third * 1e6);
    /* About 10 ns an entry, and 3 GB a second. */
    double handed = ring_ns((uint64_t)(third * 1e6 / 10 / STRETCHES) + 1);
    loopback((size_t)(third * 3e6 / STRETCHES) + BLOCK, &gb_per_s, &ns_per_byte);
    printf("{\"encode_ns\": %.3f, \"ring_ns\": %.3f, \"loopback_gb_per_s\": %.3f, \"loopback_ns_per_byte\": %.5f}\n",
           encode, handed, gb_per_s, ns_per_byte);
    return 0;
}
