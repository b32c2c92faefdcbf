/* Measures write -> server-sent event latency, with readers that cost next to nothing.
 *
 *   cc -O2 -o sse_reader bench/sse_reader.c
 *   ./sse_reader PORT WATCHERS WRITES_PER_S SECONDS [TOPICS [PAD_BYTES [KEY]]]
 *
 * Opens WATCHERS streams over TOPICS topics (round robin), writes one record at a time at a steady
 * rate on one more connection, and stamps each with the time it was due to be sent: a server that
 * makes the writer wait does not make its own figures better. Every reader must see every record
 * of its topic once and in order; what is missing or repeated is counted.
 *
 * Prints one JSON object. A record's latency is from its stamp until a reader has parsed it, that of
 * an acknowledgement from the same stamp until the writer has its answer.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define READ_BYTES (256 * 1024)
#define EVENTS 512

struct stream {
    int fd;
    int topic;
    char *line;      /* an event that has not ended yet */
    size_t length, room;
    uint64_t next;   /* the seq that must come next */
};

static int port;
static const char *key = "";
static uint32_t *latencies_us;
static uint32_t *acks_us;
static size_t count, room;
static uint64_t frames, records, missing, repeated;

static void die(const char *what) {
    fprintf(stderr, "sse_reader: %s: %s\n", what, errno ? strerror(errno) : "unexpected answer");
    exit(1);
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int dial(void) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to) < 0) die("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static void put(int fd, const char *data, size_t size) {
    while (size) {
        ssize_t n = write(fd, data, size);
        if (n < 0 && errno == EAGAIN) continue;
        if (n <= 0) die("write");
        data += n;
        size -= (size_t)n;
    }
}

/* One request on a connection of its own turn; the answer's body is left in `answer`. */
static void ask(int fd, const char *method, const char *path, const char *body, char *answer,
                size_t answer_room) {
    char head[1024];
    int n = snprintf(head, sizeof head,
                     "%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     "%s%s%sContent-Length: %zu\r\n\r\n",
                     method, path, *key ? "Authorization: Bearer " : "", key, *key ? "\r\n" : "",
                     strlen(body));
    put(fd, head, (size_t)n);
    put(fd, body, strlen(body));
    size_t got = 0;
    for (;;) {
        ssize_t r = read(fd, answer + got, answer_room - 1 - got);
        if (r <= 0) die("read");
        got += (size_t)r;
        answer[got] = 0;
        char *end = strstr(answer, "\r\n\r\n"), *length = strcasestr(answer, "content-length: ");
        if (end && length && got >= (size_t)(end + 4 - answer) + strtoul(length + 16, NULL, 10)) {
            if (strncmp(answer, "HTTP/1.1 20", 11)) {
                fprintf(stderr, "%s\n", answer);
                errno = 0;
                die(path);
            }
            memmove(answer, end + 4, got - (size_t)(end + 4 - answer) + 1);
            return;
        }
    }
}

static void open_stream(struct stream *s, int topic, int setup) {
    char body[256], answer[4096], wid[64];
    snprintf(body, sizeof body, "{\"topics\":{\"bench-%d\":{\"tail\":true}}}", topic);
    ask(setup, "POST", "/v0/watch", body, answer, sizeof answer);
    char *at = strstr(answer, "\"wid\":\""), *head = strstr(answer, "\"head_seq\":");
    if (!at || !head || sscanf(at + 7, "%63[^\"]", wid) != 1) die("watch");
    s->topic = topic;
    s->next = strtoull(head + 11, NULL, 10) + 1;
    s->fd = dial();
    int n = snprintf(answer, sizeof answer,
                     "GET /v0/watch/%s HTTP/1.1\r\nHost: localhost\r\n"
                     "Accept: text/event-stream\r\n%s%s%s\r\n",
                     wid, *key ? "Authorization: Bearer " : "", key, *key ? "\r\n" : "");
    put(s->fd, answer, (size_t)n);
    fcntl(s->fd, F_SETFL, O_NONBLOCK);
}

