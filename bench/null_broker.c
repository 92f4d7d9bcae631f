/* Runs a broker that answers every Produce request with success and drops it, so that only the client is the limit.
 *
 * Usage: null_broker COUNTERS PARTITIONS CHECK_EVERY NODE [KEYSTORE]. KEYSTORE is used only if it is compiled with
 * WITH_TLS, and is necessary then (see null_stream.h). Prints its port on 127.0.0.1, reads a line with the
 * ports of all nodes of its cluster (NODE is its place in it, from 0), serves, and ends when its standard input
 * ends. Every topic exists with PARTITIONS partitions, led by the nodes in turn. Each batch's header, count and
 * sequence are checked; of every CHECK_EVERYth batch (0: of none), and of the next one when the benchmark writes 1 into
 * `wanted`, the CRC-32C is checked too, and the batch is kept as a sample. The file COUNTERS holds what it has
 * counted, as `struct counters`. One thread; requests of a connection are answered in order, as Kafka does.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>

#include "null_stream.h"

enum { PRODUCE = 0, FETCH = 1, METADATA = 3, FIND_COORDINATOR = 10, API_VERSIONS = 18, INIT_PRODUCER_ID = 22 };
enum { CORRUPT_MESSAGE = 2, NOT_LEADER = 6, UNSUPPORTED_VERSION = 35, OUT_OF_ORDER_SEQUENCE_NUMBER = 45 };
enum { HEADER = 61, LARGEST_FRAME = 128 << 20, FIRST_READ = 4096, LONGEST_NAME = 249 };
/* The table of topics is never filled more than half. */
enum { TOPIC_PLACES = 16384, MOST_NODES = 16, LARGEST_SAMPLE = 4 << 20, MOST_REPORTS = 20 };
enum outcome { ANSWERED, REFUSED, NO_READER };

/* Fetch and FindCoordinator are announced, but no client requests them: librdkafka uses RecordBatch v2 and lz4 only if
 * a broker announces these requests (rdkafka_feature.c). */
static const int16_t APIS[][3] = {
    {PRODUCE, 3, 9}, {FETCH, 0, 11}, {METADATA, 1, 4}, {FIND_COORDINATOR, 0, 2}, {API_VERSIONS, 0, 3}, {INIT_PRODUCER_ID, 0, 1},
};
enum { API_COUNT = sizeof APIS / sizeof APIS[0] };

/* `faults`: batches and frames that were refused; `unread`: answers to a connection that its client had closed;
 * `handshakes`: those of TLS that were completed. */
struct counters {
    uint64_t records, batches, requests, bytes, faults, unread, connections, handshakes, samples;
    volatile uint64_t wanted;
    uint64_t sample_size;
    uint8_t sample[LARGEST_SAMPLE];
};

struct partition {
    int64_t next_offset, producer_id;
    int32_t next_sequence;
};

struct topic {
    char name[LONGEST_NAME];
    size_t length;
    struct partition *partitions;
};

struct connection {
    struct stream stream;
    size_t have, capacity;
    uint8_t *data;
};

/* Reading past the end sets `failed` and gives zeros; the frame is then refused as a whole. */
struct reader {
    const uint8_t *at, *end;
    int failed, flexible;
};

struct writer {
    uint8_t *data;
    size_t size, capacity;
};

static struct counters *seen;
static struct topic topics[TOPIC_PLACES];
static int topic_count, partition_count, check_every, node, node_count, ports[MOST_NODES];
static int64_t next_producer_id = 1;
static struct writer out;
static uint32_t crc_table[256];

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static const uint8_t *take(struct reader *r, size_t size)
{
    static const uint8_t zeros[16];
    if (r->failed || (size_t)(r->end - r->at) < size) {
        r->failed = 1;
        return zeros;
    }
    r->at += size;
    return r->at - size;
}

