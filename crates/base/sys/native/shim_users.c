// Resolves an image's USER with its /etc/passwd and /etc/group. The C library would load modules for this (nsswitch.conf(5)),
// which a static program cannot do. Part of the shim (shim.c).

#define _GNU_SOURCE
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_MAX (256 * 1024)

// The answer to USER; groups and home folder follow.
struct user {
    uint32_t uid;
    uint32_t gid;
    uint32_t groups;
};

static char file_text[FILE_MAX];

char *text_of(const char *path) {
    file_text[0] = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return file_text;
    struct stat stat;
    size_t len = 0;
    if (fstat(fd, &stat) == 0 && S_ISREG(stat.st_mode)) {
        ssize_t got;
        while (len < FILE_MAX - 1 && (got = read(fd, file_text + len, FILE_MAX - 1 - len)) > 0) len += (size_t)got;
    }
    close(fd);
    file_text[len] = 0;
    return file_text;
}

// Splits the next line into fields at ':'. False: there is no line left.
static int next_line(char **rest, char *fields[7]) {
    char *line;
    while ((line = strsep(rest, "\n"))) {
        size_t count = 0;
        for (char *field; count < 7 && (field = strsep(&line, ":")); count++) fields[count] = field;
        if (count < 3 || !fields[0][0]) continue;
        for (; count < 7; count++) fields[count] = (char *)(uintptr_t)"";
        return 1;
    }
    return 0;
}

int number_of(const char *text, uint32_t *number) {
    char *end;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    if (errno || end == text || *end || value >= UINT32_MAX || text[0] == '-' || text[0] == '+') return 0;
    *number = (uint32_t)value;
    return 1;
}

static int lists(char *members, const char *name) {
    for (char *member; (member = strsep(&members, ","));)
        if (strcmp(member, name) == 0) return 1;
    return 0;
}

// `name`, `uid`, `name:group`, `uid:gid`, or nothing for root: the forms of USER that engines accept.
void op_user(uint64_t id) {
    // The answer; groups and home follow without a gap.
    static uint8_t payload[sizeof(struct user) + GROUPS_MAX * sizeof(uint32_t) + 256];
    struct user user = {0, 0, 0};
    uint32_t groups[GROUPS_MAX];
    char spec[256], name[256] = "", home[256] = "/", *fields[7];
    size_t len = message_len - sizeof(struct head);
    if (len >= sizeof spec) return failed(id, EINVAL, "user");
    memcpy(spec, message + sizeof(struct head), len);
    spec[len] = 0;
    char *group = spec, *who = strsep(&group, ":");
    if (!who[0]) who = (char *)(uintptr_t)"0";
    uint32_t uid = 0, gid = 0, asked;
    int is_number = number_of(who, &asked), known = 0;
    for (char *rest = text_of("/etc/passwd"); !known && next_line(&rest, fields);) {
        uint32_t here;
        if (!number_of(fields[2], &here)) continue;
        if (strcmp(fields[0], who) != 0 && !(is_number && here == asked)) continue;
        known = 1;
        uid = here;
        if (!number_of(fields[3], &gid)) gid = 0;
        strncpy(name, fields[0], sizeof name - 1);
        if (fields[5][0]) strncpy(home, fields[5], sizeof home - 1);
    }
    if (!known && !is_number) return failed(id, ENOENT, "/etc/passwd of the image does not have this user");
    if (!known) uid = asked;
    user.uid = uid;
    if (group && group[0] && number_of(group, &gid)) group = NULL;
    int group_known = !(group && group[0]);
    int takes_all = group_known && name[0];
    for (char *rest = text_of("/etc/group"); next_line(&rest, fields);) {
        uint32_t here;
        if (!number_of(fields[2], &here)) continue;
        if (!group_known && strcmp(fields[0], group) == 0) {
            gid = here;
            group_known = 1;
        }
        if (takes_all && here != gid && user.groups < GROUPS_MAX && lists(fields[3], name))
            groups[user.groups++] = here;
    }
    if (!group_known) return failed(id, ENOENT, "/etc/group of the image does not have this group");
    user.gid = gid;
    uint8_t *end = payload;
    memcpy(end, &user, sizeof user);
    end += sizeof user;
    memcpy(end, groups, user.groups * sizeof(uint32_t));
    end += user.groups * sizeof(uint32_t);
    memcpy(end, home, strlen(home));
    end += strlen(home);
    tell(OP_DONE, 0, id, payload, (size_t)(end - payload), -1);
}
