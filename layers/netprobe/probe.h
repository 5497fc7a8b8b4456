/*
 * What the programs of this folder share: the writer of event lines, the guard against signals and hangs, and the list of
 * mapped libraries.
 *
 * An event is one line on standard output, written by one write(2):
 *
 *     @probe TOPIC key=value key=value
 *
 * Every byte of a value that is not one of A-Z a-z 0-9 . _ / : + - is written as %XX. Libraries write to the same standard
 * output, so an event starts with a newline, whatever they left there; readers skip empty lines. A line is at most PIPE_BUF
 * bytes, so that lines of several threads never mix in a pipe (pipe(7)); a value that does not fit is cut at its end.
 */
#ifndef LUMIIMG_PROBE_H
#define LUMIIMG_PROBE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* dlinfo(3), sigaltstack(2) under -std=c11 */
#endif

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum {
    EXIT_OK = 0,
    EXIT_USAGE = 2,
    EXIT_DLOPEN = 10,
    EXIT_SYMBOL = 11,
    EXIT_INIT = 12,
    EXIT_DEVICES = 13,
    EXIT_PROPERTIES = 14,
    EXIT_LISTEN = 15,
    EXIT_TIMEOUT = 16
};

enum { PROBE_PROTOCOL = 1, MAX_TIMEOUT_S = 3600, MAX_MAPPED = 1024 };

/* ---- events. Nothing here allocates, locks or uses stdio, so that a signal handler may write one. ---- */

struct event {
    size_t used;
    char text[PIPE_BUF];
};

static inline void event_byte(struct event *event, char byte)
{
    if (event->used < sizeof event->text - 1) /* the last byte is kept for the newline */
        event->text[event->used++] = byte;
}

static inline void event_text(struct event *event, const char *text)
{
    for (; *text; text++)
        event_byte(event, *text);
}

static inline void event_begin(struct event *event, const char *topic)
{
    event->used = 0;
    event_text(event, "\n@probe ");
    event_text(event, topic);
}

static inline bool is_plain(unsigned char byte)
{
    return (byte >= 'A' && byte <= 'Z') || (byte >= 'a' && byte <= 'z') || (byte >= '0' && byte <= '9') || byte == '.' ||
           byte == '_' || byte == '/' || byte == ':' || byte == '+' || byte == '-';
}

static inline void event_key(struct event *event, const char *key)
{
    event_byte(event, ' ');
    event_text(event, key);
    event_byte(event, '=');
}

/* VALUE may be NULL: then the value is empty. */
static inline void event_string(struct event *event, const char *key, const char *value)
{
    static const char hex[] = "0123456789ABCDEF";

    event_key(event, key);
    for (; value && *value; value++) {
        unsigned char byte = (unsigned char)*value;
        if (is_plain(byte)) {
            event_byte(event, (char)byte);
        } else if (event->used + 3 < sizeof event->text) { /* never half an escape */
            event_byte(event, '%');
            event_byte(event, hex[byte >> 4]);
            event_byte(event, hex[byte & 15]);
        } else {
            return;
        }
    }
}

static inline void event_number(struct event *event, const char *key, long long value)
{
    char digits[24];
    size_t at = sizeof digits;
    unsigned long long rest = value < 0 ? 0ULL - (unsigned long long)value : (unsigned long long)value;

    digits[--at] = '\0';
    do {
        digits[--at] = (char)('0' + rest % 10);
        rest /= 10;
    } while (rest);
    if (value < 0)
        digits[--at] = '-';
    event_key(event, key);
    event_text(event, digits + at);
}

/* Microseconds, written as seconds with three decimals. */
static inline void event_seconds(struct event *event, const char *key, long long microseconds)
{
    long long thousandths = microseconds / 1000;

    event_number(event, key, thousandths / 1000);
    event_byte(event, '.');
    event_byte(event, (char)('0' + thousandths / 100 % 10));
    event_byte(event, (char)('0' + thousandths / 10 % 10));
    event_byte(event, (char)('0' + thousandths % 10));
}

static inline void event_end(struct event *event)
{
    ssize_t written;

    event->text[event->used++] = '\n';
    written = write(STDOUT_FILENO, event->text, event->used);
    (void)written; /* if nobody reads any more, nobody can be told */
}

/* ---- what is being done right now, how long it takes, and what happens when it never ends or dies ---- */