static int16_t load16(const uint8_t *p) { uint16_t v; memcpy(&v, p, 2); return (int16_t)be16toh(v); }
static int32_t load32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return (int32_t)be32toh(v); }
static int64_t load64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return (int64_t)be64toh(v); }
static int16_t get16(struct reader *r) { return load16(take(r, 2)); }
static int32_t get32(struct reader *r) { return load32(take(r, 4)); }

static uint32_t get_uvarint(struct reader *r)
{
    uint32_t value = 0;
    for (int shift = 0; shift < 35; shift += 7) {
        uint8_t byte = *take(r, 1);
        value |= (uint32_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80))
            return value;
    }
    r->failed = 1;
    return 0;
}

/* A length of the encoding: -1 is null. `wide` has 4 bytes (arrays, records), else 2 (strings). */
static int32_t get_length(struct reader *r, int wide)
{
    if (r->flexible)
        return (int32_t)get_uvarint(r) - 1;
    return wide ? get32(r) : get16(r);
}

static const uint8_t *get_bytes(struct reader *r, int wide, int32_t *length)
{
    *length = get_length(r, wide);
    return *length > 0 ? take(r, (size_t)*length) : NULL;
}

static void skip_tags(struct reader *r)
{
    for (uint32_t left = r->flexible ? get_uvarint(r) : 0; left > 0 && !r->failed; left--) {
        get_uvarint(r);
        take(r, get_uvarint(r));
    }
}

static void put(const void *data, size_t size)
{
    if (out.size + size > out.capacity) {
        out.capacity = 2 * (out.size + size);
        out.data = realloc(out.data, out.capacity);
        if (!out.data)
            fail("realloc");
    }
    memcpy(out.data + out.size, data, size);
    out.size += size;
}

static void put8(uint8_t v) { put(&v, 1); }
static void put16(int16_t v) { uint16_t w = htobe16((uint16_t)v); put(&w, 2); }
static void put32(int32_t v) { uint32_t w = htobe32((uint32_t)v); put(&w, 4); }
static void put64(int64_t v) { uint64_t w = htobe64((uint64_t)v); put(&w, 8); }

static void put_length(int flexible, int wide, int32_t length)
{
    if (!flexible) {
        if (wide)
            put32(length);
        else
            put16((int16_t)length);
        return;
    }
    uint32_t value = (uint32_t)length + 1;
    for (; value > 0x7f; value >>= 7)
        put8((uint8_t)(value | 0x80));
    put8((uint8_t)value);
}

static void put_string(int flexible, const void *text, size_t length)
{
    put_length(flexible, 0, (int32_t)length);
    put(text, length);
}

static void put_tags(int flexible)
{
    if (flexible)
        put8(0);
}

/* By FNV-1a and linear probing. */
static struct topic *find_topic(const uint8_t *name, int32_t length)
{
    if (length < 1 || length > LONGEST_NAME)
        return NULL;
    uint32_t place = 2166136261u;
    for (int32_t i = 0; i < length; i++)
        place = (place ^ name[i]) * 16777619u;
    for (;; place++) {
        struct topic *found = &topics[place % TOPIC_PLACES];
        if (found->length == (size_t)length && !memcmp(found->name, name, (size_t)length))
            return found;
        if (found->length)
            continue;
        if (topic_count == TOPIC_PLACES / 2)
            return NULL;
        topic_count++;
        memcpy(found->name, name, (size_t)length);
        found->length = (size_t)length;
        found->partitions = calloc((size_t)partition_count, sizeof *found->partitions);
        if (!found->partitions)
            fail("calloc");
        return found;
    }
}

static uint32_t crc32c(const uint8_t *data, size_t size)
{
    uint32_t crc = 0xffffffff;
#ifdef __SSE4_2__
    for (; size >= 8; size -= 8, data += 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        crc = (uint32_t)__builtin_ia32_crc32di(crc, word);
    }
#endif
    for (; size; size--, data++)
        crc = crc >> 8 ^ crc_table[(crc ^ *data) & 0xff];
    return ~crc;
}

