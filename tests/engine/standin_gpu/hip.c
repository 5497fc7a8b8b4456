/*
 * A stand-in for libamdhip64, for tests: two GPUs whose memory is the host's. Never for users.
 *
 *   STANDIN_GPUS  how many there are (default 2)
 *
 * What is copied to a "device" is noted, so that the stand-in for RCCL need not move what it has moved already.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

enum { SUCCESS = 0, NO_DEVICE = 100, NOT_READY = 600, TO_DEVICE = 1 };

int standin_device;
int standin_changed;
int standin_waits; /* for a rank that died */

int hipGetDeviceCount(int *count)
{
    const char *gpus = getenv("STANDIN_GPUS");

    *count = gpus ? atoi(gpus) : 2;
    return *count > 0 ? SUCCESS : NO_DEVICE;
}

int hipSetDevice(int device)
{
    standin_device = device;
    return SUCCESS;
}

int hipDeviceGetName(char *name, int size, int device)
{
    (void)device;
    snprintf(name, (size_t)size, "AMD stand-in, for tests only");
    return SUCCESS;
}

int hipDeviceGetPCIBusId(char *id, int size, int device)
{
    snprintf(id, (size_t)size, "0000:%02x:00.0", 0xc1 + device);
    return SUCCESS;
}

int hipMalloc(void **memory, size_t size)
{
    *memory = malloc(size);
    return SUCCESS;
}

int hipMemcpy(void *to, const void *from, size_t size, int kind)
{
    memcpy(to, from, size);
    standin_changed |= kind == TO_DEVICE;
    return SUCCESS;
}

int hipStreamCreate(void **stream)
{
    *stream = NULL;
    return SUCCESS;
}

int hipStreamQuery(void *stream)
{
    (void)stream;
    return standin_waits ? NOT_READY : SUCCESS;
}

const char *hipGetErrorString(int error)
{
    return error == NO_DEVICE ? "no ROCm-capable device is detected" : "no error";
}
