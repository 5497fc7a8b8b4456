/*
 * rcclsim: which network does this RCCL take when it makes a communicator? A SIMULATION, for machines without a GPU.
 *
 * RCCL looks for its net plugin (in ncclGetUniqueId, or from 2.22 on when the first communicator is made) and calls the plugin's
 * init before it does anything that needs a GPU for more than its number and its properties. So this program answers those few
 * questions of RCCL in the place of the HIP runtime, as a machine with one GPU would, and lets RCCL make a communicator of one
 * rank. RCCL itself, the loader, the plugin and libfabric are the image's own, untouched; the lines that RCCL prints
 * (`Using network ...`) are genuine. Every other function is the image's own HIP, which has no GPU: the first of them that RCCL
 * needs fails, and with it the communicator. That is expected, and the end of what can be shown.
 *
 * The stand-in is in this executable, whose symbols come before those of all libraries in the global scope (ld.so(8)), so it
 * must be linked with -rdynamic; nothing is preloaded, and no other process can meet it.
 *
 * It proves which plugin RCCL takes and what becomes of the plugin's init. It proves nothing of GPU memory, of connections, or of
 * bandwidth. It sets and clears no environment variable: NCCL_DEBUG=INFO and the rest are the caller's to choose.
 */
#include "probe.h"

struct unique_id {
    char bytes[128];
};

static const char usage[] =
    "usage: rcclsim [--timeout SECONDS] LIBRARY\n"
    "SIMULATION: load LIBRARY (librccl.so.1), answer for the HIP runtime as a machine with one GPU would, and let it make a\n"
    "communicator of one rank, which fails as soon as a GPU is needed. What counts is what it prints before that.\n"
    "exit: 0 it ran through, whatever RCCL answered; 10 LIBRARY cannot be loaded; 11 it is no RCCL; 16 timed out; 2 usage\n";

/* ---- the stand-in: what RCCL asks of the HIP runtime before its network is chosen ---- */

/*
 * RCCL 2.13.4 needs the first four, 2.27.7 all of them: both were run. Of those between, src/init.cc of 2.20.5 and 2.21.5 was read
 * as far as ncclNetInit, and nothing else was seen there that must succeed. Values are those of an MI250X where RCCL looks at
 * them. Layouts and numbers: hip_runtime_api.h of ROCm 6.4 and 7.2; the structure has had the name R0600 since ROCm 6.0.
 */
enum { HIP_SUCCESS = 0, HIP_INVALID_VALUE = 1, HIP_OUT_OF_MEMORY = 2 };
enum { COMPUTE_MAJOR = 23, COMPUTE_MINOR = 61, SHARED_MEMORY_PER_BLOCK = 74, SHARED_MEMORY_OPT_IN = 75, WARP_SIZE = 87 };
enum { PROPERTIES_BYTES = 1472, ARCHITECTURE_AT = 1160 };

int hipGetDeviceCount(int *count);
int hipGetDevice(int *device);
int hipSetDevice(int device);
int hipFree(void *memory);
int hipDeviceGetAttribute(int *value, int attribute, int device);
int hipGetDevicePropertiesR0600(void *properties, int device);
int hipFuncSetAttribute(const void *function, int attribute, int value);
int hipThreadExchangeStreamCaptureMode(int *mode);
int hipHostMalloc(void **memory, size_t size, unsigned flags);
int hipHostFree(void *memory);

int hipGetDeviceCount(int *count)
{
    *count = 1;
    return HIP_SUCCESS;
}

int hipGetDevice(int *device)
{
    *device = 0;
    return HIP_SUCCESS;
}

int hipSetDevice(int device)
{
    return device == 0 ? HIP_SUCCESS : HIP_INVALID_VALUE;
}

/* RCCL frees NULL to have the runtime started. */
int hipFree(void *memory)
{
    return memory ? HIP_INVALID_VALUE : HIP_SUCCESS;
}

int hipDeviceGetAttribute(int *value, int attribute, int device)
{
    switch (attribute) {
    case COMPUTE_MAJOR:
        *value = 9;
        break;
    case SHARED_MEMORY_PER_BLOCK:
    case SHARED_MEMORY_OPT_IN:
        *value = 65536;
        break;
    case WARP_SIZE:
        *value = 64;
        break;
    case COMPUTE_MINOR:
    default:
        *value = 0;
    }
    return hipSetDevice(device);
}

int hipGetDevicePropertiesR0600(void *properties, int device)
{
    memset(properties, 0, PROPERTIES_BYTES);
    strcpy((char *)properties + ARCHITECTURE_AT, "gfx90a");
    return hipSetDevice(device);
}

int hipFuncSetAttribute(const void *function, int attribute, int value)
{
    (void)function, (void)attribute, (void)value;
    return HIP_SUCCESS;
}

int hipThreadExchangeStreamCaptureMode(int *mode)
{
    (void)mode;
    return HIP_SUCCESS;
}

/* Flags that a communicator is aborted by: memory of the host, which a GPU could read too. */
int hipHostMalloc(void **memory, size_t size, unsigned flags)
{
    (void)flags;
    *memory = calloc(1, size);
    return *memory ? HIP_SUCCESS : HIP_OUT_OF_MEMORY;
}

int hipHostFree(void *memory)
{
    free(memory);
    return HIP_SUCCESS;
}

/* ---- the program ---- */

int main(int argc, char **argv)
{
    int (*get_version)(int *) = NULL;
    int (*get_unique_id)(struct unique_id *) = NULL;
    int (*init_rank)(void **comm, int ranks, struct unique_id id, int rank) = NULL;
    const char *(*get_error_string)(int) = NULL;
    static struct unique_id id;
    struct event event;
    void *library, *comm = NULL;
    int timeout_s, version = 0, rc;

    const char *path = the_library(argc, argv, usage, &timeout_s);

    begin("rcclsim", timeout_s);
    event_begin(&event, "simulation");
    event_string(&event, "standin", "hip");
    event_end(&event);
    probe_stage = "dlopen";
    library = open_library("dlopen", path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        finish(EXIT_DLOPEN);

    probe_stage = "version";
    FIND(library, "ncclGetVersion", get_version);
    FIND(library, "ncclGetUniqueId", get_unique_id);
    FIND(library, "ncclCommInitRank", init_rank);
    FIND(library, "ncclGetErrorString", get_error_string);
    if (!get_version || !get_unique_id || !init_rank)
        finish(EXIT_SYMBOL);
    rc = get_version(&version);
    event_begin(&event, "version");
    event_number(&event, "rc", rc);
    event_number(&event, "value", version);
    event_end(&event);

    /* After a failure the next call can wait forever in RCCL <= 2.21.5. */
    probe_stage = "uniqueid";
    rc = get_unique_id(&id);
    fflush(stdout);
    event_begin(&event, "uniqueid");
    event_number(&event, "rc", rc);
    event_string(&event, "error", rc && get_error_string ? get_error_string(rc) : NULL);
    event_end(&event);
    if (rc == 0) {
        probe_stage = "communicator";
        rc = init_rank(&comm, 1, id, 0);
        fflush(stdout);
        event_begin(&event, "communicator");
        event_number(&event, "rc", rc);
        event_string(&event, "error", rc && get_error_string ? get_error_string(rc) : NULL);
        event_end(&event);
    }
    report_mapped();
    finish(EXIT_OK);
}