static void take_line(struct stream *s, const char *line, size_t length, uint64_t at_ns) {
    if (length < 20 || memcmp(line, "data: {", 7) || !memmem(line, length, "\"records\":[", 11))
        return;
    const char *p = line, *end = line + length;
    frames++;
    while ((p = memmem(p, (size_t)(end - p), "{\"$seq\":", 8))) {
        uint64_t seq = strtoull(p + 8, (char **)&p, 10);
        p = memmem(p, (size_t)(end - p), "\"data\":[", 8);
        if (!p) break;
        uint64_t sent_ns = strtoull(p + 8, (char **)&p, 10);
        records++;
        if (seq > s->next) missing += seq - s->next;
        if (seq < s->next) repeated++; else s->next = seq + 1;
        if (count < room) latencies_us[count++] = (uint32_t)((at_ns - sent_ns) / 1000);
    }
}

static void take(struct stream *s, const char *data, size_t size, uint64_t at_ns) {
    const char *end = data + size, *newline;
    while (data < end && (newline = memchr(data, '\n', (size_t)(end - data)))) {
        size_t part = (size_t)(newline - data);
        if (s->length) {
            if (s->length + part > s->room) s->line = realloc(s->line, s->room = s->length + part);
            memcpy(s->line + s->length, data, part);
            take_line(s, s->line, s->length + part, at_ns);
            s->length = 0;
        } else {
            take_line(s, data, part, at_ns);
        }
        data = newline + 1;
    }
    size_t rest = (size_t)(end - data);
    if (rest) {
        if (s->length + rest > s->room) s->line = realloc(s->line, s->room = s->length + rest + 512);
        memcpy(s->line + s->length, data, rest);
        s->length += rest;
    }
}

static void write_record(int fd, int topics, uint64_t number, uint64_t due_ns, const char *pad) {
    static char request[128 * 1024];
    static char body[120 * 1024];
    int n = snprintf(body, sizeof body, "{\"records\":[{\"data\":[%llu,\"%s\"]}]}",
                     (unsigned long long)due_ns, pad);
    n = snprintf(request, sizeof request,
                 "POST /v0/topics/bench-%d HTTP/1.1\r\nHost: localhost\r\n"
                 "Content-Type: application/json\r\n%s%s%sContent-Length: %d\r\n\r\n%s",
                 (int)(number % (uint64_t)topics), *key ? "Authorization: Bearer " : "", key,
                 *key ? "\r\n" : "", n, body);
    put(fd, request, (size_t)n);
}