/* Kafka's error code for a partition's records; `*base_offset` is the offset that they would get. */
static int16_t judge(struct partition *part, const uint8_t *records, int32_t size, int64_t *base_offset)
{
    *base_offset = -1;
    if (size < HEADER || load32(records + 8) != size - 12 || records[16] != 2)
        return CORRUPT_MESSAGE;
    int32_t count = load32(records + 57), sequence = load32(records + 53);
    int64_t producer_id = load64(records + 43);
    if (count < 1 || load32(records + 23) != count - 1)
        return CORRUPT_MESSAGE;
    int sampled = check_every && (seen->wanted || seen->batches % (uint64_t)check_every == 0);
    if (sampled && crc32c(records + 21, (size_t)size - 21) != (uint32_t)load32(records + 17))
        return CORRUPT_MESSAGE;
    if (producer_id >= 0) {
        if (part->producer_id == producer_id && part->next_sequence != sequence)
            return OUT_OF_ORDER_SEQUENCE_NUMBER;
        part->producer_id = producer_id;
        part->next_sequence = (int32_t)(((uint32_t)sequence + (uint32_t)count) & 0x7fffffff);
    }
    *base_offset = part->next_offset;
    part->next_offset += count;
    seen->records += (uint64_t)count;
    seen->batches++;
    seen->bytes += (uint64_t)size;
    if (sampled && size <= LARGEST_SAMPLE) {
        memcpy(seen->sample, records, (size_t)size);
        seen->sample_size = (uint64_t)size;
        seen->samples++;
        seen->wanted = 0;
    }
    return 0;
}

static void report(struct topic *topic, int32_t index, int16_t error, const uint8_t *records, int32_t size)
{
    if (seen->faults++ >= MOST_REPORTS)
        return; /* a client tries it again and again */
    if (!topic)
        fprintf(stderr, "null broker: no room for another topic: it has %d\n", topic_count);
    else if (index < 0 || index >= partition_count || !records || size < HEADER)
        fprintf(stderr, "null broker: error %d: no such partition (%d), or %d bytes\n", error, index, size);
    else
        fprintf(stderr,
                "null broker: error %d: partition %d, %d bytes, length %d, magic %d, count %d, last offset %d, "
                "producer %lld, sequence %d, expected %d, CRC %08x, found %08x\n",
                error, index, size, load32(records + 8), records[16], load32(records + 57), load32(records + 23),
                (long long)load64(records + 43), load32(records + 53), topic->partitions[index].next_sequence,
                (uint32_t)load32(records + 17), crc32c(records + 21, (size_t)size - 21));
}

static void produce_partition(struct reader *r, struct topic *topic, int version)
{
    int32_t size, index = get32(r);
    int64_t base_offset = -1;
    const uint8_t *records = get_bytes(r, 1, &size);
    int16_t error = CORRUPT_MESSAGE;
    skip_tags(r);
    if (!r->failed && topic && index >= 0 && index < partition_count && index % node_count != node)
        error = NOT_LEADER;
    else if (!r->failed && topic && index >= 0 && index < partition_count && records)
        error = judge(&topic->partitions[index], records, size, &base_offset);
    if (error)
        report(topic, index, error, records, size);
    put32(index);
    put16(error);
    put64(base_offset);
    put64(-1);
    if (version >= 5)
        put64(0);
    if (version >= 8) {
        put_length(r->flexible, 1, 0);
        put_length(r->flexible, 0, -1);
    }
    put_tags(r->flexible);
}

