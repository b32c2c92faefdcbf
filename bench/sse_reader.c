/* Measures write -> server-sent event latency, with readers that cost next to nothing.
 *
 *   cc -O2 -o sse_reader bench/sse_reader.c
 *   ./sse_reader PORT WATCHERS WRITES_PER_S SECONDS [TOPICS [PAD_BYTES [CLASSES]]]
 *
 * Opens WATCHERS streams over TOPICS topics (round robin), writes one record at a time at a steady
 * rate on a few more connections, each topic on one of them, and stamps each with the time it was
 * due to be sent: a server that makes the writer wait does not make its own figures better. Every
 * reader must see every record of its topic once and in order; what is missing or repeated is
 * counted. Writes may be refused with 429, and then must say when to come back.
 *
 * With CLASSES = 2 every tenth topic has a high priority and the others a low one; they are written
 * on connections of their own, and latencies are told apart.
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

struct writer {
    int fd;
    char *out;         /* what the server has not taken yet */
    size_t out_length, out_room;
    char in[16384];    /* an answer that has not ended yet */
    size_t in_length;
    struct { uint64_t due_ns; int topic; } *asked;
    size_t asked_first, asked_next;
};

struct sample {
    uint32_t *us;
    size_t count, room;
};

static int port, classes = 1;
static struct sample latencies[2], acks;
static uint64_t frames, records, missing, repeated, refused, unexplained, *acked;

static int class_of(int topic) {
    return classes > 1 && topic % 10 != 0;
}

static void die(const char *what) {
    fprintf(stderr, "sse_reader: %s: %s\n", what, errno ? strerror(errno) : "unexpected answer");
    exit(1);
}

static void sample(struct sample *into, uint64_t ns) {
    if (into->count == into->room) {
        into->room = into->room ? into->room * 2 : 65536;
        into->us = realloc(into->us, into->room * sizeof *into->us);
    }
    into->us[into->count++] = (uint32_t)(ns / 1000);
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
                     "Content-Length: %zu\r\n\r\n",
                     method, path, strlen(body));
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
                     "Accept: text/event-stream\r\n\r\n",
                     wid);
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
        sample(&latencies[class_of(s->topic)], at_ns - sent_ns);
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

/* Sends what it can of what waits; the rest stays for the next time. */
static void send_on(struct writer *w) {
    size_t done = 0;
    while (done < w->out_length) {
        ssize_t n = write(w->fd, w->out + done, w->out_length - done);
        if (n < 0 && errno == EAGAIN) break;
        if (n <= 0) die("write");
        done += (size_t)n;
    }
    memmove(w->out, w->out + done, w->out_length - done);
    w->out_length -= done;
}

static void write_record(struct writer *w, int topic, uint64_t due_ns, const char *pad) {
    char body[4096];
    int n = snprintf(body, sizeof body, "{\"records\":[{\"data\":[%llu,\"%s\"]}]}",
                     (unsigned long long)due_ns, pad);
    if (w->out_length + 8192 > w->out_room) w->out = realloc(w->out, w->out_room = w->out_room * 2 + 65536);
    w->out_length += (size_t)snprintf(
        w->out + w->out_length, 8192,
        "POST /v0/topics/bench-%d HTTP/1.1\r\nHost: localhost\r\n"
        "Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
        topic, n, body);
    w->asked[w->asked_next].due_ns = due_ns;
    w->asked[w->asked_next++].topic = topic;
    send_on(w);
}

/* Answers come in the order of the requests. */
static void take_answers(struct writer *w, uint64_t at_ns) {
    for (;;) {
        w->in[w->in_length] = 0;
        char *end = strstr(w->in, "\r\n\r\n"), *length = strcasestr(w->in, "content-length: ");
        if (!end || !length) return;
        size_t size = (size_t)(end + 4 - w->in) + strtoul(length + 16, NULL, 10);
        if (w->in_length < size) return;
        int status = atoi(w->in + 9), topic = w->asked[w->asked_first].topic;
        if (status / 100 == 2) {
            acked[topic]++;
            sample(&acks, at_ns - w->asked[w->asked_first].due_ns);
        } else if (status == 429) {
            char *retry = strcasestr(w->in, "retry-after: ");
            refused++;
            unexplained += !retry || retry > end;
        } else {
            fprintf(stderr, "%s\n", w->in);
            errno = 0;
            die("a write failed");
        }
        w->asked_first++;
        memmove(w->in, w->in + size, w->in_length - size);
        w->in_length -= size;
    }
}

