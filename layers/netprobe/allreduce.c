/*
 * allreduce: a real collective with this RCCL on real GPUs, checked and timed: `lumiimg check --level run` starts it in images
 * whose jobs do not use torch.
 *
 * One process a GPU, as jobs have it: each is a child of this program, which starts as many ranks as it is told to on its node.
 * On several nodes a launcher starts it once on each; the ranks then meet through a folder that all of them see, in which the
 * first rank leaves RCCL's unique id. HIP is looked up through RCCL's own dependencies, so it is the one that RCCL uses.
 *
 * The table is in the format of rccl-tests (src/common.cu), which the log reader knows: busbw is the bandwidth that each link must
 * have had, algbw * 2 (n - 1) / n (nccl-tests doc/PERFORMANCE.md). Every element of every result is compared with the sum
 * that it should be; the numbers are small enough for float to hold them exactly.
 */
#include "probe.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum { EXIT_DEVICE = 20, EXIT_MEETING = 21, EXIT_COMMUNICATOR = 22, EXIT_COLLECTIVE = 23, EXIT_WRONG = 24 };
enum { MAX_LOCAL = 64, MAX_TASKS = 100000, SMALLEST = 1 << 20, LARGEST = 256 << 20, STEP = 4, WARM_UP = 5, ROUNDS = 20 };
enum { OF_INDEX = 13, OF_RANK = 7 };
enum { FLOAT = 7, SUM = 0, TO_DEVICE = 1, TO_HOST = 2, FIRST_POLL_MS = 20, LAST_POLL_MS = 1000, PATIENCE_S = 5 };
enum { NOT_READY = 600 }; /* hipErrorNotReady */

struct unique_id {
    char bytes[128];
};

struct hip {
    int (*get_device_count)(int *);
    int (*set_device)(int);
    int (*device_get_name)(char *, int, int);
    int (*device_get_pci_bus_id)(char *, int, int);
    int (*malloc)(void **, size_t);
    int (*memcpy)(void *, const void *, size_t, int);
    int (*stream_create)(void **);
    int (*stream_query)(void *);
    const char *(*get_error_string)(int);
};

struct rccl {
    int (*get_unique_id)(struct unique_id *);
    int (*comm_init_rank)(void **, int, struct unique_id, int);
    int (*all_reduce)(const void *, void *, size_t, int, int, void *, void *);
    int (*comm_get_async_error)(void *, int *);
    int (*comm_abort)(void *);
    int (*comm_destroy)(void *);
    const char *(*get_error_string)(int);
};

struct job {
    const char *library, *folder;
    int local, task, tasks, timeout_s;
};

struct buffers {
    float *host;
    void *send, *receive, *stream, *comm;
};

static struct hip hip;
static struct rccl rccl;

static const char usage[] =
    "usage: allreduce --devices LIBRARY\n"
    "       allreduce --folder DIR [--local RANKS] [--task K --tasks N | --slurm] [--timeout SECONDS] LIBRARY\n"
    "Sum buffers over GPUs with LIBRARY (librccl.so.1), check the sums, and print the bandwidth as rccl-tests does.\n"
    "  --devices          only say how many GPUs there are for HIP\n"
    "  --folder DIR       where the ranks meet: empty, and seen by all of them\n"
    "  --local RANKS      how many ranks, each with a GPU, this process starts (default 1)\n"
    "  --task K --tasks N this is process K of N (default 0 of 1)\n"
    "  --slurm            K and N are those of this Slurm step: SLURM_PROCID, SLURM_STEP_NUM_TASKS\n"
    "exit: 0 all sums are right; 10 LIBRARY cannot be loaded; 11 it is no RCCL, or has no HIP; 16 timed out; 20 no GPU;\n"
    "      21 the ranks did not meet; 22 no communicator; 23 a collective failed, or a rank died in it; 24 a sum was wrong;\n"
    "      2 usage\n";

/* ---- what happens is told by events ---- */

static bool tell(const char *topic, int rank, int rc, const char *(*error)(int))
{
    struct event event;

    event_begin(&event, topic);
    event_number(&event, "rank", rank);
    event_number(&event, "rc", rc);
    event_string(&event, "error", rc && error ? error(rc) : NULL);
    event_end(&event);
    return rc == 0;
}

