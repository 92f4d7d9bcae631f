/* Defines crash points: places where a test can make a debug build kill or stop its process. A release build has none.
 *
 * CYPRODUCER_CRASHPOINTS names a file of CYP_CRASH_BYTES that every process maps and a test writes. It says which point
 * acts, in which role, at which hit and with which signal. The hits of all processes are counted together and only one
 * hit acts, so the successor of a killed process is not killed at the same point. */
#ifndef CYPRODUCER_CRASHPOINT_H
#define CYPRODUCER_CRASHPOINT_H

#ifndef CYPRODUCER_DEBUG
#error "setup.py defines CYPRODUCER_DEBUG for every module"
#endif

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stddef.h>
#include <stdint.h>

#define CYP_CRASH_BYTES 4096u
#define CYP_CRASH_ROLE "CYPRODUCER_CRASH_ROLE"   /* in the environment of a process that is not a front-end */

typedef struct {
    uint32_t armed;             /* written by the test; 1 once all other fields are stored */
    int32_t signal;
    int64_t hits;               /* counted down; the process that makes it 0 acts */
    int32_t fired;              /* process id of the process that acted */
    char role[28];              /* "front-end", "sender" or "supervisor" */
    char name[128];
} cyp_crash_page;

#if CYPRODUCER_DEBUG
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static inline cyp_crash_page *cyp_crash_map(void) {
    const char *path = getenv("CYPRODUCER_CRASHPOINTS");
    void *at;
    int fd;
    if (path == NULL || (fd = open(path, O_RDWR | O_CLOEXEC)) < 0) {
        return NULL;
    }
    at = mmap(NULL, CYP_CRASH_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return at == MAP_FAILED ? NULL : (cyp_crash_page *)at;
}

static inline void cyp_crashpoint(const char *name) {
    static cyp_crash_page *page;
    static int looked;
    const char *role;
    if (!looked) {
        page = cyp_crash_map();
        looked = 1;
    }
    /* acquire: pairs with the test's store, which comes after the rest of the page */
    if (page == NULL || !__atomic_load_n(&page->armed, __ATOMIC_ACQUIRE) || strcmp(page->name, name) != 0) {
        return;
    }
    role = getenv(CYP_CRASH_ROLE);
    if (strcmp(page->role, role == NULL ? "front-end" : role) != 0
        || __atomic_sub_fetch(&page->hits, 1, __ATOMIC_ACQ_REL) != 0) {
        return;
    }
    __atomic_store_n(&page->fired, (int32_t)getpid(), __ATOMIC_RELEASE);
    raise(page->signal);
}

#define CYP_CRASHPOINT(name) cyp_crashpoint(name)
#else
#define CYP_CRASHPOINT(name) ((void)(name))
#endif
#endif
