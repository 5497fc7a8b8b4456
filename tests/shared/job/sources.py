"""C sources of the stand-ins that a job really runs: RCCL, net plugin, libfabric, libcxi, the libraries of torch.

They do what decides which files are opened, as the originals do, and no more. Nothing is linked with the C library:
what they take from it has been there in every glibc of 64 bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lumiimg.fabric.names import Naming

LIBC = """
extern void *dlopen(const char *, int); extern void *dlsym(void *, const char *); extern char *dlerror(void); extern char *getenv(const char *);
extern int setenv(const char *, const char *, int); extern int strcmp(const char *, const char *);
extern int strcasecmp(const char *, const char *); extern unsigned long strlen(const char *);
extern char *strstr(const char *, const char *); extern char *strchr(const char *, int); extern int snprintf(char *, unsigned long, const char *, ...);
extern int open(const char *, int, ...); extern long read(int, void *, unsigned long); extern int close(int);
enum { NOW = 2 };
"""
HIP = "int instance; void *hip_instance(void) { return &instance; }"
HSA = "int hsa_init; int hsa_amd_pointer_info;"
CXI = 'const char *cxil_open_device(void) { return "cxi"; }'
PROVIDER = "extern const char *cxil_open_device(void); const char *fi_prov_ini(void) { return cxil_open_device(); }"

_FABRIC = """
const char help[] = "\\0Search for providers in specific path.  Path is like dir1:dir2. (default: " DEFAULT ")";
#ifdef ASKS_LOADER
const char name[] = "\\0cxi";
#endif
static int allowed(void)
{
    const char *filter = getenv("FI_PROVIDER");
    int inverted, named;

    if (!filter || !*filter)
        return 1;
    inverted = *filter == '^';
    named = strstr(filter, "^cxi" + 1) != 0; // by itself it would be in the list of providers
    return named != inverted;
}
static const char *with(const char *file)
{
    void *library = dlopen(file, NOW);
    const char *(*entry)(void) = 0;

    if (library)
        entry = (const char *(*)(void))dlsym(library, "fi_prov_ini");
    return entry ? entry() : 0;
}
static const char *provider(void)
{
#ifdef BUILT_IN
    extern const char *cxil_open_device(void);
    return cxil_open_device();
#else
    char file[4096];
    const char *at = getenv("FI_PROVIDER_PATH"), *end, *found = 0;

#ifdef ASKS_LOADER
    if ((!at || !*at) && (found = with("libcxi-fi.so")))
        return found;
#endif
    if (!at || !*at)
        at = DEFAULT;
    for (; !found; at = end + 1) {
        end = strchr(at, ':');
        snprintf(file, sizeof file, "%.*s/libcxi-fi.so", end ? (int)(end - at) : (int)strlen(at), at);
        found = with(file);
        if (!end)
            break;
    }
    return found;
#endif
}
const char *fi_network(void)
{
    const char *found;

    if (!allowed())
        return "tcp: FI_PROVIDER";
    found = provider();
    if (!found)
        return "tcp: no cxi provider";
    return dlopen("libhsa-runtime64.so", NOW) ? found : "doubt: cxi without memory of GPUs";
}
"""

_PLUGIN = """
extern const char *fi_network(void);
struct net { const char *name; const char *(*init)(void *hip); };
static const char *init(void *hip)
{
#ifdef WITH_HIP
    extern void *hip_instance(void);
    if (hip != hip_instance())
        return "two runtimes of HIP";
#endif
    (void)hip;
    return fi_network();
}
const char plugin_name[] = "\\0AWS Libfabric";
"""

_RCCL = """
#define SUFFIX 1
#define NAME_THEN_SUFFIX 2
#define NAME_OR_SUFFIX 3
#define LIST 4
#define LIST_OR_NONE 5
struct net { const char *name; const char *(*init)(void *hip); };
extern void *hip_instance(void);
const char banner[] = "RCCL version " VERSION "+hip6.2";
static const char *const files[] = {FILES, 0};
static const char *const stem = "librccl-net";
static const char *const symbols[] = {SYMBOLS, 0};
static const char *tried; /* why a plugin that was opened is not used */
static char conf[8192];