static bool is_done(int rc, const char *what, int rank)
{
    return rc == 0 || tell(what, rank, rc, hip.get_error_string);
}

static bool find_functions(void *library)
{
    FIND(library, "hipGetDeviceCount", hip.get_device_count);
    FIND(library, "hipSetDevice", hip.set_device);
    FIND(library, "hipDeviceGetName", hip.device_get_name);
    FIND(library, "hipDeviceGetPCIBusId", hip.device_get_pci_bus_id);
    FIND(library, "hipMalloc", hip.malloc);
    FIND(library, "hipMemcpy", hip.memcpy);
    FIND(library, "hipStreamCreate", hip.stream_create);
    FIND(library, "hipStreamQuery", hip.stream_query);
    FIND(library, "hipGetErrorString", hip.get_error_string);
    FIND(library, "ncclGetUniqueId", rccl.get_unique_id);
    FIND(library, "ncclCommInitRank", rccl.comm_init_rank);
    FIND(library, "ncclAllReduce", rccl.all_reduce);
    FIND(library, "ncclCommGetAsyncError", rccl.comm_get_async_error);
    FIND(library, "ncclCommAbort", rccl.comm_abort);
    FIND(library, "ncclCommDestroy", rccl.comm_destroy);
    FIND(library, "ncclGetErrorString", rccl.get_error_string);
    return hip.get_device_count && hip.set_device && hip.device_get_name && hip.device_get_pci_bus_id && hip.malloc &&
           hip.memcpy && hip.stream_create && hip.stream_query && hip.get_error_string && rccl.get_unique_id &&
           rccl.comm_init_rank && rccl.all_reduce && rccl.comm_get_async_error && rccl.comm_abort && rccl.comm_destroy &&
           rccl.get_error_string;
}

/* ---- the meeting of the ranks ---- */

