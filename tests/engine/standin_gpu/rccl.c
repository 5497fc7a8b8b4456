/*
 * A stand-in for librccl, for tests: the few functions that an all-reduce needs, over shared memory of this machine, and the lines
 * that RCCL 2.22 would have printed on the network that STANDIN_NETWORK names. Never for users: what it says of a network is made up.
 *
 *   STANDIN_NETWORK  cxi (default), socket (no plugin is found), no-vni (the plugin gets no domain)
 *                    NCCL_NET=Socket has socket whatever it names
 *   STANDIN_GB_S     bus bandwidth that its sleeps come to (default 90)
 *   STANDIN_SLOW_IF  the name of a variable that halves it where it is set, whatever its value
 *   STANDIN_WRONG    one element of each result of the last rank is wrong
 *   STANDIN_FAILS    making the communicator fails
 *   STANDIN_DIED     another rank died: no all-reduce ends, and RCCL notes it when it is asked for the N-th time (0: never)
 *   STANDIN_ABORTS   how many seconds it takes to abort (default 0)
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, SYSTEM_ERROR = 2, REMOTE_ERROR = 6, MAX_RANKS = 8, LARGEST = 256 << 20 };

extern int standin_device, standin_changed, standin_waits;
int hipGetDeviceCount(int *);

struct unique_id {
    char bytes[128];
};

struct shared {
    atomic_int arrived[2];
    atomic_int generation;
    char hosts[MAX_RANKS][64];
};

struct comm {
    struct shared *shared;
    float *data; /* a buffer for each rank */
    int rank, ranks;
};

static FILE *log_file;

static void say(const char *format, ...)
{
    char host[64] = "";
    va_list values;

    gethostname(host, sizeof host - 1);
    if (!log_file) {
        const char *pattern = getenv("NCCL_DEBUG_FILE");
        char path[4096] = "";

        for (; pattern && *pattern && strlen(path) < sizeof path - 128; pattern++) {
            size_t used = strlen(path);

            if (strncmp(pattern, "%h", 2) == 0 || strncmp(pattern, "%p", 2) == 0) {
                pattern++;
                if (*pattern == 'h')
                    snprintf(path + used, sizeof path - used, "%s", host);
                else
                    snprintf(path + used, sizeof path - used, "%d", (int)getpid());
            } else {
                path[used] = *pattern;
            }
        }
        log_file = *path ? fopen(path, "w") : stdout;
        if (!log_file)
            log_file = stdout;
    }
    va_start(values, format);
    fprintf(log_file, "%s:%d:%d [%d] NCCL ", host, (int)getpid(), (int)getpid(), standin_device);
    vfprintf(log_file, format, values);
    fputc('\n', log_file);
    fflush(log_file);
    va_end(values);
}

static int network_is(const char *name)
{
    const char *network = getenv("STANDIN_NETWORK"), *wished = getenv("NCCL_NET");

    if (wished && strcmp(wished, "Socket") == 0)
        network = "socket";
    return strcmp(network ? network : "cxi", name) == 0;
}

int ncclGetVersion(int *version)
{
    *version = 22203;
    return SUCCESS;
}

int ncclGetUniqueId(struct unique_id *id)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    memset(id, 0, sizeof *id);
    snprintf(id->bytes, sizeof id->bytes, "/lumiimg-standin-%d-%lld", (int)getpid(), (long long)now.tv_nsec);
    say("INFO Bootstrap : Using hsn0:10.253.0.1<0>");
    return SUCCESS;
}

const char *ncclGetErrorString(int error)
{
    return error == REMOTE_ERROR ? "remote process exited or there was a network error" : error ? "unhandled system error" : "no error";
}

/* All ranks wait for each other. */
static void meet(struct comm *comm)
{
    int generation = atomic_load(&comm->shared->generation);

    if (atomic_fetch_add(&comm->shared->arrived[generation & 1], 1) == comm->ranks - 1) {
        atomic_store(&comm->shared->arrived[generation & 1], 0);
        atomic_fetch_add(&comm->shared->generation, 1);
    }
    while (atomic_load(&comm->shared->generation) == generation)
        usleep(20);
}