/* False: acks=0, so there is no answer. */
static int produce(struct reader *r, int version)
{
    int32_t length;
    get_bytes(r, 0, &length);
    int16_t acks = get16(r);
    get32(r);
    int32_t topics_left = get_length(r, 1);
    put_length(r->flexible, 1, topics_left);
    for (; topics_left > 0 && !r->failed; topics_left--) {
        const uint8_t *name = get_bytes(r, 0, &length);
        if (!name)
            r->failed = 1;
        if (r->failed)
            break;
        put_string(r->flexible, name, (size_t)length);
        int32_t partitions_left = get_length(r, 1);
        put_length(r->flexible, 1, partitions_left);
        struct topic *topic = find_topic(name, length);
        for (; partitions_left > 0 && !r->failed; partitions_left--)
            produce_partition(r, topic, version);
        skip_tags(r);
        put_tags(r->flexible);
    }
    put32(0);
    put_tags(r->flexible);
    skip_tags(r);
    seen->requests++;
    return acks != 0;
}

static void put_topic(const uint8_t *name, int32_t length)
{
    put16(0);
    put_string(0, name, (size_t)length);
    put8(0);
    put32(partition_count);
    for (int32_t i = 0; i < partition_count; i++) {
        put16(0);
        put32(i);
        put32(i % node_count); /* leader */
        put32(1);              /* replicas: itself */
        put32(i % node_count);
        put32(1); /* in sync: itself */
        put32(i % node_count);
    }
}

static void metadata(struct reader *r, int version)
{
    int32_t length, left = get32(r);
    if (version >= 3)
        put32(0);
    put32(node_count);
    for (int32_t i = 0; i < node_count; i++) {
        put32(i);
        put_string(0, "127.0.0.1", 9);
        put32(ports[i]);
        put16(-1); /* rack */
    }
    if (version >= 2)
        put_string(0, "null-broker", 11);
    put32(0); /* controller */
    put32(left > 0 ? left : 0);
    for (; left > 0 && !r->failed; left--) {
        const uint8_t *name = get_bytes(r, 0, &length);
        if (!name || r->failed) {
            r->failed = 1;
            return;
        }
        put_topic(name, length);
    }
    if (version >= 4)
        take(r, 1);
}

static void api_versions(int version)
{
    int known = version <= 3, flexible = known && version == 3;
    put16(known ? 0 : UNSUPPORTED_VERSION);
    put_length(flexible, 1, API_COUNT);
    for (int i = 0; i < API_COUNT; i++) {
        for (int j = 0; j < 3; j++)
            put16(APIS[i][j]);
        put_tags(flexible);
    }
    if (known && version >= 1)
        put32(0);
    put_tags(flexible);
}

static int supported(int api, int version)
{
    for (int i = 0; i < API_COUNT; i++)
        if (APIS[i][0] == api)
            return api == API_VERSIONS || (version >= APIS[i][1] && version <= APIS[i][2]);
    return 0;
}

/* Answers one request (without its size). If it is REFUSED or has NO_READER, the connection is to end. */
static enum outcome answer(struct stream *stream, const uint8_t *data, size_t size)
{
    struct reader r = {.at = data, .end = data + size};
    int32_t length;
    int api = get16(&r), version = get16(&r), respond = 1;
    int32_t correlation = get32(&r);
    get_bytes(&r, 0, &length);
    if (r.failed || api == FETCH || !supported(api, version))
        return REFUSED;
    out.size = 0;
    put32(0);
    put32(correlation);
    r.flexible = api == PRODUCE && version >= 9;
    skip_tags(&r);
    put_tags(r.flexible);
    switch (api) {
    case PRODUCE:
        respond = produce(&r, version);
        break;
    case METADATA:
        metadata(&r, version);
        break;
    case API_VERSIONS:
        api_versions(version);
        break;
    default:
        put32(0);
        put16(0);
        put64(next_producer_id++);
        put16(0);
    }
    if (r.failed)
        return REFUSED;
    uint32_t total = htobe32((uint32_t)(out.size - 4));
    memcpy(out.data, &total, 4);
    return !respond || stream_write_all(stream, out.data, out.size) ? ANSWERED : NO_READER;
}

