/*
 * The plugin takes container_of from libfabric's rdma/fabric.h, which no longer defines it from 2.0 on. post.sh includes this
 * file before every source where the header lacks it.
 */
#ifndef LUMIIMG_CONTAINER_OF_H
#define LUMIIMG_CONTAINER_OF_H

#include <stddef.h>

#ifndef container_of
#define container_of(member_pointer, type, member) ((type *)(void *)((char *)(member_pointer) - offsetof(type, member)))
#endif

#endif
