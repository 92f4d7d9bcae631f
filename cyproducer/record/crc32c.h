/* Computes CRC-32C (Castagnoli, reflected 0x82F63B78). One implementation is chosen, at import of crc32c.pyx.
 *
 * Every implementation takes and returns the raw register (not inverted); cyp_crc32c inverts it before and after.
 * Let P be the polynomial, and let a register be a polynomial in bit-reversed order. The carry-less product of two
 * registers, fed to the 64-bit CRC instruction from register 0, is a * b * x^33 mod P. So a register is multiplied
 * by x^e with the constant x^(e - 33) mod P. The interleaved streams are joined, and checksums are
 * combined, in this way.
 */
#ifndef CYPRODUCER_RECORD_CRC32C_H
#define CYPRODUCER_RECORD_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <arm_acle.h>
#include <sys/auxv.h>
#endif

#define CYP_CRC32C_POLY 0x82F63B78u
/* x has order 2^31 - 1 mod P (P is x + 1 times a primitive polynomial of degree 31): exponents wrap there. */
#define CYP_CRC32C_ORDER 0x7FFFFFFFu
/* Largest number of words (8 bytes) in one of the three streams of a block; the table of joins has twice as many. */
#define CYP_CRC32C_STREAM_WORDS 256
/* For fewer bytes, joining three streams costs more than they save. */
#define CYP_CRC32C_SHORT 120

enum { CYP_CRC32C_PORTABLE, CYP_CRC32C_SSE42, CYP_CRC32C_PCLMUL, CYP_CRC32C_ARMV8, CYP_CRC32C_KINDS };

static const char *const cyp_crc32c_names[CYP_CRC32C_KINDS] = {"portable", "sse4.2", "sse4.2+pclmul", "armv8"};

typedef uint32_t (*cyp_crc32c_function)(uint32_t, const uint8_t *, size_t);

static uint32_t cyp_crc32c_slices[8][256];
/* x^(64 w - 33) for the distance of w words */
static uint32_t cyp_crc32c_join[2 * CYP_CRC32C_STREAM_WORDS + 1];
/* x^(8 * 2^i) and the same times x^-33 */
static uint32_t cyp_crc32c_powers[64];
static uint32_t cyp_crc32c_powers_join[64];
static int cyp_crc32c_kind = CYP_CRC32C_PORTABLE;

static inline uint64_t cyp_load64(const uint8_t *at) {
    uint64_t word;
    memcpy(&word, at, 8);
    return word;
}

/* ---- arithmetic mod P on registers -------------------------------------------------------------- */

static uint32_t cyp_crc32c_multiply(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (uint32_t bit = 0x80000000u; bit != 0; bit >>= 1) {
        if (a & bit)
            product ^= b;
        b = (b >> 1) ^ (CYP_CRC32C_POLY & (0u - (b & 1)));
    }
    return product;
}

/* x^e mod P; e may be negative */
static uint32_t cyp_crc32c_x_to(int64_t e) {
    uint32_t result = 0x80000000u, square = 0x40000000u;
    e %= (int64_t)CYP_CRC32C_ORDER;
    if (e < 0)
        e += CYP_CRC32C_ORDER;
    for (; e != 0; e >>= 1) {
        if (e & 1)
            result = cyp_crc32c_multiply(result, square);
        square = cyp_crc32c_multiply(square, square);
    }
    return result;
}

/* ---- portable: eight tables, eight bytes a step -------------------------------------------------- */