static int compare(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static double at(const struct sample *s, double share) {
    return s->count ? s->us[(size_t)((double)(s->count - 1) * share)] / 1000.0 : 0.0;
}

static uint64_t expected_by(const struct stream *streams, int watchers) {
    uint64_t expected = 0;
    for (int i = 0; i < watchers; i++) expected += acked[streams[i].topic];
    return expected;
}

int main(int argc, char **argv) {
    if (argc < 5) {
        fprintf(stderr, "usage: sse_reader PORT WATCHERS WRITES_PER_S SECONDS"
                        " [TOPICS [PAD_BYTES [CLASSES]]]\n");
        return 2;
    }
    port = atoi(argv[1]);
    int watchers = atoi(argv[2]), rate = atoi(argv[3]), seconds = atoi(argv[4]);
    int topics = argc > 5 ? atoi(argv[5]) : 1, padding = argc > 6 ? atoi(argv[6]) : 100;
    classes = argc > 7 ? atoi(argv[7]) : 1;
    int each = topics < 16 ? topics : 16, writers = classes * each;
    uint64_t total = (uint64_t)rate * (uint64_t)seconds;
    struct rlimit files = {65536, 65536};
    setrlimit(RLIMIT_NOFILE, &files);
    char *pad = calloc(1, (size_t)padding + 1), *buffer = malloc(READ_BYTES), answer[8192];
    memset(pad, 'x', (size_t)padding);
    struct stream *streams = calloc((size_t)watchers, sizeof *streams);
    struct writer *writer = calloc((size_t)writers, sizeof *writer);
    acked = calloc((size_t)topics, sizeof *acked);

    int setup = dial(), poll = epoll_create1(0);
    for (int t = 0; t < topics; t++) {
        char path[64];
        const char *config = classes == 1 ? "{}" : class_of(t) ? "{\"priority\":-500}" : "{\"priority\":500}";
        snprintf(path, sizeof path, "/v0/topics/bench-%d", t);
        ask(setup, "PUT", path, config, answer, sizeof answer);
    }
    for (int i = 0; i < watchers; i++) {
        open_stream(&streams[i], i % topics, setup);
        struct epoll_event event = {.events = EPOLLIN, .data.u64 = (uint64_t)i};
        epoll_ctl(poll, EPOLL_CTL_ADD, streams[i].fd, &event);
    }
    for (int i = 0; i < writers; i++) {
        writer[i].fd = dial();
        writer[i].asked = malloc((total + 1) * sizeof *writer[i].asked);
        fcntl(writer[i].fd, F_SETFL, O_NONBLOCK);
        struct epoll_event event = {.events = EPOLLIN, .data.u64 = (uint64_t)(watchers + i)};
        epoll_ctl(poll, EPOLL_CTL_ADD, writer[i].fd, &event);
    }

    uint64_t step_ns = 1000000000u / (uint64_t)rate, begin_ns = now_ns() + 500000000u;
    uint64_t sent = 0, stop_ns = begin_ns + step_ns * total + 20000000000u;
    struct epoll_event ready[EVENTS];
    for (;;) {
        uint64_t now = now_ns();
        if (sent == total && acks.count + refused == total &&
            records - repeated + missing >= expected_by(streams, watchers)) break;
        if (now > stop_ns) break;
        while (sent < total && begin_ns + sent * step_ns <= now) {
            int topic = (int)(sent % (uint64_t)topics);
            write_record(&writer[class_of(topic) * each + topic % each], topic, begin_ns + sent * step_ns, pad);
            sent++;
        }
        for (int i = 0; i < writers; i++) if (writer[i].out_length) send_on(&writer[i]);
        uint64_t due = sent < total ? begin_ns + sent * step_ns : now + 10000000u;
        struct timespec wait = {0, due > now ? (long)((due - now) % 1000000000u) : 0};
        int n = epoll_pwait2(poll, ready, EVENTS, &wait, NULL);
        for (int i = 0; i < n; i++) {
            struct stream *s = ready[i].data.u64 < (uint64_t)watchers ? &streams[ready[i].data.u64] : NULL;
            struct writer *w = s ? NULL : &writer[ready[i].data.u64 - (uint64_t)watchers];
            ssize_t got = s ? read(s->fd, buffer, READ_BYTES)
                            : read(w->fd, w->in + w->in_length, sizeof w->in - 1 - w->in_length);
            if (got < 0 && errno == EAGAIN) continue;
            if (got <= 0) die("a connection ended");
            if (s) take(s, buffer, (size_t)got, now_ns());
            else w->in_length += (size_t)got, take_answers(w, now_ns());
        }
    }
    double took_s = (double)(now_ns() - begin_ns) / 1e9;
    uint64_t expected = expected_by(streams, watchers), seen = records - repeated + missing;
    missing += expected > seen ? expected - seen : 0;
    qsort(acks.us, acks.count, sizeof *acks.us, compare);
    printf("{\"watchers\":%d,\"topics\":%d,\"writes\":%llu,\"acked\":%zu,\"refused\":%llu,"
           "\"unexplained\":%llu,\"expected\":%llu,\"records\":%llu,\"missing\":%llu,"
           "\"repeated\":%llu,\"frames_per_s\":%.0f,\"records_per_s\":%.0f,\"took_s\":%.2f,"
           "\"ack_p99_ms\":%.2f,\"classes\":[",
           watchers, topics, (unsigned long long)sent, acks.count, (unsigned long long)refused,
           (unsigned long long)unexplained, (unsigned long long)expected,
           (unsigned long long)records, (unsigned long long)missing, (unsigned long long)repeated,
           (double)frames / took_s, (double)records / took_s, took_s, at(&acks, 0.99));
    for (int c = 0; c < classes; c++) {
        struct sample *l = &latencies[c];
        qsort(l->us, l->count, sizeof *l->us, compare);
        printf("%s{\"p50_ms\":%.2f,\"p99_ms\":%.2f,\"max_ms\":%.2f}", c ? "," : "",
               at(l, 0.5), at(l, 0.99), at(l, 1.0));
    }
    printf("]}\n");
    return missing || repeated || unexplained;
}
