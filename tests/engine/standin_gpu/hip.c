/*
 * A stand-in for libamdhip64 and libhsa-runtime64, for tests: two GPUs whose memory is the host's. Never for users.
 *
 *   STANDIN_GPUS  how many there are (default 2)
 *   STANDIN_ISA   what they are for HSA (default gfx90a:sramecc+:xnack-)
 *   STANDIN_GENERIC  HSA names the GPU code for all of gfx9 first
 *
 * What is copied to a "device" is noted, so that the stand-in for RCCL need not move what it has moved already.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

enum { SUCCESS = 0, NO_DEVICE = 100, TO_DEVICE = 1 };

int standin_device;
int standin_changed;

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

int hipStreamSynchronize(void *stream)
{
    (void)stream;
    return SUCCESS;
}

const char *hipGetErrorString(int error)
{
    return error == NO_DEVICE ? "no ROCm-capable device is detected" : "no error";
}

/* HSA: a processor, then the GPUs. */

struct handle {
    uint64_t handle;
};

int hsa_init(void)
{
    return SUCCESS;
}

int hsa_iterate_agents(int (*each)(struct handle, void *), void *data)
{
    int gpus, answer = SUCCESS;

    hipGetDeviceCount(&gpus);
    for (int agent = 0; agent <= gpus && answer == SUCCESS; agent++)
        answer = each((struct handle){(uint64_t)agent}, data);
    return answer;
}

int hsa_agent_get_info(struct handle agent, int what, int *value)
{
    (void)what; /* HSA_AGENT_INFO_DEVICE */
    *value = agent.handle > 0;
    return SUCCESS;
}

enum { GENERIC = 1000 };

int hsa_agent_iterate_isas(struct handle agent, int (*each)(struct handle, void *), void *data)
{
    int answer = getenv("STANDIN_GENERIC") ? each((struct handle){GENERIC}, data) : SUCCESS;

    return answer == SUCCESS ? each(agent, data) : answer;
}

int hsa_isa_get_info_alt(struct handle isa, int what, void *value)
{
    const char *wished = getenv("STANDIN_ISA");
    char name[128];
    const char *own = wished ? wished : "gfx90a:sramecc+:xnack-";
    int length = snprintf(name, sizeof name, "amdgcn-amd-amdhsa--%s", isa.handle == GENERIC ? "gfx9-generic" : own);

    if (what == 0)
        *(uint32_t *)value = (uint32_t)length;
    else
        memcpy(value, name, (size_t)length);
    return SUCCESS;
}
