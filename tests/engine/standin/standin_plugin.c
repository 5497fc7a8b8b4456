/*
 * A stand-in for RCCL's OFI net plugins, for tests: real as far as a handshake goes (provider, devices, listen through the real
 * libfabric), and nothing beyond it: connect and everything after it says that this is a stand-in and fails.
 *
 * The provider is what FI_PROVIDER says, else tcp. Net versions: 6 to 10, or 4 to 6 with -DSTANDIN_OLD_ABI.
 */
#define _POSIX_C_SOURCE 200809L
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, SYSTEM_ERROR = 2, INTERNAL_ERROR = 3, INVALID_ARGUMENT = 4 };
enum { LOG_WARN = 2, LOG_INFO = 3, FLAGS_INIT_NET = 1 | 16 };
enum { MAX_DEVICES = 16, HANDLE_BYTES = 64 };

typedef void (*logger_fn)(int level, unsigned long flags, const char *where, int line, const char *format, ...);
typedef int (*profiler_fn)(void **event, int type, void *parent, int64_t plugin, void *data);

static logger_fn logger;
static struct fi_info *offers;
static struct fi_info *nics[MAX_DEVICES];
static int nic_count;

#define SAY(level, ...) logger((level), FLAGS_INIT_NET, __func__, __LINE__, __VA_ARGS__)

struct listener {
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fid_ep *endpoint;
};

static int is_known(const struct fi_info *offer)
{
    for (int i = 0; i < nic_count; i++)
        if (strcmp(nics[i]->domain_attr->name, offer->domain_attr->name) == 0)
            return 1;
    return 0;
}

static int init(logger_fn log)
{
    struct fi_info *hints = fi_allocinfo();
    int rc;

    logger = log;
    nic_count = 0;
    SAY(LOG_INFO, "NET/OFI lumiimg stand-in, for tests only: moves no data");
    if (!hints)
        return SYSTEM_ERROR;
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_TAGGED | FI_MSG;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->domain_attr->mr_mode =
        FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT | FI_MR_HMEM;
    if (!getenv("FI_PROVIDER"))
        hints->fabric_attr->prov_name = strdup("tcp");
    rc = fi_getinfo(FI_VERSION(1, 11), NULL, NULL, 0, hints, &offers);
    fi_freeinfo(hints);
    if (rc != 0) {
        SAY(LOG_WARN, "NET/OFI the stand-in got no provider. RC: %d, ERROR: %s", rc, fi_strerror(-rc));
        return SYSTEM_ERROR;
    }
    for (struct fi_info *offer = offers; offer && nic_count < MAX_DEVICES; offer = offer->next)
        if (strcmp(offer->fabric_attr->prov_name, offers->fabric_attr->prov_name) == 0 && !is_known(offer))
            nics[nic_count++] = offer;
    SAY(LOG_INFO, "NET/OFI Selected Provider is %s", offers->fabric_attr->prov_name);
    return SUCCESS;
}

static int devices(int *count)
{
    *count = nic_count;
    return SUCCESS;
}

/* The row of words from ptrSupport to maxRecvs; what each version put between, and behind, is in the net_v*.h of NCCL. */
static int fill(int device, void *properties, int inserted, int latency, size_t size)
{
    struct {
        const char *name, *pci_path;
        uint64_t guid;
        int32_t words[8];
    } filled = {0};
    int at = 0;

    if (device < 0 || device >= nic_count)
        return INVALID_ARGUMENT;
    filled.name = nics[device]->domain_attr->name;
    filled.guid = (uint64_t)device;
    filled.words[at++] = 1;           /* ptrSupport: host */
    at += inserted;                   /* regIsGlobal, forceFlush */
    filled.words[at++] = 1000;        /* speed, Mbit/s */
    filled.words[at++] = 1;           /* port */
    at += latency;                    /* latency: 0.0 */
    filled.words[at++] = 1024;        /* maxComms */
    if (latency)
        filled.words[at++] = 1;       /* maxRecvs */
    memset(properties, 0, size);
    memcpy(properties, &filled, offsetof(__typeof__(filled), words) + sizeof(int32_t) * (size_t)at);
    return SUCCESS;
}

static int close_listen(void *opaque)
{
    struct listener *listener = opaque;

    if (listener->endpoint)
        fi_close(&listener->endpoint->fid);
    if (listener->cq)
        fi_close(&listener->cq->fid);
    if (listener->av)
        fi_close(&listener->av->fid);
    if (listener->domain)
        fi_close(&listener->domain->fid);
    if (listener->fabric)
        fi_close(&listener->fabric->fid);
    free(listener);
    return SUCCESS;
}

#define TRY(call)                                                                                               \
    do {                                                                                                        \
        int rc_ = (int)(call);                                                                                  \
        if (rc_ != 0) {                                                                                         \
            SAY(LOG_WARN, "NET/OFI the stand-in failed at %s. RC: %d, ERROR: %s", #call, rc_, fi_strerror(-rc_)); \
            close_listen(listener);                                                                             \
            return SYSTEM_ERROR;                                                                                \
        }                                                                                                       \
    } while (0)

static int listen_on(int device, void *handle, void **comm)
{
    struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
    struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED};
    unsigned char address[256] = {0};
    size_t size = sizeof address;
    struct listener *listener;
    struct fi_info *nic;

    if (device < 0 || device >= nic_count)
        return INVALID_ARGUMENT;
    nic = nics[device];
    listener = calloc(1, sizeof *listener);
    if (!listener)
        return SYSTEM_ERROR;
    TRY(fi_fabric(nic->fabric_attr, &listener->fabric, NULL));
    TRY(fi_domain(listener->fabric, nic, &listener->domain, NULL));
    TRY(fi_av_open(listener->domain, &av_attr, &listener->av, NULL));
    TRY(fi_cq_open(listener->domain, &cq_attr, &listener->cq, NULL));
    TRY(fi_endpoint(listener->domain, nic, &listener->endpoint, NULL));
    TRY(fi_ep_bind(listener->endpoint, &listener->av->fid, 0));
    TRY(fi_ep_bind(listener->endpoint, &listener->cq->fid, FI_SEND | FI_RECV));
    TRY(fi_enable(listener->endpoint));
    TRY(fi_getname(&listener->endpoint->fid, address, &size));
    memcpy(handle, address, HANDLE_BYTES); /* 64 bytes are what v4 gives */
    *comm = listener;
    return SUCCESS;
}