static void say_of_network(const struct comm *comm)
{
    const char *network = network_is("cxi") ? "AWS Libfabric" : "Socket";
    int nodes = 0, next = (comm->rank + 1) % comm->ranks;

    for (int i = 0; i < comm->ranks; i++) {
        int known = 0;

        for (int j = 0; j < i; j++)
            known |= strcmp(comm->shared->hosts[i], comm->shared->hosts[j]) == 0;
        nodes += !known;
    }
    if (network_is("socket")) {
        say("INFO NET/Plugin: Could not find: librccl-net.so. Using internal network plugin.");
    } else {
        say("INFO NET/Plugin: Loaded net plugin AWS Libfabric (v8)");
        say("INFO NET/OFI Initializing aws-ofi-nccl 1.18.0");
        say("INFO NET/OFI Selected provider is cxi, fabric is cxi (found 4 nics)");
    }
    if (network_is("no-vni")) {
        say("WARN NET/OFI Couldn't open a fabric access domain. RC: -38, ERROR: Function not implemented");
        say("WARN NET/OFI aws-ofi-nccl initialization failed");
    }
    if (!network_is("cxi"))
        say("INFO NET/Socket : Using [0]hsn0:10.253.0.1<0> [1]hsn1:10.253.0.2<0>");
    say("INFO Using network %s", network);
    say("INFO comm 0x55e2 rank %d nRanks %d nNodes %d localRanks %d localRank %d MNNVL 0", comm->rank, comm->ranks, nodes,
        comm->ranks / nodes, comm->rank % (comm->ranks / nodes));
    if (strcmp(comm->shared->hosts[comm->rank], comm->shared->hosts[next]) == 0)
        say("INFO Channel 00/0 : %d[0] -> %d[1] via P2P/IPC comm 0x55e2 nRanks %02d", comm->rank, next, comm->ranks);
    else
        say("INFO Channel 00/0 : %d[0] -> %d[0] [send] via NET/%s/0%s comm 0x55e2 nRanks %02d", comm->rank, next, network,
            network_is("cxi") ? "/GDRDMA" : "", comm->ranks);
    say("INFO Connected all rings, use ring PXN 0 GDR %d", network_is("cxi"));
}

int ncclCommInitRank(struct comm **comm, int ranks, struct unique_id id, int rank)
{
    size_t size = 4096 + (size_t)ranks * LARGEST;
    int file = shm_open(id.bytes, O_RDWR | O_CREAT, 0600);
    char *memory;

    if (rank == 0)
        say("INFO RCCL version 2.22.3-lumiimg-standin");
    if (getenv("STANDIN_FAILS") || file < 0 || ranks > MAX_RANKS || ftruncate(file, (off_t)size) != 0)
        return SYSTEM_ERROR;
    memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    *comm = calloc(1, sizeof **comm);
    **comm = (struct comm){(struct shared *)memory, (float *)(memory + 4096), rank, ranks};
    gethostname((*comm)->shared->hosts[rank], 63);
    meet(*comm);
    if (rank == 0)
        shm_unlink(id.bytes);
    say_of_network(*comm);
    return SUCCESS;
}

int ncclAllReduce(const void *from, void *into, size_t count, int type, int operation, struct comm *comm, void *stream)
{
    const char *wished = getenv("STANDIN_GB_S");
    const char *brake = getenv("STANDIN_SLOW_IF");
    double busbw = (wished ? atof(wished) : 90) * (brake && getenv(brake) ? 0.5 : 1);
    size_t stride = LARGEST / sizeof(float);
    float *result = into;

    (void)type, (void)operation, (void)stream;
    if (getenv("STANDIN_DIED")) {
        standin_waits = 1;
        return SUCCESS;
    }
    if (standin_changed) {
        standin_changed = 0;
        memcpy(comm->data + stride * (size_t)comm->rank, from, count * sizeof(float));
        meet(comm);
        memcpy(result, comm->data, count * sizeof(float));
        for (int rank = 1; rank < comm->ranks; rank++)
            for (size_t i = 0; i < count; i++)
                result[i] += comm->data[stride * (size_t)rank + i];
        if (getenv("STANDIN_WRONG") && comm->rank == comm->ranks - 1)
            result[count / 2] += 1;
    }
    usleep((useconds_t)((double)(count * sizeof(float)) / busbw / 1e3 * 2 * (comm->ranks - 1) / comm->ranks));
    meet(comm);
    return SUCCESS;
}

int ncclCommGetAsyncError(struct comm *comm, int *error)
{
    static int left = -1;
    const char *died = getenv("STANDIN_DIED");

    (void)comm;
    left = left < 0 && died ? atoi(died) : left;
    *error = left > 0 && --left == 0 ? REMOTE_ERROR : SUCCESS;
    return SUCCESS;
}

int ncclCommAbort(struct comm *comm)
{
    const char *seconds = getenv("STANDIN_ABORTS");

    (void)comm;
    sleep(seconds ? (unsigned)atoi(seconds) : 0);
    return SUCCESS;
}

int ncclCommDestroy(struct comm *comm)
{
    free(comm);
    return SUCCESS;
}