static int compare(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static double at(const uint32_t *sorted_us, size_t n, double share) {
    return n ? sorted_us[(size_t)((double)(n - 1) * share)] / 1000.0 : 0.0;
}

int main(int argc, char **argv) {
    if (argc < 5) {
        fprintf(stderr, "usage: sse_reader PORT WATCHERS WRITES_PER_S SECONDS"
                        " [TOPICS [PAD_BYTES [KEY]]]\n");
        return 2;
    }
    port = atoi(argv[1]);
    int watchers = atoi(argv[2]), rate = atoi(argv[3]), seconds = atoi(argv[4]);
    int topics = argc > 5 ? atoi(argv[5]) : 1, padding = argc > 6 ? atoi(argv[6]) : 100;
    key = argc > 7 ? argv[7] : "";
    struct rlimit files = {65536, 65536};
    setrlimit(RLIMIT_NOFILE, &files);
    char *pad = calloc(1, (size_t)padding + 1), *buffer = malloc(READ_BYTES), answer[8192];
    memset(pad, 'x', (size_t)padding);
    struct stream *streams = calloc((size_t)watchers, sizeof *streams);
    room = (size_t)watchers * (size_t)rate * (size_t)seconds / (size_t)topics + 1024;
    latencies_us = malloc(room * sizeof *latencies_us);
    acks_us = malloc((size_t)rate * (size_t)seconds * sizeof *acks_us);

    int writer = dial(), poll = epoll_create1(0);
    for (int t = 0; t < topics; t++) {
        char path[64];
        snprintf(path, sizeof path, "/v0/topics/bench-%d", t);
        ask(writer, "PUT", path, "{}", answer, sizeof answer);
    }
    for (int i = 0; i < watchers; i++) {
        open_stream(&streams[i], i % topics, writer);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &streams[i]};
        epoll_ctl(poll, EPOLL_CTL_ADD, streams[i].fd, &event);
    }
    fcntl(writer, F_SETFL, O_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    epoll_ctl(poll, EPOLL_CTL_ADD, writer, &event);

    uint64_t step_ns = 1000000000u / (uint64_t)rate, begin_ns = now_ns() + 500000000u;
    uint64_t total = (uint64_t)rate * (uint64_t)seconds, sent = 0, acked = 0;
    uint64_t expected = 0, stop_ns = begin_ns + step_ns * total + 5000000000u;
    for (int i = 0; i < watchers; i++) {
        uint64_t t = (uint64_t)streams[i].topic;
        expected += total / (uint64_t)topics + (t < total % (uint64_t)topics);
    }
    struct epoll_event ready[EVENTS];
    while (records - repeated + missing < expected) {
        uint64_t now = now_ns();
        if (now > stop_ns) break;
        while (sent < total && begin_ns + sent * step_ns <= now) {
            write_record(writer, topics, sent, begin_ns + sent * step_ns, pad);
            sent++;
        }
        uint64_t due = sent < total ? begin_ns + sent * step_ns : now + 10000000u;
        struct timespec wait = {0, due > now ? (long)((due - now) % 1000000000u) : 0};
        int n = epoll_pwait2(poll, ready, EVENTS, &wait, NULL);
        for (int i = 0; i < n; i++) {
            struct stream *s = ready[i].data.ptr;
            ssize_t got = read(s ? s->fd : writer, buffer, READ_BYTES);
            if (got < 0 && errno == EAGAIN) continue;
            if (got <= 0) die("a connection ended");
            if (s) take(s, buffer, (size_t)got, now_ns());
            else for (char *p = buffer; (p = memmem(p, (size_t)(buffer + got - p), "HTTP/1.1 20", 11)); p++) {
                acks_us[acked] = (uint32_t)((now_ns() - begin_ns - acked * step_ns) / 1000);
                acked++;
            }
        }
    }
    double took_s = (double)(now_ns() - begin_ns) / 1e9;
    qsort(latencies_us, count, sizeof *latencies_us, compare);
    qsort(acks_us, acked, sizeof *acks_us, compare);
    printf("{\"watchers\":%d,\"topics\":%d,\"writes\":%llu,\"acked\":%llu,\"expected\":%llu,"
           "\"records\":%llu,\"missing\":%llu,\"repeated\":%llu,\"frames\":%llu,"
           "\"frames_per_s\":%.0f,\"records_per_s\":%.0f,\"p50_ms\":%.2f,\"p90_ms\":%.2f,"
           "\"p99_ms\":%.2f,\"p999_ms\":%.2f,\"max_ms\":%.2f,\"ack_p99_ms\":%.2f}\n",
           watchers, topics, (unsigned long long)sent, (unsigned long long)acked,
           (unsigned long long)expected, (unsigned long long)records,
           (unsigned long long)(missing + (expected > records - repeated + missing
                                               ? expected - (records - repeated + missing) : 0)),
           (unsigned long long)repeated, (unsigned long long)frames, (double)frames / took_s,
           (double)records / took_s, at(latencies_us, count, 0.5),
           at(latencies_us, count, 0.9), at(latencies_us, count, 0.99),
           at(latencies_us, count, 0.999), at(latencies_us, count, 1.0),
           at(acks_us, acked, 0.99));
    return missing || repeated;
}
