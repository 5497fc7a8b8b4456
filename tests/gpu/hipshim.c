/*
 * A stand-in for libamdhip64, for tests on an NVIDIA GPU: functions of CUDA's runtime under the names that HIP gives them. The
 * numbers of errors and of directions are the same in both. Never for users.
 *
 *   HIPSHIM_FLIP  one element of what is copied from the GPU is wrong
 */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

enum { TO_HOST = 2, PROPERTIES_BYTES = 1 << 16 };

#define SAME(hip, cuda, parameters, ...) \
    int cuda parameters;                 \
    int hip parameters                   \
    {                                    \
        return cuda(__VA_ARGS__);        \
    }

SAME(hipGetDeviceCount, cudaGetDeviceCount, (int *count), count)
SAME(hipSetDevice, cudaSetDevice, (int device), device)
SAME(hipDeviceGetPCIBusId, cudaDeviceGetPCIBusId, (char *id, int size, int device), id, size, device)
SAME(hipMalloc, cudaMalloc, (void **memory, size_t size), memory, size)
SAME(hipStreamCreate, cudaStreamCreate, (void **stream), stream)
SAME(hipStreamQuery, cudaStreamQuery, (void *stream), stream)

int cudaGetDeviceProperties(void *properties, int device);
int cudaMemcpy(void *to, const void *from, size_t size, int kind);
const char *cudaGetErrorString(int error);

/* The properties begin with the name (driver_types.h, cudaDeviceProp). */
int hipDeviceGetName(char *name, int size, int device)
{
    static char properties[PROPERTIES_BYTES];
    int rc = cudaGetDeviceProperties(properties, device);

    snprintf(name, (size_t)size, "%s", properties);
    return rc;
}

int hipMemcpy(void *to, const void *from, size_t size, int kind)
{
    int rc = cudaMemcpy(to, from, size, kind);

    if (rc == 0 && kind == TO_HOST && getenv("HIPSHIM_FLIP"))
        ((float *)to)[size / sizeof(float) / 2] += 1;
    return rc;
}

const char *hipGetErrorString(int error)
{
    return cudaGetErrorString(error);
}