/* A file appears whole, by a rename. */
static bool leave(const char *folder, const char *name, int number, const void *data, size_t size)
{
    char path[PATH_MAX], unfinished[PATH_MAX + 8];
    int file, length = snprintf(path, sizeof path, "%s/%s-%d", folder, name, number);
    bool whole;

    if (length < 0 || (size_t)length >= sizeof path)
        return false;
    snprintf(unfinished, sizeof unfinished, "%s.part", path);
    file = open(unfinished, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (file < 0)
        return false;
    whole = write(file, data, size) == (ssize_t)size;
    return close(file) == 0 && whole && rename(unfinished, path) == 0;
}

/*
 * Waits for a file until the alarm ends the process: less and less often, as thousands of ranks ask the same metadata server.
 * Returns the bytes that were read.
 */
static size_t collect(const char *folder, const char *name, int number, void *data, size_t size)
{
    char path[PATH_MAX];
    ssize_t count;
    int file, wait_ms = FIRST_POLL_MS;

    snprintf(path, sizeof path, "%s/%s-%d", folder, name, number);
    while ((file = open(path, O_RDONLY)) < 0) {
        poll(NULL, 0, wait_ms);
        wait_ms = wait_ms * 3 / 2 < LAST_POLL_MS ? wait_ms * 3 / 2 : LAST_POLL_MS;
    }
    count = read(file, data, size);
    close(file);
    return count < 0 ? 0 : (size_t)count;
}

/* ---- the collective ---- */

/*
 * Small whole numbers, of two periods that share no factor, so that another element, or the lack of a rank, shows. A sum is at
 * most 15 a rank on the average, and float holds whole numbers up to 2^24: every sum is exact, in any order, for up to 1118481
 * ranks.
 */
static float element(size_t index, int rank)
{
    return (float)(index % OF_INDEX + (size_t)rank % OF_RANK);
}

static float sum_of(size_t index, int ranks)
{
    long long whole = ranks / OF_RANK, rest = ranks % OF_RANK;
    long long of_ranks = whole * OF_RANK * (OF_RANK - 1) / 2 + rest * (rest - 1) / 2;

    return (float)((long long)(index % OF_INDEX) * ranks + of_ranks);
}

static void on_stuck(int number)
{
    (void)number;
    _exit(EXIT_COLLECTIVE);
}

/*
 * A kernel waits for ever for a rank that died, and the threads of RCCL note what they met: both are asked, as nccl-tests do
 * (src/common.cu, testStreamSynchronize). Where nothing is noted, the alarm ends the wait.
 */
static bool wait_for(const struct buffers *b, int rank)
{
    int rc, failed, noted = 0;

    while ((rc = hip.stream_query(b->stream)) == NOT_READY) {
        failed = rccl.comm_get_async_error(b->comm, &noted);
        if (failed || noted) {
            tell("allreduce", rank, failed ? failed : noted, rccl.get_error_string);
            signal(SIGALRM, on_stuck); /* to abort waits for those threads */
            alarm(PATIENCE_S);
            rccl.comm_abort(b->comm);
            return false;
        }
        sched_yield();
    }
    return is_done(rc, "hipStreamQuery", rank);
}

static bool reduce(const struct buffers *b, const void *from, void *into, size_t count, int times, int rank)
{
    int rc = 0;

    for (int i = 0; i < times && rc == 0; i++)
        rc = rccl.all_reduce(from, into, count, FLOAT, SUM, b->comm, b->stream);
    if (rc != 0)
        return tell("allreduce", rank, rc, rccl.get_error_string);
    return wait_for(b, rank);
}

/* Seconds for one all-reduce, or a negative number after a failure. */
static double time_of(const struct buffers *b, const void *from, void *into, size_t count, int rank)
{
    long long start;

    if (!reduce(b, from, into, count, WARM_UP, rank))
        return -1;
    start = now_us();
    if (!reduce(b, from, into, count, ROUNDS, rank))
        return -1;
    return (double)(now_us() - start) / 1e6 / ROUNDS;
}

/* How many elements of a reduction of the test's own numbers are wrong, or -1 after a failure. */
static long long check(const struct buffers *b, void *from, void *into, size_t count, int rank, int ranks)
{
    long long wrong = 0;

    for (size_t i = 0; i < count; i++)
        b->host[i] = element(i, rank);
    if (!is_done(hip.memcpy(from, b->host, count * sizeof(float), TO_DEVICE), "hipMemcpy", rank) ||
        !reduce(b, from, into, count, 1, rank) ||
        !is_done(hip.memcpy(b->host, into, count * sizeof(float), TO_HOST), "hipMemcpy", rank))
        return -1;
    for (size_t i = 0; i < count; i++)
        wrong += b->host[i] != sum_of(i, ranks);
    if (wrong) {
        struct event event;

        event_begin(&event, "wrong");
        event_number(&event, "rank", rank);
        event_number(&event, "bytes", (long long)(count * sizeof(float)));
        event_number(&event, "elements", wrong);
        event_end(&event);
    }
    return wrong;
}

static void print_head(const struct job *job, int ranks)
{
    printf("# Collective test starting: lumiimg-allreduce\n"
           "# nThread 1 nGpus 1 minBytes %d maxBytes %d step: %d(factor) warmup iters: %d iters: %d validation: 1\n#\n"
           "# Using devices\n",
           SMALLEST, LARGEST, STEP, WARM_UP, ROUNDS);
    for (int rank = 0; rank < ranks; rank++) {
        char text[512];

        text[collect(job->folder, "rank", rank, text, sizeof text - 1)] = '\0';
        printf("#  Rank %2d Group  0 %s\n", rank, text);
    }
    printf("#\n"
           "#                                                              out-of-place                       in-place\n"
           "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw "
           "#wrong\n"
           "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)\n");
    fflush(stdout);
}

static double print_cells(double seconds, size_t size, int ranks, long long wrong)
{
    double algbw = (double)size / seconds / 1e9, busbw = algbw * 2 * (ranks - 1) / ranks;

    printf(" %8.2f %7.2f %7.2f %6lld", seconds * 1e6, algbw, busbw, wrong);
    return busbw;
}

/* Every size, out of place and in place; the first rank prints its own times, and what it found wrong in its own results. */
static int measure(const struct buffers *b, int rank, int ranks)
{
    double total = 0;
    long long all_wrong = 0;
    int cells = 0;

    for (size_t size = SMALLEST; size <= LARGEST; size *= STEP) {
        size_t count = size / sizeof(float);
        double apart = time_of(b, b->send, b->receive, count, rank);
        double within = apart < 0 ? -1 : time_of(b, b->receive, b->receive, count, rank);
        long long wrong = within < 0 ? -1 : check(b, b->send, b->receive, count, rank, ranks);
        long long wrong_within = wrong < 0 ? -1 : check(b, b->receive, b->receive, count, rank, ranks);

        if (wrong_within < 0)
            return EXIT_COLLECTIVE;
        all_wrong += wrong + wrong_within;
        if (rank != 0)
            continue;
        printf("%12zu %13zu     float     sum      -1", size, count);
        total += print_cells(apart, size, ranks, wrong);
        total += print_cells(within, size, ranks, wrong_within);
        cells += 2;
        putchar('\n');
        fflush(stdout);
    }
    if (rank == 0) {
        printf("# Out of bounds values : %lld %s\n", all_wrong, all_wrong ? "FAILED" : "OK");
        printf("# Avg bus bandwidth    : %.4f\n#\n", total / cells);
        fflush(stdout);
    }
    return all_wrong ? EXIT_WRONG : EXIT_OK;
}

static int open_hip(const char *path)
{
    void *library = open_library("dlopen", path, RTLD_NOW | RTLD_GLOBAL);

    if (!library)
        return EXIT_DLOPEN;
    return find_functions(library) ? EXIT_OK : EXIT_SYMBOL;
}

static int count_devices(int rank, int *count)
{
    *count = 0;
    if (!is_done(hip.get_device_count(count), "hipGetDeviceCount", rank))
        return EXIT_DEVICE;
    return *count > 0 ? EXIT_OK : EXIT_DEVICE;
}

static int devices(const char *path)
{
    struct event event;
    int count = 0, code;

    probe_stage = "dlopen";
    code = open_hip(path);
    if (code == EXIT_OK) {
        probe_stage = "devices";
        code = count_devices(0, &count);
    }
    event_begin(&event, "gpus");
    event_number(&event, "count", count);
    event_end(&event);
    return code;
}

/* What one rank does, in a process of its own. */
static int take_part(const struct job *job, int local)
{
    int rank = job->task * job->local + local, ranks = job->tasks * job->local, count, code, device, length;
    const char *of_task = getenv("SLURM_LOCALID");
    char host[256] = "", name[129] = "", bus[65] = "", text[512]; /* what HIP writes there need not end */
    struct buffers b = {NULL};
    struct unique_id id;

    if ((code = open_hip(job->library)) != EXIT_OK)
        return code;
    probe_stage = "devices";
    if ((code = count_devices(rank, &count)) != EXIT_OK)
        return code;
    /* Tasks of one node see all its GPUs, or each its own. */
    device = ((job->tasks > 1 && of_task ? atoi(of_task) * job->local : 0) + local) % count;
    if (!is_done(hip.set_device(device), "hipSetDevice", rank))
        return EXIT_DEVICE;
    hip.device_get_name(name, sizeof name - 1, device);
    hip.device_get_pci_bus_id(bus, sizeof bus - 1, device);
    gethostname(host, sizeof host - 1);
    length = snprintf(text, sizeof text, "Pid %6d on %10s device %2d [%s] %s", (int)getpid(), host, device, bus, name);

    probe_stage = "meeting";
    if (!leave(job->folder, "rank", rank, text, (size_t)length))
        return EXIT_MEETING;
    if (rank == 0) {
        probe_stage = "uniqueid";
        if (!tell("uniqueid", rank, rccl.get_unique_id(&id), rccl.get_error_string))
            return EXIT_COMMUNICATOR;
        if (!leave(job->folder, "id", 0, &id, sizeof id))
            return EXIT_MEETING;
    } else if (collect(job->folder, "id", 0, &id, sizeof id) != sizeof id) {
        return EXIT_MEETING;
    }

    probe_stage = "communicator";
    if (!tell("communicator", rank, rccl.comm_init_rank(&b.comm, ranks, id, rank), rccl.get_error_string))
        return EXIT_COMMUNICATOR;
    probe_stage = "memory";
    b.host = malloc(LARGEST);
    if (!b.host || !is_done(hip.malloc(&b.send, LARGEST), "hipMalloc", rank) ||
        !is_done(hip.malloc(&b.receive, LARGEST), "hipMalloc", rank) ||
        !is_done(hip.stream_create(&b.stream), "hipStreamCreate", rank))
        return EXIT_DEVICE;
    memset(b.host, 0, LARGEST);
    if (!is_done(hip.memcpy(b.send, b.host, LARGEST, TO_DEVICE), "hipMemcpy", rank))
        return EXIT_DEVICE;
    if (rank == 0)
        print_head(job, ranks);
    probe_stage = "allreduce";
    code = measure(&b, rank, ranks);
    if (code == EXIT_OK)
        rccl.comm_destroy(b.comm);
    return code;
}

/* One child a rank; after the first that fails the others would wait for it for ever. */
static int start_ranks(const struct job *job)
{
    pid_t children[MAX_LOCAL];
    int running = 0, code = EXIT_OK, status;

    for (; running < job->local; running++) {
        children[running] = fork();
        if (children[running] < 0)
            break;
        if (children[running] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            guard(job->timeout_s);
            probe_stage = "dlopen";
            finish(take_part(job, running));
        }
    }
    if (running < job->local)
        code = EXIT_MEETING;
    for (int left = running; left > 0; left--) {
        if (code != EXIT_OK && code != EXIT_WRONG) { /* who found a wrong sum was the last to take part */
            for (int i = 0; i < running; i++)
                kill(children[i], SIGKILL);
        }
        if (wait(&status) > 0 && (code == EXIT_OK || code == EXIT_WRONG) && status != 0)
            code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    return code;
}

/* A number out of the environment; -1 if it is none. */
static int number_of(const char *name, int low)
{
    const char *text = getenv(name);

    return text ? parse_number(text, text + strlen(text), low, MAX_TASKS) : -1;
}

int main(int argc, char **argv)
{
    struct job job = {.local = 1, .tasks = 1, .timeout_s = 300};
    bool only_devices = false, good = true;

    for (int i = 1; i < argc && good; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "", *end = value + strlen(value);

        if (strcmp(argv[i], "--help") == 0) {
            fputs(usage, stdout);
            return EXIT_OK;
        }
        if (strcmp(argv[i], "--devices") == 0) {
            only_devices = true;
        } else if (strcmp(argv[i], "--slurm") == 0) {
            job.task = number_of("SLURM_PROCID", 0);
            job.tasks = number_of("SLURM_STEP_NUM_TASKS", 1);
        } else if (argv[i][0] != '-') {
            good = argv[i][0] && !job.library;
            job.library = argv[i];
        } else {
            i++;
            if (strcmp(argv[i - 1], "--folder") == 0)
                good = *(job.folder = value);
            else if (strcmp(argv[i - 1], "--local") == 0)
                good = (job.local = parse_number(value, end, 1, MAX_LOCAL)) > 0;
            else if (strcmp(argv[i - 1], "--task") == 0)
                good = (job.task = parse_number(value, end, 0, MAX_TASKS)) >= 0;
            else if (strcmp(argv[i - 1], "--tasks") == 0)
                good = (job.tasks = parse_number(value, end, 1, MAX_TASKS)) > 0;
            else if (strcmp(argv[i - 1], "--timeout") == 0)
                good = (job.timeout_s = parse_timeout(value)) > 0;
            else
                good = false;
        }
    }
    if (!good || !job.library || (!only_devices && !job.folder) || job.task < 0 || job.task >= job.tasks) {
        fputs(usage, stderr);
        return EXIT_USAGE;
    }
    begin("allreduce", job.timeout_s + PATIENCE_S); /* that each rank may say first where it waits */
    if (only_devices)
        finish(devices(job.library));
    probe_stage = "ranks";
    fflush(NULL);
    finish(start_ranks(&job));
}
