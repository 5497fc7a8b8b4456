/*
 * gpuprobe: what each GPU is for the runtime in this container, and from which NUMA node memory reaches it fastest.
 *
 * The name of an instruction set with its modes (gfx90a:sramecc+:xnack-) decides which GPU code runs; rocminfo prints it from the
 * same calls. A copy from memory that the cores of a NUMA node have touched, and HIP has registered where it lies, shows which
 * cores are beside a GPU: the best of a few, as what disturbs a copy only makes it slower. Where it lies the kernel says: a node
 * without free memory, or `numactl --membind`, puts it elsewhere.
 *
 * HIP and HSA are looked up through the dependencies of LIBRARY, so they are those that it uses.
 */
#include "probe.h"

#include <errno.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>

enum { EXIT_DEVICE = 20 };
enum { COPIED = 64 << 20, COPIES = 8, TO_DEVICE = 1, MAX_GPUS = 64, MAX_NUMA = 256, ASKED = 64 };
/* hsa.h, of every release since 1.0 */
enum { HSA_BREAK = 1, AGENT_DEVICE = 17, DEVICE_GPU = 1, ISA_NAME_LENGTH = 0, ISA_NAME = 1, MAX_NAME = 256 };

struct handle {
    uint64_t handle;
};

static struct {
    int (*get_device_count)(int *);
    int (*set_device)(int);
    int (*malloc)(void **, size_t);
    int (*memcpy)(void *, const void *, size_t, int);
    int (*host_register)(void *, size_t, unsigned);
    int (*host_unregister)(void *);
    const char *(*get_error_string)(int);
} hip;

static struct {
    int (*init)(void);
    int (*iterate_agents)(int (*)(struct handle, void *), void *);
    int (*agent_get_info)(struct handle, int, void *);
    int (*agent_iterate_isas)(struct handle, int (*)(struct handle, void *), void *);
    int (*isa_get_info_alt)(struct handle, int, void *);
} hsa;

/* libnuma's, where HIP uses that, or a stand-in for HIP has one; else the kernel's own. */
static long (*move_pages)(int, unsigned long, void **, const int *, int *, int);

static const char usage[] =
    "usage: gpuprobe [--timeout SECONDS] LIBRARY\n"
    "Say what the GPUs are for the HIP and HSA that LIBRARY (librccl.so.1) uses, and how fast memory of each NUMA node reaches\n"
    "each of them.\n"
    "exit: 0 it ran through; 10 LIBRARY cannot be loaded; 11 it has no HIP; 16 timed out; 20 no GPU; 2 usage\n";

static void tell(const char *what, int rc, const char *error)
{
    struct event event;

    event_begin(&event, what);
    event_number(&event, "rc", rc);
    event_string(&event, "error", error);
    event_end(&event);
}

static bool is_done(int rc, const char *what)
{
    if (rc != 0)
        tell(what, rc, hip.get_error_string(rc));
    return rc == 0;
}

/* ---- what the GPUs are ---- */

static int tell_isa(struct handle isa, void *unused)
{
    uint32_t length = 0;
    char name[MAX_NAME + 1] = ""; /* what is written there need not end */
    struct event event;

    (void)unused;
    if (hsa.isa_get_info_alt(isa, ISA_NAME_LENGTH, &length) != 0 || length > MAX_NAME ||
        hsa.isa_get_info_alt(isa, ISA_NAME, name) != 0)
        return HSA_BREAK;
    if (strstr(name, "-generic")) /* GPU code for several GPUs, which this one takes too */
        return 0;
    event_begin(&event, "isa");
    event_string(&event, "name", name);
    event_end(&event);
    return HSA_BREAK;
}

static int tell_agent(struct handle agent, void *unused)
{
    int kind = -1;

    (void)unused;
    if (hsa.agent_get_info(agent, AGENT_DEVICE, &kind) == 0 && kind == DEVICE_GPU)
        hsa.agent_iterate_isas(agent, tell_isa, NULL);
    return 0;
}

static void tell_agents(void *library)
{
    int rc;

    FIND(library, "hsa_init", hsa.init);
    FIND(library, "hsa_iterate_agents", hsa.iterate_agents);
    FIND(library, "hsa_agent_get_info", hsa.agent_get_info);
    FIND(library, "hsa_agent_iterate_isas", hsa.agent_iterate_isas);
    FIND(library, "hsa_isa_get_info_alt", hsa.isa_get_info_alt);
    if (!hsa.init || !hsa.iterate_agents || !hsa.agent_get_info || !hsa.agent_iterate_isas || !hsa.isa_get_info_alt) {
        tell("hsa", -1, "the library has no HSA among its dependencies");
        return;
    }
    rc = hsa.init();
    if (rc == 0)
        rc = hsa.iterate_agents(tell_agent, NULL);
    if (rc != 0)
        tell("hsa", rc, "hsa_init or hsa_iterate_agents failed");
}

/* ---- from where memory reaches them ---- */

/* `0-7,64-71`, as the kernel writes it; false where it cannot be read, or names no cores. */
static bool cores_of(int node, cpu_set_t *cores, char *text, int size)
{
    char path[64], *at;
    FILE *file;
    bool some = false;

    snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", node);
    if (!(file = fopen(path, "r")))
        return false;
    if (!fgets(text, size, file))
        *text = '\0';
    fclose(file);
    text[strcspn(text, "\n")] = '\0';
    CPU_ZERO(cores);
    for (at = text; *at >= '0' && *at <= '9'; at += *at == ',') {
        long first = strtol(at, &at, 10), last = *at == '-' ? strtol(at + 1, &at, 10) : first;

        for (long core = first; core <= last && core < CPU_SETSIZE; core++) {
            CPU_SET((size_t)core, cores);
            some = true;
        }
    }
    return some;
}

