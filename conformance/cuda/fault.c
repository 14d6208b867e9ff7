// A driver that fails on demand: what is not here is looked up in the real one, which this library is linked with.
//
// FAULT=function:call:code lets a function fail from that call on with that code. A card that is lost stays lost, for the
// functions here, one of which every piece of work needs; memory (code 2) is only short for those who ask for it.
// FAULT_COUNTS=file gets, at the end, how often each was called.

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INIT, ALLOCATE, LAUNCH, REPLAY, WAIT, COUNT };
static const char* const NAMES[COUNT] = {"cuInit", "cuMemAlloc_v2", "cuLaunchKernel", "cuGraphLaunch", "cuStreamSynchronize"};
static void* real[COUNT];
static atomic_long calls[COUNT];
static atomic_int lost;
static long from;
static int failing = -1, code;

__attribute__((constructor)) static void begin(void) {
    void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) fprintf(stderr, "%s\n", dlerror()), exit(2);
    for (int i = 0; i < COUNT; i++) real[i] = dlsym(driver, NAMES[i]);
    char name[64];
    const char* fault = getenv("FAULT");
    if (!fault) return;
    if (sscanf(fault, "%63[^:]:%ld:%d", name, &from, &code) == 3)
        for (int i = 0; i < COUNT; i++)
            if (!strcmp(name, NAMES[i])) failing = i;
    if (failing < 0) fprintf(stderr, "FAULT=%s names no function, call and code\n", fault), exit(2);
}

__attribute__((destructor)) static void end(void) {
    const char* path = getenv("FAULT_COUNTS");
    FILE* file = path ? fopen(path, "w") : NULL;
    if (!file) return;
    for (int i = 0; i < COUNT; i++) fprintf(file, "%s %ld\n", NAMES[i], (long)calls[i]);
    fclose(file);
}

static int fails(int which) {
    long call = ++calls[which];
    if (which == failing && call >= from) {
        if (code != 2) lost = code;
        return code;
    }
    return lost;
}

#define FAILING(which, name, takes, passes) \
    int name takes { \
        int said = fails(which); \
        return said ? said : ((int(*) takes)real[which])passes; \
    }
FAILING(INIT, cuInit, (unsigned flags), (flags))
FAILING(ALLOCATE, cuMemAlloc_v2, (unsigned long long* at, size_t bytes), (at, bytes))
FAILING(LAUNCH, cuLaunchKernel, (void* f, unsigned a, unsigned b, unsigned c, unsigned x, unsigned y, unsigned z, unsigned shared, void* stream, void** takes, void** more), (f, a, b, c, x, y, z, shared, stream, takes, more))
FAILING(REPLAY, cuGraphLaunch, (void* graph, void* stream), (graph, stream))
FAILING(WAIT, cuStreamSynchronize, (void* stream), (stream))
