/*
 * handshake: does a net plugin of RCCL work here, up to the point where it would wait for a peer?
 *
 * It does to the plugin what RCCL does before the first connection: dlopen, dlsym of the net table, init, devices,
 * getProperties, listen, closeListen. No GPU and no RCCL is needed. listen matters: a plugin can find the cxi provider, name it
 * and count its NICs, and still be refused a domain (-38, no CXI service or VNI for this process), which some plugins meet only
 * there.
 *
 * The tables are those of NCCL's public headers net_v4.h ... net_v12.h, reduced to what is called here:
 *
 *   slot      0 name, 1 init, 2 devices, 3 getProperties, 4 listen, ...
 *             closeListen is 15 in v4 and v5, and 16 from v6 on, where regMrDmaBuf was inserted before it.
 *   init      v4-v9 (logger), v10 (logger, profiler), v11-v12 (&context, communicator id, &config, logger, profiler)
 *   listen    v4-v10 (device, handle, &comm), v11-v12 (context, device, handle, &comm)
 */
#include "probe.h"

#include <stdarg.h>

enum {
    FIRST_VERSION = 4,
    LAST_VERSION = 12,
    VERSIONS = LAST_VERSION + 1,
    MAX_DEVICES = 16,
    FIRST_LATER_SLOT = 5,
    LAST_LATER_SLOT = 16
};

typedef void (*logger_fn)(int level, unsigned long flags, const char *where, int line, const char *format, ...);
typedef int (*profiler_fn)(void **event, int type, void *parent, int64_t plugin, void *data);

struct net_table {
    const char *name;
    union {
        int (*v4)(logger_fn);
        int (*v10)(logger_fn, profiler_fn);
        int (*v11)(void **context, uint64_t communicator, void *config, logger_fn, profiler_fn);
    } init;
    int (*devices)(int *count);
    int (*get_properties)(int device, void *properties);
    union {
        int (*v4)(int device, void *handle, void **comm);
        int (*v11)(void *context, int device, void *handle, void **comm);
    } listen;
    int (*later[LAST_LATER_SLOT - FIRST_LATER_SLOT + 1])(void *comm); /* of these only closeListen is called */
};

/*
 * The head of ncclNetProperties is the same in every version; from ptrSupport on it is a row of 32-bit words (latency is a
 * float) up to maxComms. v8 put regIsGlobal and v9 forceFlush between ptrSupport and speed; v5 put latency between port and
 * maxComms. The rest is room for what comes behind, in this version and in later ones.
 */
struct properties {
    const char *name;
    const char *pci_path;
    uint64_t guid;
    int32_t words[512];
};

static const char usage[] =
    "usage: handshake [--rccl LIBRARY] [--accept 6,5,4] [--timeout SECONDS] PLUGIN\n"
    "Load PLUGIN as RCCL does and take it through init, devices, properties and listen.\n"
    "  --rccl LIBRARY     load this RCCL first, so that the plugin meets the libraries that RCCL brought\n"
    "  --accept LIST      net plugin versions to try, in this order (default: 12 down to 4)\n"
    "  --timeout SECONDS  give up after that time (default 60)\n"
    "exit: 0 all worked; 10 PLUGIN cannot be loaded; 11 no net version that is accepted; 12 init failed; 13 no devices;\n"
    "      14 properties failed; 15 listen failed; 16 timed out; 2 usage\n";

/* ncclDebugLogLevel as plugins have it compiled in. RCCL of ROCm 7.2 numbers it otherwise; the plugin's word is what counts. */
static const char *level_name(int level)
{
    static const char *const names[] = {"NONE", "VERSION", "WARN", "INFO", "ABORT", "TRACE"};

    return level >= 0 && level < (int)(sizeof names / sizeof names[0]) ? names[level] : "UNKNOWN";
}