static const char *volatile probe_stage = "start";
static volatile int probe_timeout_s;

static inline long long now_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (long long)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static inline void on_fatal(int number)
{
    struct event event;

    event_begin(&event, "signal");
    event_number(&event, "number", number);
    event_string(&event, "during", probe_stage);
    event_end(&event);
    raise(number); /* SA_RESETHAND gave back the default action: death by this signal when this handler returns */
}

static inline void on_alarm(int number)
{
    struct event event;

    (void)number;
    event_begin(&event, "timeout");
    event_number(&event, "seconds", probe_timeout_s);
    event_string(&event, "during", probe_stage);
    event_end(&event);
    _exit(EXIT_TIMEOUT);
}

/*
 * A handler needs a stack of its own where the fault is that the stack is full. No core file is left: a probe that dies is an
 * answer, not an accident.
 */
static inline void guard(int timeout_s)
{
    static const int fatal[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTRAP, SIGSYS};
    static char stack[65536];
    stack_t alternative = {.ss_sp = stack, .ss_size = sizeof stack};
    struct rlimit no_core = {0, 0};
    struct sigaction action;
    sigset_t unblocked;

    setrlimit(RLIMIT_CORE, &no_core);
    sigaltstack(&alternative, NULL);
    memset(&action, 0, sizeof action);
    sigemptyset(&action.sa_mask);
    sigemptyset(&unblocked);
    action.sa_handler = on_fatal;
    action.sa_flags = (int)(SA_ONSTACK | SA_RESETHAND);
    for (size_t i = 0; i < sizeof fatal / sizeof fatal[0]; i++) {
        sigaction(fatal[i], &action, NULL);
        sigaddset(&unblocked, fatal[i]);
    }
    action.sa_handler = on_alarm;
    sigaction(SIGALRM, &action, NULL);
    sigaddset(&unblocked, SIGALRM);
    sigprocmask(SIG_UNBLOCK, &unblocked, NULL); /* a caller's mask survives execve(2) */
    probe_timeout_s = timeout_s;
    alarm((unsigned)timeout_s);
}

/* Lines that a library printed through stdio must come in order with the events, and must not die in a buffer. */
static inline void begin(const char *program, int timeout_s)
{
    struct event event;

    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    guard(timeout_s);
    event_begin(&event, "start");
    event_string(&event, "program", program);
    event_number(&event, "protocol", PROBE_PROTOCOL);
    event_end(&event);
}

/*
 * The end of the probe: without destructors and atexit handlers, because a plugin that dies while it is torn down would turn an
 * answer that is already known into another one.
 */
static inline _Noreturn void finish(int code)
{
    struct event event;

    fflush(NULL);
    event_begin(&event, "end");
    event_string(&event, "stage", probe_stage);
    event_number(&event, "code", code);
    event_end(&event);
    _exit(code);
}

/* ---- libraries ---- */

/*
 * dlopen(3), and an event that says how it went; `file` is what the loader found for a name without a slash. Returns NULL
 * after a failure.
 */
static inline void *open_library(const char *topic, const char *path, int flags)
{
    struct event event;
    struct link_map *map = NULL;
    long long start = now_us();
    void *library = dlopen(path, flags);
    long long spent = now_us() - start;
    const char *error = library ? NULL : dlerror();

    if (library && dlinfo(library, RTLD_DI_LINKMAP, &map) != 0)
        map = NULL;
    event_begin(&event, topic);
    event_string(&event, "path", path);
    event_number(&event, "ok", library != NULL);
    event_seconds(&event, "seconds", spent);
    event_string(&event, "file", map ? map->l_name : NULL);
    event_string(&event, "error", error);
    event_end(&event);
    return library;
}

/* An object of this process by an address in it, and its build-id: the GNU note of its linker (ld(1), --build-id). */
struct build_id {
    uintptr_t address;
    const unsigned char *bytes;
    size_t length;
};