/* ---- what a real plugin does after listen: typed per version in NCCL, here all the same answer ---- */

static int refuse(const char *what)
{
    SAY(LOG_WARN, "NET/OFI lumiimg stand-in, for tests only: it cannot %s", what);
    return INTERNAL_ERROR;
}

static int no_connect_v4(int device, void *handle, void **comm)
{
    (void)device, (void)handle, (void)comm;
    return refuse("connect");
}

static int no_accept_v4(void *comm, void **peer)
{
    (void)comm, (void)peer;
    return refuse("accept");
}

#ifdef STANDIN_OLD_ABI
static int get_properties_v4(int device, void *properties)
{
    return fill(device, properties, 0, 0, 40);
}
#endif

static int get_properties_v5(int device, void *properties)
{
    return fill(device, properties, 0, 1, 48);
}

/* As far as the handshake goes the tables differ only in where closeListen is; slots that are never reached stay empty. */
struct table {
    const char *name;
    union {
        int (*v4)(logger_fn);
        int (*v10)(logger_fn, profiler_fn);
    } init;
    int (*devices)(int *);
    int (*get_properties)(int, void *);
    int (*listen)(int, void *, void **);
    union {
        int (*v4)(int, void *, void **);
        int (*v7)(int, void *, void **, void **);
        int (*v10)(int, void *, void *, void **, void **);
    } connect;
    union {
        int (*v4)(void *, void **);
        int (*v7)(void *, void **, void **);
    } accept;
    void (*unreached[7])(void);
    int (*closing[4])(void *); /* closeSend at 14 (13 before v6), closeRecv, closeListen, and then what v7 added */
    void (*added[3])(void);
};

#define NAME "lumiimg stand-in"
#define EXPORT __attribute__((visibility("default"))) extern const struct table

#ifdef STANDIN_OLD_ABI
#define OLD(properties)                                                                                     \
    {                                                                                                       \
        .name = NAME, .init.v4 = init, .devices = devices, .get_properties = (properties), .listen = listen_on, \
        .connect.v4 = no_connect_v4, .accept.v4 = no_accept_v4, .closing[1] = close_listen                  \
    }
EXPORT ncclNetPlugin_v4, ncclNetPlugin_v5;
const struct table ncclNetPlugin_v4 = OLD(get_properties_v4);
const struct table ncclNetPlugin_v5 = OLD(get_properties_v5);
#endif

EXPORT ncclNetPlugin_v6;
const struct table ncclNetPlugin_v6 = {
    .name = NAME, .init.v4 = init, .devices = devices, .get_properties = get_properties_v5, .listen = listen_on,
    .connect.v4 = no_connect_v4, .accept.v4 = no_accept_v4, .closing[2] = close_listen,
};

#ifndef STANDIN_OLD_ABI
static int init_v10(logger_fn log, profiler_fn profiler)
{
    (void)profiler;
    return init(log);
}

static int get_properties_v7(int device, void *properties)
{
    return fill(device, properties, 0, 1, 56);
}

static int get_properties_v8(int device, void *properties)
{
    return fill(device, properties, 1, 1, 64);
}

/* v9 and v10: forceFlush, and at the end which devices it is made of (one) and how much one request may move. */
static int get_properties_v9(int device, void *properties)
{
    struct {
        char before[64];
        int32_t device_count, devices[4];
        size_t max_p2p_bytes, max_coll_bytes;
    } filled = {.device_count = 1, .devices = {device}, .max_p2p_bytes = 1 << 30, .max_coll_bytes = 1 << 30};
    int rc = fill(device, filled.before, 2, 1, sizeof filled.before);

    if (rc == SUCCESS)
        memcpy(properties, &filled, sizeof filled);
    return rc;
}

static int no_connect_v7(int device, void *handle, void **comm, void **offload)
{
    (void)offload;
    return no_connect_v4(device, handle, comm);
}

static int no_connect_v10(int device, void *config, void *handle, void **comm, void **offload)
{
    (void)config, (void)offload;
    return no_connect_v4(device, handle, comm);
}

static int no_accept_v7(void *comm, void **peer, void **offload)
{
    (void)offload;
    return no_accept_v4(comm, peer);
}

#define NEW(version, field, function, properties, dial)                                                           \
    EXPORT ncclNetPlugin_v##version;                                                                              \
    const struct table ncclNetPlugin_v##version = {                                                               \
        .name = NAME, .init.field = (function), .devices = devices, .get_properties = (properties),               \
        .listen = listen_on, .connect.dial = no_connect_##dial, .accept.v7 = no_accept_v7, .closing[2] = close_listen, \
    }

NEW(7, v4, init, get_properties_v7, v7);
NEW(8, v4, init, get_properties_v8, v7);
NEW(9, v4, init, get_properties_v9, v7);
NEW(10, v10, init_v10, get_properties_v9, v10);
#endif