/* May be called by any thread of the plugin. */
__attribute__((format(printf, 5, 6)))
static void logger(int level, unsigned long flags, const char *where, int line, const char *format, ...)
{
    struct event event;
    char text[1024];
    va_list values;

    va_start(values, format);
    if (vsnprintf(text, sizeof text, format, values) < 0)
        text[0] = '\0';
    va_end(values);
    text[strcspn(text, "\r\n")] = '\0';
    event_begin(&event, "log");
    event_string(&event, "level", level_name(level));
    event_number(&event, "flags", (long long)flags);
    event_string(&event, "where", where);
    event_number(&event, "line", line);
    event_string(&event, "text", text);
    event_end(&event);
}

static int profiler(void **event, int type, void *parent, int64_t plugin, void *data)
{
    (void)event;
    (void)type;
    (void)parent;
    (void)plugin;
    (void)data;
    return 0;
}

/* "6,5,4" into ACCEPTED, whose end is a 0; false if it is anything else. */
static bool parse_accepted(const char *text, int accepted[VERSIONS])
{
    int count = 0;

    for (;;) {
        const char *end = text + strcspn(text, ",");
        int version = parse_number(text, end, FIRST_VERSION, LAST_VERSION);

        if (version < 0 || count == VERSIONS - 1)
            return false;
        accepted[count++] = version;
        accepted[count] = 0;
        if (!*end)
            return true;
        text = end + 1;
    }
}

static void join_number(char *text, size_t size, int number)
{
    size_t used = strlen(text);

    snprintf(text + used, size - used, "%s%d", used ? "," : "", number);
}

/* Reports every net table of the plugin; returns the version to use, or 0. */
static int choose_version(void *library, const int accepted[VERSIONS], struct net_table *tables[VERSIONS])
{
    char exported[64] = "", wanted[64] = "";
    struct event event;

    for (int version = FIRST_VERSION; version <= LAST_VERSION; version++) {
        char symbol[32];

        snprintf(symbol, sizeof symbol, "ncclNetPlugin_v%d", version);
        tables[version] = dlsym(library, symbol);
        if (!tables[version])
            continue;
        join_number(exported, sizeof exported, version);
        event_begin(&event, "symbol");
        event_string(&event, "name", symbol);
        event_string(&event, "net", tables[version]->name);
        event_end(&event);
    }
    for (int i = 0; accepted[i]; i++) {
        join_number(wanted, sizeof wanted, accepted[i]);
        if (!tables[accepted[i]])
            continue;
        event_begin(&event, "using");
        event_number(&event, "version", accepted[i]);
        event_end(&event);
        return accepted[i];
    }
    event_begin(&event, "none");
    event_string(&event, "exported", exported);
    event_string(&event, "accepted", wanted);
    event_end(&event);
    return 0;
}

static int init(const struct net_table *net, int version, void **context)
{
    static int32_t config[64] = {-1}; /* trafficClass undefined, and room for what later versions add */
    const uint64_t communicator = 1;

    if (version >= 11)
        return net->init.v11(context, communicator, config, logger, profiler);
    if (version == 10)
        return net->init.v10(logger, profiler);
    return net->init.v4(logger);
}

static bool properties(const struct net_table *net, int version, int device)
{
    static struct properties found;
    int inserted = version >= 9 ? 2 : version == 8 ? 1 : 0;
    int pointers, rc;
    char kinds[32] = "";
    struct event event;

    memset(&found, 0, sizeof found);
    rc = net->get_properties(device, &found);
    event_begin(&event, "properties");
    event_number(&event, "device", device);
    event_number(&event, "rc", rc);
    if (rc == 0) {
        pointers = found.words[0];
        snprintf(kinds, sizeof kinds, "%s%s%s", pointers & 1 ? "+host" : "", pointers & 2 ? "+gpu" : "",
                 pointers & 4 ? "+dmabuf" : "");
        event_string(&event, "name", found.name);
        event_string(&event, "pci", found.pci_path);
        event_number(&event, "speed", found.words[1 + inserted]);
        event_number(&event, "port", found.words[2 + inserted]);
        event_string(&event, "pointers", kinds[0] ? kinds + 1 : kinds);
        event_number(&event, "maxcomms", found.words[3 + inserted + (version >= 5)]);
    }
    event_end(&event);
    return rc == 0;
}