static long ask_kernel(int process, unsigned long count, void **pages, const int *nodes, int *places, int flags)
{
    return syscall(SYS_move_pages, process, count, pages, nodes, places, flags);
}

/* Whether the kernel has memory in the NUMA node (move_pages(2), which moves none where no nodes are named). */
static bool lies_in(int node, char *memory)
{
    void *pages[ASKED];
    int places[ASKED];

    for (size_t i = 0; i < ASKED; i++)
        pages[i] = memory + i * (COPIED / ASKED);
    if (move_pages(0, ASKED, pages, NULL, places, 0) != 0) {
        tell("move_pages", errno, "the kernel does not say where memory lies");
        return false;
    }
    for (size_t i = 0; i < ASKED; i++) {
        if (places[i] != node) {
            tell("elsewhere", -1, "memory of a NUMA node was not to be had");
            return false;
        }
    }
    return true;
}

/* Microseconds of the fastest of a few copies to the GPU that is set; 0 after a failure, which is told. */
static long long time_copy(void *host, void *device)
{
    long long best = 0;

    for (int i = 0; i <= COPIES; i++) { /* the first one makes the paths */
        long long start = now_us(), spent;

        if (!is_done(hip.memcpy(device, host, COPIED, TO_DEVICE), "hipMemcpy"))
            return 0;
        spent = now_us() - start;
        if (i > 0 && (best == 0 || spent < best))
            best = spent > 0 ? spent : 1;
    }
    return best;
}

static void tell_copies(int node, const char *cores, void **devices, int gpus)
{
    char *host = mmap(NULL, COPIED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (host == MAP_FAILED) {
        tell("mmap", errno, strerror(errno));
        return;
    }
    memset(host, 1, COPIED); /* here, so it lies here */
    if (is_done(hip.host_register(host, COPIED, 0), "hipHostRegister")) { /* which holds it where it lies */
        for (int gpu = lies_in(node, host) ? 0 : gpus; gpu < gpus; gpu++) {
            struct event event;
            long long us;

            if (!devices[gpu] || !is_done(hip.set_device(gpu), "hipSetDevice") || (us = time_copy(host, devices[gpu])) == 0)
                continue;
            event_begin(&event, "copy");
            event_number(&event, "gpu", gpu);
            event_number(&event, "node", node);
            event_number(&event, "mb_s", COPIED / us);
            event_string(&event, "cores", cores); /* last: a line has an end */
            event_end(&event);
        }
        hip.host_unregister(host);
    }
    munmap(host, COPIED);
}

static bool find_hip(void *library)
{
    FIND(library, "hipGetDeviceCount", hip.get_device_count);
    FIND(library, "hipSetDevice", hip.set_device);
    FIND(library, "hipMalloc", hip.malloc);
    FIND(library, "hipMemcpy", hip.memcpy);
    FIND(library, "hipHostRegister", hip.host_register);
    FIND(library, "hipHostUnregister", hip.host_unregister);
    FIND(library, "hipGetErrorString", hip.get_error_string);
    FIND(library, "move_pages", move_pages); /* of libnuma, which HSA needs; else the kernel's own */
    move_pages = move_pages ? move_pages : ask_kernel;
    return hip.get_device_count && hip.set_device && hip.malloc && hip.memcpy && hip.host_register && hip.host_unregister &&
           hip.get_error_string;
}

int main(int argc, char **argv)
{
    static void *devices[MAX_GPUS];
    int timeout_s, gpus = 0;
    cpu_set_t allowed, cores;
    void *library;
    const char *path = the_library(argc, argv, usage, &timeout_s);

    begin("gpuprobe", timeout_s);
    probe_stage = "dlopen";
    library = open_library("dlopen", path, RTLD_NOW | RTLD_GLOBAL);
    if (!library)
        finish(EXIT_DLOPEN);
    if (!find_hip(library))
        finish(EXIT_SYMBOL);

    probe_stage = "devices";
    report_gpu_settings();
    if (!is_done(hip.get_device_count(&gpus), "hipGetDeviceCount") || gpus < 1)
        finish(EXIT_DEVICE);
    gpus = gpus < MAX_GPUS ? gpus : MAX_GPUS;
    probe_stage = "agents";
    tell_agents(library);

    probe_stage = "copies";
    for (int gpu = 0; gpu < gpus; gpu++) {
        if (!is_done(hip.set_device(gpu), "hipSetDevice") || !is_done(hip.malloc(&devices[gpu], COPIED), "hipMalloc"))
            devices[gpu] = NULL;
    }
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        CPU_ZERO(&allowed);
    for (int node = 0; node < MAX_NUMA; node++) {
        char text[4096] = "";

        if (!cores_of(node, &cores, text, sizeof text))
            continue;
        CPU_AND(&cores, &cores, &allowed);
        if (CPU_COUNT(&cores) == 0 || sched_setaffinity(0, sizeof cores, &cores) != 0)
            tell("cores", -1, "this process may not run on the cores of that NUMA node");
        else
            tell_copies(node, text, devices, gpus);
    }
    probe_stage = "all";
    finish(EXIT_OK);
}