/* Reads the bytes that have arrived and answers the complete requests. False: the connection has ended. */
static int serve(struct connection *c)
{
    size_t wanted = c->have >= 4 ? 4 + (size_t)load32(c->data) : FIRST_READ;
    if (wanted > c->capacity) {
        c->capacity = wanted;
        c->data = realloc(c->data, wanted);
        if (!c->data)
            fail("realloc");
    }
    ssize_t got = stream_read(&c->stream, c->data + c->have, wanted - c->have);
    seen->handshakes += (uint64_t)stream_is_new(&c->stream);
    if (got <= 0)
        return got < 0 && (errno == EAGAIN || errno == EINTR);
    c->have += (size_t)got;
    size_t at = 0;
    while (c->have - at >= 4) {
        int32_t frame = load32(c->data + at);
        int valid = frame >= 8 && frame <= LARGEST_FRAME;
        if (valid && (size_t)frame > c->have - at - 4)
            break;
        enum outcome outcome = valid ? answer(&c->stream, c->data + at + 4, (size_t)frame) : REFUSED;
        if (outcome != ANSWERED) {
            *(outcome == REFUSED ? &seen->faults : &seen->unread) += 1;
            return 0;
        }
        at += 4 + (size_t)frame;
    }
    c->have -= at;
    memmove(c->data, c->data + at, c->have);
    return 1;
}

static int listening(int *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, length) || listen(fd, 1024) ||
        getsockname(fd, (struct sockaddr *)&address, &length))
        fail("listen");
    *port = ntohs(address.sin_port);
    return fd;
}

static void watch(int epoll, int fd, void *tag)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = tag};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event))
        fail("epoll_ctl");
}

static void prepare(char **argv)
{
    partition_count = atoi(argv[2]);
    check_every = atoi(argv[3]);
    node = atoi(argv[4]);
    int file = open(argv[1], O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, sizeof *seen))
        fail(argv[1]);
    seen = mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (seen == MAP_FAILED)
        fail("mmap");
    close(file);
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0x82f63b78 : crc >> 1;
        crc_table[i] = crc;
    }
}

/* Reads a line of ports and nothing after it: epoll waits for the end of the input. */
static int read_ports(void)
{
    char line[MOST_NODES * 8], *at = line, *end;
    size_t length = 0;
    for (; length < sizeof line - 1 && read(0, line + length, 1) == 1 && line[length] != '\n'; length++)
        ;
    line[length] = 0;
    for (node_count = 0; node_count < MOST_NODES; node_count++, at = end) {
        ports[node_count] = (int)strtol(at, &end, 10);
        if (end == at)
            break;
    }
    return node < node_count;
}

int main(int argc, char **argv)
{
    if (argc < 5 || argc > 6 || atoi(argv[2]) < 1) {
        fprintf(stderr, "usage: null_broker COUNTERS PARTITIONS CHECK_EVERY NODE [KEYSTORE]\n");
        return 2;
    }
    prepare(argv);
    stream_prepare(argv[5]);
    static int input_tag, listener_tag;
    int port, listener = listening(&port), epoll = epoll_create1(EPOLL_CLOEXEC), one = 1;
    printf("%d\n", port);
    fflush(stdout);
    if (!read_ports())
        return 1;
    watch(epoll, listener, &listener_tag);
    watch(epoll, 0, &input_tag);
    for (;;) {
        struct epoll_event event;
        if (epoll_wait(epoll, &event, 1, -1) < 1)
            continue;
        if (event.data.ptr == &input_tag)
            return 0;
        if (event.data.ptr == &listener_tag) {
            struct connection *made = calloc(1, sizeof *made);
            int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
            if (!made || fd < 0 || !stream_open(&made->stream, fd))
                fail("accept");
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
            watch(epoll, fd, made);
            seen->connections++;
            continue;
        }
        struct connection *c = event.data.ptr;
        int alive;
        do
            alive = serve(c);
        while (alive && stream_holds_more(&c->stream));
        if (!alive) {
            stream_close(&c->stream);
            free(c->data);
            free(c);
        }
    }
}
