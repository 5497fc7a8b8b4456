/*
 * gpuprobe: what each GPU is for the runtime in this container.
 *
 * The name of an instruction set with its modes (gfx90a:sramecc+:xnack-) decides which GPU code runs; rocminfo prints it from the
 * same calls. HSA is looked up through the dependencies of LIBRARY, so it is the one that LIBRARY uses.
 */
#include "probe.h"

enum { EXIT_DEVICE = 20 };
/* hsa.h, of every release since 1.0 */
enum { HSA_BREAK = 1, AGENT_DEVICE = 17, DEVICE_GPU = 1, ISA_NAME_LENGTH = 0, ISA_NAME = 1, MAX_NAME = 256 };

struct handle {
    uint64_t handle;
};

static struct {
    int (*init)(void);
    int (*iterate_agents)(int (*)(struct handle, void *), void *);
    int (*agent_get_info)(struct handle, int, void *);
    int (*agent_iterate_isas)(struct handle, int (*)(struct handle, void *), void *);
    int (*isa_get_info_alt)(struct handle, int, void *);
} hsa;

static int gpus;

static const char usage[] =
    "usage: gpuprobe [--timeout SECONDS] LIBRARY\n"
    "Say what the GPUs are for the HSA that LIBRARY (librccl.so.1) uses.\n"
    "exit: 0 it ran through; 10 LIBRARY cannot be loaded; 11 it has no HSA; 16 timed out; 20 no GPU; 2 usage\n";

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
    if (hsa.agent_get_info(agent, AGENT_DEVICE, &kind) == 0 && kind == DEVICE_GPU) {
        gpus++;
        hsa.agent_iterate_isas(agent, tell_isa, NULL);
    }
    return 0;
}

static bool find_hsa(void *library)
{
    FIND(library, "hsa_init", hsa.init);
    FIND(library, "hsa_iterate_agents", hsa.iterate_agents);
    FIND(library, "hsa_agent_get_info", hsa.agent_get_info);
    FIND(library, "hsa_agent_iterate_isas", hsa.agent_iterate_isas);
    FIND(library, "hsa_isa_get_info_alt", hsa.isa_get_info_alt);
    return hsa.init && hsa.iterate_agents && hsa.agent_get_info && hsa.agent_iterate_isas && hsa.isa_get_info_alt;
}

static void tell_value(const char *what, const char *key, const char *value)
{
    struct event event;

    event_begin(&event, what);
    event_string(&event, key, value);
    event_end(&event);
}

int main(int argc, char **argv)
{
    int timeout_s, rc;
    void *library;
    const char *path = the_library(argc, argv, usage, &timeout_s);
    const char *xnack = getenv("HSA_XNACK"); /* which changes the modes */

    begin("gpuprobe", timeout_s);
    probe_stage = "dlopen";
    library = open_library("dlopen", path, RTLD_NOW | RTLD_GLOBAL);
    if (!library)
        finish(EXIT_DLOPEN);
    if (!find_hsa(library))
        finish(EXIT_SYMBOL);

    probe_stage = "agents";
    if (xnack)
        tell_value("xnack", "value", xnack);
    rc = hsa.init();
    if (rc == 0)
        rc = hsa.iterate_agents(tell_agent, NULL);
    if (rc != 0)
        tell_value("hsa", "error", "hsa_init or hsa_iterate_agents failed");
    if (gpus == 0)
        finish(EXIT_DEVICE);
    probe_stage = "all";
    finish(EXIT_OK);
}
