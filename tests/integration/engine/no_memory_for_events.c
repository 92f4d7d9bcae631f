/* Makes realloc() fail, preloaded, for the table of the sender's events, in the set share of calls. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* The size of the table is a multiple of this: 64 events of 40 bytes (outcome.pyx). */
#define EVENTS_BYTES (64 * 40)

int cyp_failing_of_eight;
int cyp_failed;

void *realloc(void *at, size_t size) {
    static void *(*actual)(void *, size_t);
    static unsigned state = 1;
    Dl_info caller;
    if (!actual) actual = (void *(*)(void *, size_t))dlsym(RTLD_NEXT, "realloc");
    if (cyp_failing_of_eight && size % EVENTS_BYTES == 0 && dladdr(__builtin_return_address(0), &caller)
        && caller.dli_fname && strstr(caller.dli_fname, "/sender/engine/native.")) {
        state = state * 1103515245u + 12345u;
        if ((int)(state >> 16 & 7) < cyp_failing_of_eight) {
            cyp_failed++;
            return NULL;
        }
    }
    return actual(at, size);
}
