// A stand-in for libroctracer64.so.4, which Debian does not package: whoever asks it to trace gets an error. The functions
// are those that the plugin of JAX for ROCm 7.2 is linked with, with the symbol versions of ROCm's inc/roctracer.h.
#include <stddef.h>
#include <stdint.h>

// roctracer_status_t: ROCTRACER_STATUS_ERROR; nobody who gets it looks at what a call would have returned.
static const int error = -1;

#define REFUSES(name)       \
    int name(void);         \
    int name(void)          \
    {                       \
        return error;       \
    }

REFUSES(roctracer_disable_domain_activity)
REFUSES(roctracer_disable_domain_callback)
REFUSES(roctracer_disable_op_activity)
REFUSES(roctracer_disable_op_callback)
REFUSES(roctracer_enable_domain_activity_expl)
REFUSES(roctracer_enable_domain_callback)
REFUSES(roctracer_enable_op_activity_expl)
REFUSES(roctracer_enable_op_callback)
REFUSES(roctracer_flush_activity_expl)
REFUSES(roctracer_get_timestamp)
REFUSES(roctracer_next_record)
REFUSES(roctracer_open_pool_expl)
REFUSES(roctracer_set_properties)

void *roctracer_default_pool_expl(void *pool);
const char *roctracer_error_string(void);
const char *roctracer_op_string(uint32_t domain, uint32_t operation, uint32_t kind);

void *roctracer_default_pool_expl(void *pool)
{
    (void)pool;
    return NULL;
}

const char *roctracer_error_string(void)
{
    return "this is a stand-in for roctracer: it traces nothing";
}

const char *roctracer_op_string(uint32_t domain, uint32_t operation, uint32_t kind)
{
    (void)domain, (void)operation, (void)kind;
    return "";
}