static const char *with(const char *name)
{
    void *library = dlopen(name, NOW);
    const char *forced = getenv("NCCL_NET");
    struct net *net = 0;

    if (!library) {
        snprintf(conf, sizeof conf, "socket: %s", dlerror());
        tried = conf;
        return 0;
    }
    for (int i = 0; symbols[i] && !net; i++)
        net = dlsym(library, symbols[i]);
    if (!net) {
        tried = "socket: the plugin has none of our versions";
        return NAMING < LIST ? tried : 0;
    }
    if (forced && strcasecmp(forced, net->name))
        return "socket: NCCL_NET";
    return net->init(hip_instance());
}
static const char *suffixed(const char *word)
{
    char name[512];

    snprintf(name, sizeof name, "%s-%s.so", stem, word);
    return with(name);
}
static const char *named(const char *word)
{
    const char *found = 0;
    unsigned long length = strlen(word);

    if (NAMING != SUFFIX)
        found = with(word);
    if (found || (NAMING >= NAME_OR_SUFFIX && (strchr(word, '/') || (strstr(word, "lib") == word && length > 3 && !strcmp(word + length - 3, ".so")))))
        return found;
    return suffixed(word);
}
static void read_conf(void)
{
    int file = open("/etc/rccl.conf", 0);
    long size = file < 0 ? 0 : read(file, conf, sizeof conf - 1);
    char *line = conf, *end, *equals;

    for (; size > 0 && line < conf + size; line = end + 1) {
        end = strchr(line, '\\n');
        if (!end)
            end = conf + size;
        *end = 0;
        equals = strchr(line, '=');
        if (equals) {
            *equals = 0;
            setenv(line, equals + 1, 0);
        }
    }
    if (file >= 0)
        close(file);
}
const char *ncclCommInitRank(void)
{
    const char *wanted, *found = 0;
    static char words[1024], *word, *comma;

    read_conf();
    wanted = getenv("NCCL_NET_PLUGIN");
    if (NAMING >= LIST && wanted) {
        if (NAMING == LIST_OR_NONE && !strcasecmp(wanted, "none"))
            return "socket: no plugin wanted";
        snprintf(words, sizeof words, "%s", wanted);
        for (word = words; *word && !found; word = comma + 1) {
            comma = strchr(word, ',');
            if (comma)
                *comma = 0;
            if (*word)
                found = named(word);
            if (!comma)
                break;
        }
    } else if (wanted && *wanted) {
        found = named(wanted);
    } else {
        for (int i = 0; files[i] && !found; i++)
            found = with(files[i]);
    }
    return found ? found : tried ? tried : "socket: no plugin";
}
int ncclGetUniqueId(void *id) { (void)id; return 0; }
"""

TORCH_HIP = """
extern const char *ncclCommInitRank(void);
const char *all_reduce(void) { return ncclCommInitRank(); }
"""

EXTENSION = """
struct definition { long count; void *type; void *init; long index; void *copy; const char *name; const char *doc; long size; void *rest[5]; };
extern void *PyModule_Create2(struct definition *, int);
static struct definition definition = {1, 0, 0, 0, 0, "torch._C", 0, -1, {0}};
void *PyInit__C(void) { return PyModule_Create2(&definition, 1013); }
"""
"""A module of C for each Python from 3.8 to 3.14, made without its headers (Include/moduleobject.h)."""


def fabric(*, built_in: bool = True, asks_loader: bool = False, default: str = "/usr/lib64/libfabric") -> str:
    """Return a libfabric with cxi in it, or one that looks for a provider in a file."""
    defines = f'#define DEFAULT "{default}"\n'
    defines += "#define BUILT_IN\n" * built_in + "#define ASKS_LOADER\n" * asks_loader
    return defines + LIBC + _FABRIC


def plugin(*versions: int, with_hip: bool = False) -> str:
    """Return a net plugin that offers these versions of the net API."""
    tables = "".join(f"struct net ncclNetPlugin_v{each} = {{plugin_name + 1, init}};\n" for each in versions)
    return ("#define WITH_HIP\n" if with_hip else "") + _PLUGIN + tables


def rccl(version: str, files: tuple[str, ...], accepts: tuple[int, ...], naming: Naming) -> str:
    """Return an RCCL of a generation."""
    names, symbols = (
        ", ".join(f'"{each}"' for each in words) for words in (files, [f"ncclNetPlugin_v{v}" for v in accepts])
    )
    wanted = naming.name
    return f'#define VERSION "{version}"\n#define FILES {names}\n#define SYMBOLS {symbols}\n#define NAMING {wanted}\n{LIBC}{_RCCL}'