static uint32_t cyp_crc32c_portable(uint32_t crc, const uint8_t *at, size_t n) {
    for (; n >= 8; n -= 8, at += 8) {
        uint32_t low = crc ^ ((uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24);
        crc = cyp_crc32c_slices[7][low & 0xFF] ^ cyp_crc32c_slices[6][(low >> 8) & 0xFF] ^
              cyp_crc32c_slices[5][(low >> 16) & 0xFF] ^ cyp_crc32c_slices[4][low >> 24] ^
              cyp_crc32c_slices[3][at[4]] ^ cyp_crc32c_slices[2][at[5]] ^
              cyp_crc32c_slices[1][at[6]] ^ cyp_crc32c_slices[0][at[7]];
    }
    for (; n > 0; n--, at++)
        crc = (crc >> 8) ^ cyp_crc32c_slices[0][(crc ^ *at) & 0xFF];
    return crc;
}

/* ---- x86-64 ------------------------------------------------------------------------------------- */

#if defined(__x86_64__)
/* For Clang, the CRC instruction is a feature of its own. Older GCC does not know its name. */
#if defined(__clang__)
#define CYP_CRC32C_TARGET(features) __attribute__((target(features ",crc32")))
#else
#define CYP_CRC32C_TARGET(features) __attribute__((target(features)))
#endif

CYP_CRC32C_TARGET("sse4.2")
static uint32_t cyp_crc32c_sse42(uint32_t crc, const uint8_t *at, size_t n) {
    uint64_t wide = crc;
    for (; n >= 8; n -= 8, at += 8)
        wide = _mm_crc32_u64(wide, cyp_load64(at));
    crc = (uint32_t)wide;
    for (; n > 0; n--, at++)
        crc = _mm_crc32_u8(crc, *at);
    return crc;
}

/* a * b as 64 bits, to be reduced by the CRC instruction */
CYP_CRC32C_TARGET("sse4.2,pclmul")
static inline uint64_t cyp_crc32c_clmul(uint64_t a, uint32_t b) {
    return (uint64_t)_mm_cvtsi128_si64(
        _mm_clmulepi64_si128(_mm_cvtsi64_si128((int64_t)(uint32_t)a), _mm_cvtsi64_si128((int64_t)b), 0));
}

/* The CRC instruction has a latency of three cycles and a throughput of one per cycle: three streams keep it busy. The
 * next block's cache lines are prefetched meanwhile: another core may have them, and the hardware prefetcher does not
 * follow three streams well. */
CYP_CRC32C_TARGET("sse4.2,pclmul")
static uint32_t cyp_crc32c_pclmul(uint32_t crc, const uint8_t *at, size_t n) {
    while (n >= CYP_CRC32C_SHORT) {
        size_t words = n / 24 < CYP_CRC32C_STREAM_WORDS ? n / 24 : CYP_CRC32C_STREAM_WORDS;
        size_t stride = words * 8;
        const uint8_t *stop = at + stride;
        uint64_t first = crc, second = 0, third = 0;
        n -= 3 * stride;
        size_t ahead = n < 3 * stride ? 0 : 3 * stride;
        while (at != stop) {
            const uint8_t *line = stop - at < 64 ? stop : at + 64;
            __builtin_prefetch(at + ahead);
            __builtin_prefetch(at + ahead + stride);
            __builtin_prefetch(at + ahead + 2 * stride);
            do {
                first = _mm_crc32_u64(first, cyp_load64(at));
                second = _mm_crc32_u64(second, cyp_load64(at + stride));
                third = _mm_crc32_u64(third, cyp_load64(at + 2 * stride));
                at += 8;
            } while (at != line);
        }
        at += 2 * stride;
        crc = (uint32_t)(third ^ _mm_crc32_u64(0, cyp_crc32c_clmul(first, cyp_crc32c_join[2 * words]) ^
                                                      cyp_crc32c_clmul(second, cyp_crc32c_join[words])));
    }
    return cyp_crc32c_sse42(crc, at, n);
}

CYP_CRC32C_TARGET("sse4.2,pclmul")
static uint32_t cyp_crc32c_shift_pclmul(uint32_t crc, uint64_t length) {
    for (; length != 0; length &= length - 1)
        crc = (uint32_t)_mm_crc32_u64(0, cyp_crc32c_clmul(crc, cyp_crc32c_powers_join[__builtin_ctzll(length)]));
    return crc;
}
#endif

/* ---- ARMv8 -------------------------------------------------------------------------------------- */

#if defined(__aarch64__) && defined(__linux__)
#if defined(__clang__)
#define CYP_CRC32C_ARM_TARGET __attribute__((target("crc")))
#else
#define CYP_CRC32C_ARM_TARGET __attribute__((target("+crc")))
#endif
CYP_CRC32C_ARM_TARGET
static uint32_t cyp_crc32c_armv8(uint32_t crc, const uint8_t *at, size_t n) {
    for (; n >= 8; n -= 8, at += 8)
        crc = __crc32cd(crc, cyp_load64(at));
    for (; n > 0; n--, at++)
        crc = __crc32cb(crc, *at);
    return crc;
}
#endif

/* ---- choice ------------------------------------------------------------------------------------- */

static cyp_crc32c_function cyp_crc32c_chosen = cyp_crc32c_portable;

static int cyp_crc32c_supported(int kind) {
    switch (kind) {
    case CYP_CRC32C_PORTABLE:
        return 1;
#if defined(__x86_64__)
    case CYP_CRC32C_SSE42:
        return __builtin_cpu_supports("sse4.2") != 0;
    case CYP_CRC32C_PCLMUL:
        return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
#elif defined(__aarch64__) && defined(__linux__)
    case CYP_CRC32C_ARMV8:
        return (getauxval(AT_HWCAP) & (1ul << 7)) != 0; /* HWCAP_CRC32 */
#endif
    default:
        return 0;
    }
}

/* Switch to an implementation. Return 0, or -1 if this machine does not support it. Do not call this while another
 * thread computes a checksum. */
static int cyp_crc32c_use(int kind) {
    if (!cyp_crc32c_supported(kind))
        return -1;
    cyp_crc32c_kind = kind;
    switch (kind) {
#if defined(__x86_64__)
    case CYP_CRC32C_SSE42:
        cyp_crc32c_chosen = cyp_crc32c_sse42;
        break;
    case CYP_CRC32C_PCLMUL:
        cyp_crc32c_chosen = cyp_crc32c_pclmul;
        break;
#elif defined(__aarch64__) && defined(__linux__)
    case CYP_CRC32C_ARMV8:
        cyp_crc32c_chosen = cyp_crc32c_armv8;
        break;
#endif
    default:
        cyp_crc32c_chosen = cyp_crc32c_portable;
    }
    return 0;
}

/* Fill the tables and choose the fastest implementation. Call this once, before any other function here. */
static void cyp_crc32c_init(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (CYP_CRC32C_POLY & (0u - (crc & 1)));
        cyp_crc32c_slices[0][byte] = crc;
    }
    for (int slice = 1; slice < 8; slice++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t crc = cyp_crc32c_slices[slice - 1][byte];
            cyp_crc32c_slices[slice][byte] = (crc >> 8) ^ cyp_crc32c_slices[0][crc & 0xFF];
        }
    uint32_t word = cyp_crc32c_x_to(64);
    cyp_crc32c_join[0] = cyp_crc32c_x_to(-33);
    for (int i = 1; i <= 2 * CYP_CRC32C_STREAM_WORDS; i++)
        cyp_crc32c_join[i] = cyp_crc32c_multiply(cyp_crc32c_join[i - 1], word);
    uint32_t power = cyp_crc32c_x_to(8);
    for (int i = 0; i < 64; i++) {
        cyp_crc32c_powers[i] = power;
        cyp_crc32c_powers_join[i] = cyp_crc32c_multiply(power, cyp_crc32c_join[0]);
        power = cyp_crc32c_multiply(power, power);
    }
#if defined(__x86_64__)
    __builtin_cpu_init();
#endif
    for (int kind = CYP_CRC32C_KINDS - 1; kind >= 0; kind--)
        if (cyp_crc32c_use(kind) == 0)
            return;
}

/* ---- what callers use --------------------------------------------------------------------------- */

/* Return the checksum of the bytes that `crc` covers followed by n bytes; crc is a finished value, 0 at the start. */
static uint32_t cyp_crc32c(uint32_t crc, const void *data, size_t n) {
    return ~cyp_crc32c_chosen(~crc, (const uint8_t *)data, n);
}

/* Return the checksum of A followed by B, from crc(A), crc(B) and the length of B in bytes. The inversions cancel. */
static uint32_t cyp_crc32c_combine(uint32_t crc1, uint32_t crc2, uint64_t len2) {
#if defined(__x86_64__)
    if (cyp_crc32c_kind == CYP_CRC32C_PCLMUL)
        return cyp_crc32c_shift_pclmul(crc1, len2) ^ crc2;
#endif
    for (; len2 != 0; len2 &= len2 - 1)
        crc1 = cyp_crc32c_multiply(crc1, cyp_crc32c_powers[__builtin_ctzll(len2)]);
    return crc1 ^ crc2;
}

#endif