static inline int find_build_id(struct dl_phdr_info *object, size_t size, void *wanted)
{
    struct build_id *id = wanted;
    bool is_it = false;

    (void)size;
    for (size_t i = 0; i < object->dlpi_phnum; i++) {
        uintptr_t start = object->dlpi_addr + object->dlpi_phdr[i].p_vaddr;
        if (object->dlpi_phdr[i].p_type == PT_LOAD && id->address >= (start & ~(uintptr_t)0xFFF) &&
            id->address < start + object->dlpi_phdr[i].p_memsz)
            is_it = true;
    }
    for (size_t i = 0; is_it && i < object->dlpi_phnum; i++) {
        const unsigned char *at = (const unsigned char *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr);
        size_t left = object->dlpi_phdr[i].p_filesz;

        while (object->dlpi_phdr[i].p_type == PT_NOTE && left >= sizeof(ElfW(Nhdr))) {
            const ElfW(Nhdr) *note = (const void *)at;
            size_t name = ((size_t)note->n_namesz + 3) & ~(size_t)3, whole;

            whole = sizeof *note + name + (((size_t)note->n_descsz + 3) & ~(size_t)3);
            if (whole > left)
                break;
            if (note->n_type == NT_GNU_BUILD_ID && note->n_namesz == 4 && memcmp(at + sizeof *note, "GNU", 4) == 0) {
                id->bytes = at + sizeof *note + name;
                id->length = note->n_descsz;
                return 1;
            }
            at += whole;
            left -= whole;
        }
    }
    return is_it;
}

static inline void event_build_id(struct event *event, uintptr_t address)
{
    static const char hex[] = "0123456789abcdef";
    struct build_id id = {.address = address};

    dl_iterate_phdr(find_build_id, &id);
    event_key(event, "build");
    for (size_t i = 0; i < id.length && i < 32; i++) {
        event_byte(event, hex[id.bytes[i] >> 4]);
        event_byte(event, hex[id.bytes[i] & 15]);
    }
}

/* ISO C has no cast from an object pointer to a function pointer; POSIX says that the bytes are good (dlsym(3p)). */
#define FIND(library, name, function)                        \
    do {                                                     \
        void *found_ = dlsym((library), (name));             \
        memcpy(&(function), &found_, sizeof found_);         \
    } while (0)

/* One `mapped` event for each library in /proc/self/maps that no earlier call reported. */
static inline void report_mapped(void)
{
    static char *seen[MAX_MAPPED];
    static size_t count;
    char *line = NULL;
    size_t size = 0;
    FILE *maps = fopen("/proc/self/maps", "r");

    if (!maps)
        return;
    while (count < MAX_MAPPED && getline(&line, &size, maps) > 0) {
        char *path = strchr(line, '/'); /* proc(5): the pathname is the last field, and the only one with a slash */
        const char *base;
        size_t i = 0;
        struct event event;

        if (!path)
            continue;
        path[strcspn(path, "\n")] = '\0';
        base = strrchr(path, '/') + 1;
        if (!strstr(base, ".so"))
            continue;
        while (i < count && strcmp(seen[i], path) != 0)
            i++;
        if (i < count || !(seen[count] = strdup(path)))
            continue;
        count++;
        event_begin(&event, "mapped");
        event_build_id(&event, (uintptr_t)strtoull(line, NULL, 16)); /* before the path, which may fill the line */
        event_string(&event, "path", path);
        event_end(&event);
    }
    free(line);
    fclose(maps);
}

/* ---- the command line ---- */

/* A whole number in [LOW, HIGH] that fills TEXT up to END (exclusive), else -1. */
static inline int parse_number(const char *text, const char *end, int low, int high)
{
    long value = 0;

    if (text == end || end - text > 6)
        return -1;
    for (; text < end; text++) {
        if (*text < '0' || *text > '9')
            return -1;
        value = value * 10 + (*text - '0');
    }
    return value < low || value > high ? -1 : (int)value;
}

static inline int parse_timeout(const char *text)
{
    return parse_number(text, text + strlen(text), 1, MAX_TIMEOUT_S);
}

/* Read the arguments of a program that looks at one library: its path, and after how many seconds to give up. */
static inline const char *the_library(int argc, char **argv, const char *usage, int *timeout_s)
{
    const char *path = NULL;

    *timeout_s = 60;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0) {
            fputs(usage, stdout);
            exit(EXIT_OK);
        }
        if (strcmp(argv[i], "--timeout") == 0 && i + 1 < argc && (*timeout_s = parse_timeout(argv[i + 1])) > 0) {
            i++;
        } else if (argv[i][0] != '-' && argv[i][0] && !path) {
            path = argv[i];
        } else {
            fputs(usage, stderr);
            exit(EXIT_USAGE);
        }
    }
    if (!path) {
        fputs(usage, stderr);
        exit(EXIT_USAGE);
    }
    return path;
}

#endif