static bool listen_once(const struct net_table *net, int version, void *context, int device)
{
    static char handle[4096]; /* NCCL gives 64 bytes to v4, 128 to the others */
    int (*close_listen)(void *) = net->later[(version <= 5 ? 15 : 16) - FIRST_LATER_SLOT];
    void *comm = NULL;
    struct event event;
    long long start = now_us();
    int rc;

    memset(handle, 0, sizeof handle);
    rc = version >= 11 ? net->listen.v11(context, device, handle, &comm) : net->listen.v4(device, handle, &comm);
    event_begin(&event, "listen");
    event_number(&event, "device", device);
    event_number(&event, "rc", rc);
    event_seconds(&event, "seconds", now_us() - start);
    event_end(&event);
    if (rc == 0 && comm && close_listen) {
        int closed = close_listen(comm);

        event_begin(&event, "closelisten");
        event_number(&event, "device", device);
        event_number(&event, "rc", closed);
        event_end(&event);
    }
    return rc == 0;
}

/* Every device is tried, also after a failure: one bad NIC of four is another finding than four. */
static int shake_hands(const struct net_table *net, int version)
{
    void *context = NULL;
    struct event event;
    int rc, count = 0, good = 0;
    long long start;

    probe_stage = "init";
    start = now_us();
    rc = init(net, version, &context);
    event_begin(&event, "init");
    event_number(&event, "rc", rc);
    event_seconds(&event, "seconds", now_us() - start);
    event_end(&event);
    if (rc != 0)
        return EXIT_INIT;

    probe_stage = "devices";
    rc = net->devices(&count);
    event_begin(&event, "devices");
    event_number(&event, "rc", rc);
    event_number(&event, "count", count);
    event_end(&event);
    if (rc != 0 || count < 1)
        return EXIT_DEVICES;
    if (count > MAX_DEVICES)
        count = MAX_DEVICES;

    probe_stage = "properties";
    for (int device = 0; device < count; device++)
        good += properties(net, version, device);
    if (good < count)
        return EXIT_PROPERTIES;

    probe_stage = "listen";
    good = 0;
    for (int device = 0; device < count; device++)
        good += listen_once(net, version, context, device);
    return good < count ? EXIT_LISTEN : EXIT_OK;
}

int main(int argc, char **argv)
{
    struct net_table *tables[VERSIONS] = {NULL};
    int accepted[VERSIONS] = {12, 11, 10, 9, 8, 7, 6, 5, 4};
    const char *rccl = NULL, *plugin = NULL;
    int timeout_s = 60, version, code;
    void *library;

    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";

        if (strcmp(argv[i], "--help") == 0) {
            fputs(usage, stdout);
            return EXIT_OK;
        }
        if (strcmp(argv[i], "--rccl") == 0 && *value) {
            rccl = value;
            i++;
        } else if (strcmp(argv[i], "--accept") == 0 && parse_accepted(value, accepted)) {
            i++;
        } else if (strcmp(argv[i], "--timeout") == 0 && (timeout_s = parse_timeout(value)) > 0) {
            i++;
        } else if (argv[i][0] != '-' && argv[i][0] && !plugin) {
            plugin = argv[i];
        } else {
            fputs(usage, stderr);
            return EXIT_USAGE;
        }
    }
    if (!plugin) {
        fputs(usage, stderr);
        return EXIT_USAGE;
    }

    begin("handshake", timeout_s);
    if (rccl) {
        probe_stage = "rccl";
        open_library("rccl", rccl, RTLD_LAZY | RTLD_LOCAL);
    }
    probe_stage = "dlopen";
    library = open_library("dlopen", plugin, RTLD_NOW | RTLD_LOCAL);
    report_mapped();
    if (!library)
        finish(EXIT_DLOPEN);

    probe_stage = "symbol";
    version = choose_version(library, accepted, tables);
    if (!version)
        finish(EXIT_SYMBOL);
    code = shake_hands(tables[version], version);
    report_mapped(); /* a library may be loaded only by init: libfabric loads some providers then */
    finish(code);
}
