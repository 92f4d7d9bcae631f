/* Compares the CRC-32C that this machine chooses with the portable one, for lengths and alignments around the loops. */
#include <stdio.h>
#include <stdlib.h>

#include "cyproducer/record/crc32c.h"

enum { BYTES = 1 << 16 };

int main(void) {
    static uint8_t data[BYTES];
    uint64_t seed = 88172645463325252ull;
    for (int i = 0; i < BYTES; i++) {
        seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
        data[i] = (uint8_t)seed;
    }
    cyp_crc32c_init();
    int chosen = cyp_crc32c_kind;
    if (cyp_crc32c(0, "123456789", 9) != 0xE3069283u) /* the check value of RFC 3720 */
        return fprintf(stderr, "the check value is %08x\n", cyp_crc32c(0, "123456789", 9)), 1;
    for (size_t n = 0; n < BYTES - 16; n = n < 4096 ? n + 1 : n + 4099)
        for (size_t at = 0; at < 16; at += n < 300 ? 1 : 5) {
            uint32_t fast = cyp_crc32c(7, data + at, n);
            cyp_crc32c_use(CYP_CRC32C_PORTABLE);
            uint32_t slow = cyp_crc32c(7, data + at, n);
            uint32_t joined = cyp_crc32c_combine(cyp_crc32c(7, data + at, n / 3), cyp_crc32c(0, data + at + n / 3, n - n / 3), n - n / 3);
            cyp_crc32c_use(chosen);
            if (fast != slow || joined != slow)
                return fprintf(stderr, "%zu bytes at %zu: %08x, portable %08x, joined %08x\n", n, at, fast, slow, joined), 1;
        }
    printf("%s\n", cyp_crc32c_names[chosen]);
    return 0;
}
