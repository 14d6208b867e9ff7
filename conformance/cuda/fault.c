// A CUDA driver that fails on demand. Functions that are not defined here resolve to the real driver, which this library is linked with.
//
// FAULT=function:call:code makes a function fail with that code from that call on. Errors are sticky for all functions here, one of
// which every operation needs. Only out-of-memory (code 2) is not: it fails the calls of that function alone.
// FAULT_COUNTS=file receives the number of calls of each function at exit.

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INIT, ALLOCATE, LAUNCH, GRAPH_LAUNCH, SYNCHRONIZE, COUNT };
static const char* const NAMES[COUNT] = {"cuInit", "cuMemAlloc_v2", "cuLaunchKernel", "cuGraphLaunch", "cuStreamSynchronize"};
static void* real[COUNT];
static atomic_long calls[COUNT];
static atomic_int sticky_error;
static long first_call;
static int failing = -1, code;

__attribute__((constructor)) static void load(void) {
    void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) fprintf(stderr, "%s\n", dlerror()), exit(2);
    for (int i = 0; i < COUNT; i++) real[i] = dlsym(driver, NAMES[i]);
    char name[64];
    const char* fault = getenv("FAULT");
    if (!fault) return;
    if (sscanf(fault, "%63[^:]:%ld:%d", name, &first_call, &code) == 3)
        for (int i = 0; i < COUNT; i++)
            if (!strcmp(name, NAMES[i])) failing = i;
    if (failing < 0) fprintf(stderr, "FAULT=%s is not FUNCTION:CALL:CODE with a known function\n", fault), exit(2);
}

__attribute__((destructor)) static void write_counts(void) {
    const char* path = getenv("FAULT_COUNTS");
    FILE* file = path ? fopen(path, "w") : NULL;
    if (!file) return;
    for (int i = 0; i < COUNT; i++) fprintf(file, "%s %ld\n", NAMES[i], (long)calls[i]);
    fclose(file);
}

static int error_of(int function) {
    long call = ++calls[function];
    if (function == failing && call >= first_call) {
        if (code != 2) sticky_error = code;
        return code;
    }
    return sticky_error;
}

#define WRAP(function, name, parameters, arguments) \
    int name parameters { \
        int error = error_of(function); \
        return error ? error : ((int(*) parameters)real[function])arguments; \
    }
WRAP(INIT, cuInit, (unsigned flags), (flags))
WRAP(ALLOCATE, cuMemAlloc_v2, (unsigned long long* at, size_t bytes), (at, bytes))
WRAP(LAUNCH, cuLaunchKernel, (void* f, unsigned a, unsigned b, unsigned c, unsigned x, unsigned y, unsigned z, unsigned shared, void* stream, void** arguments, void** extra), (f, a, b, c, x, y, z, shared, stream, arguments, extra))
WRAP(GRAPH_LAUNCH, cuGraphLaunch, (void* graph, void* stream), (graph, stream))
WRAP(SYNCHRONIZE, cuStreamSynchronize, (void* stream), (stream))
