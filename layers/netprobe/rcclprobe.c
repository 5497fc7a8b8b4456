/*
 * rcclprobe: which net plugin does this RCCL load when it is asked for a unique id?
 *
 * RCCL up to 2.21.5 (ROCm 6.3) loads its net plugin inside ncclGetUniqueId, without a GPU; later ones do not, and some return
 * an error there without a GPU. So this program only tells what happened; the reader knows what this version can prove: the
 * `mapped` lines say whether a plugin was loaded, the log of RCCL need not. The last error may be set after a success too
 * (RCCL 2.13.4 without a GPU). The call is made once: after a failure a second one waits forever in RCCL <= 2.21.5.
 *
 * It sets and clears no environment variable: NCCL_DEBUG=INFO and the rest are the caller's to choose.
 */
#include "probe.h"

struct unique_id {
    char bytes[1024]; /* ncclUniqueId has 128 bytes in every release so far */
};

static const char usage[] =
    "usage: rcclprobe [--timeout SECONDS] LIBRARY\n"
    "Load LIBRARY (librccl.so.1), ask it for its version and for one unique id, and list the libraries that are mapped then.\n"
    "exit: 0 it ran through, whatever RCCL answered; 10 LIBRARY cannot be loaded; 11 it is no RCCL; 16 timed out; 2 usage\n";

int main(int argc, char **argv)
{
    int (*get_version)(int *) = NULL;
    int (*get_unique_id)(struct unique_id *) = NULL;
    const char *(*get_error_string)(int) = NULL;
    const char *(*get_last_error)(void *) = NULL;
    static struct unique_id id;
    struct event event;
    int timeout_s, version = 0, rc;
    long long start, spent;
    void *library;

    const char *path = the_library(argc, argv, usage, &timeout_s);

    begin("rcclprobe", timeout_s);
    probe_stage = "dlopen";
    library = open_library("dlopen", path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        finish(EXIT_DLOPEN);

    probe_stage = "version";
    FIND(library, "ncclGetVersion", get_version);
    FIND(library, "ncclGetUniqueId", get_unique_id);
    FIND(library, "ncclGetErrorString", get_error_string);
    FIND(library, "ncclGetLastError", get_last_error); /* since NCCL 2.13 */
    if (!get_version || !get_unique_id)
        finish(EXIT_SYMBOL);
    rc = get_version(&version);
    event_begin(&event, "version");
    event_number(&event, "rc", rc);
    event_number(&event, "value", version);
    event_end(&event);

    probe_stage = "uniqueid";
    start = now_us();
    rc = get_unique_id(&id);
    spent = now_us() - start;
    fflush(stdout);
    event_begin(&event, "uniqueid");
    event_number(&event, "rc", rc);
    event_string(&event, "error", rc && get_error_string ? get_error_string(rc) : NULL);
    event_seconds(&event, "seconds", spent);
    event_end(&event);
    if (get_last_error) {
        event_begin(&event, "lasterror");
        event_string(&event, "text", get_last_error(NULL));
        event_end(&event);
    }
    report_mapped();
    finish(EXIT_OK);
}
