/* Workers that claim jobs and acknowledge them as fast as they are answered.
 *
 *   cc -O2 -o queue_worker bench/queue_worker.c -lm
 *   ./queue_worker http|redis PORT QUEUE WORKERS CLAIM JOBS
 *
 * Opens WORKERS connections, each of them one worker that claims CLAIM jobs, acknowledges what it
 * got in one call, and begins again until JOBS jobs are acknowledged in all. `http` speaks to
 * topics, `redis` to a Redis stream with the consumer group "workers" (XREADGROUP, XACK): the same
 * program and the same loop, so that the client costs both the same.
 *
 * Prints one JSON object: the rate, the latency of claims that returned jobs, how evenly the jobs
 * were spread (coefficient of variation over the workers) and how many were handed out twice.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define EVENTS 256
#define ROOM (1024 * 1024)
#define ID_BYTES 48
#define CLAIM_MAX 1000
#define GIVE_UP_NS 120000000000ull

struct worker {
    int fd, number, is_acking, held;
    uint64_t asked_ns, jobs;
    size_t length;
    char (*ids)[ID_BYTES]; /* of the jobs it holds, as they are acknowledged */
    char in[ROOM];
};

static int is_redis, claim;
static const char *queue;
static uint64_t wanted, acked, skipped, empty;
static uint32_t *latencies_us;
static size_t count, room;

static void die(const char *what, const char *detail) {
    fprintf(stderr, "queue_worker: %s: %s\n", what, detail);
    exit(1);
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void put(struct worker *w, const char *data, size_t size) {
    while (size) {
        ssize_t n = write(w->fd, data, size);
        if (n < 0 && errno == EAGAIN) continue;
        if (n <= 0) die("write", strerror(errno));
        data += n;
        size -= (size_t)n;
    }
}

static void post(struct worker *w, const char *call, const char *body, int length) {
    static char request[ROOM];
    int n = snprintf(request, sizeof request,
                     "POST /v0/topics/%s/%s HTTP/1.1\r\nHost: localhost\r\n"
                     "Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%.*s",
                     queue, call, length, length, body);
    put(w, request, (size_t)n);
}

static void ask_claim(struct worker *w) {
    char body[512];
    int n;
    w->is_acking = 0;
    w->asked_ns = now_ns();
    if (!is_redis) {
        n = snprintf(body, sizeof body, "{\"node\":\"w%d\",\"max\":%d}", w->number, claim);
        post(w, "claim", body, n);
        return;
    }
    char name[32], most[32];
    int name_length = snprintf(name, sizeof name, "w%d", w->number);
    int most_length = snprintf(most, sizeof most, "%d", claim);
    n = snprintf(body, sizeof body,
                 "*9\r\n$10\r\nXREADGROUP\r\n$5\r\nGROUP\r\n$7\r\nworkers\r\n$%d\r\n%s\r\n"
                 "$5\r\nCOUNT\r\n$%d\r\n%s\r\n$7\r\nSTREAMS\r\n$%zu\r\n%s\r\n$1\r\n>\r\n",
                 name_length, name, most_length, most, strlen(queue), queue);
    put(w, body, (size_t)n);
}

static void ask_ack(struct worker *w) {
    static char body[ROOM];
    int n;
    w->is_acking = 1;
    if (is_redis) {
        n = sprintf(body, "*%d\r\n$4\r\nXACK\r\n$%zu\r\n%s\r\n$7\r\nworkers\r\n", 3 + w->held,
                    strlen(queue), queue);
        for (int i = 0; i < w->held; i++)
            n += sprintf(body + n, "$%zu\r\n%s\r\n", strlen(w->ids[i]), w->ids[i]);
        put(w, body, (size_t)n);
        return;
    }
    n = sprintf(body, "{\"node\":\"w%d\",\"seqs\":[", w->number);
    for (int i = 0; i < w->held; i++)
        n += sprintf(body + n, "%s%s", i ? "," : "", w->ids[i]);
    n += sprintf(body + n, "]}");
    post(w, "ack", body, n);
}

/* -- answers: each returns the bytes of a whole answer, 0 while there is more to come ------------ */

static size_t whole_http(struct worker *w, char **content) {
    char *end = memmem(w->in, w->length, "\r\n\r\n", 4);
    if (!end) return 0;
    char *length = memmem(w->in, (size_t)(end - w->in), "Content-Length: ", 16);
    if (!length) die("answer", "no Content-Length");
    size_t size = (size_t)(end + 4 - w->in) + strtoul(length + 16, NULL, 10);
    if (w->length < size) return 0;
    if (strncmp(w->in, "HTTP/1.1 200", 12)) die("answer", w->in);
    *content = end + 4;
    return size;
}

/* One RESP value from `at`; NULL while it is not complete. Ids of entries are noted by depth. */
static char *resp(struct worker *w, char *at, char *end, int depth, int index) {
    char *line = memchr(at, '\n', (size_t)(end - at));
    if (!line) return NULL;
    long number = strtol(at + 1, NULL, 10);
    char kind = *at;
    at = line + 1;
    if (kind == '-') die("answer", w->in);
    if (kind == '$') {
        if (number < 0) return at;
        if (end - at < number + 2) return NULL;
        /* answer[stream][1][entry][0] */
        if (depth == 4 && index == 0 && !w->is_acking && w->held < CLAIM_MAX)
            snprintf(w->ids[w->held++], ID_BYTES, "%.*s", (int)number, at);
        return at + number + 2;
    }
    if (kind == '*')
        for (long i = 0; i < number; i++) {
            at = resp(w, at, end, depth + 1, (int)i);
            if (!at) return NULL;
        }
    return at;
}

static size_t whole_redis(struct worker *w) {
    if (!w->is_acking) w->held = 0;
    char *after = w->length ? resp(w, w->in, w->in + w->length, 0, 0) : NULL;
    return after ? (size_t)(after - w->in) : 0;
}

static void note_seqs(struct worker *w, char *at, char *end) {
    w->held = 0;
    while ((at = memmem(at, (size_t)(end - at), "\"$seq\":", 7))) {
        at += 7;
        int n = 0;
        while (at < end && *at >= '0' && *at <= '9' && n < ID_BYTES - 1 && w->held < CLAIM_MAX)
            w->ids[w->held][n++] = *at++;
        w->ids[w->held++][n] = 0;
    }
}

static void answered(struct worker *w, size_t size, char *content) {
    if (w->is_acking) {
        const char *number = is_redis ? w->in + 1 : strstr(content, "\"acked\":") + 8;
        uint64_t done = strtoull(number, NULL, 10);
        acked += done;
        skipped += (uint64_t)w->held - done;
    } else {
        if (!is_redis) note_seqs(w, content, w->in + size);
        w->jobs += (uint64_t)w->held;
        if (w->held && count < room)
            latencies_us[count++] = (uint32_t)((now_ns() - w->asked_ns) / 1000);
        empty += !w->held;
    }
    memmove(w->in, w->in + size, w->length - size);
    w->length -= size;
    if (!w->is_acking && w->held) ask_ack(w);
    else if (acked + skipped < wanted) ask_claim(w);
}

static void readable(struct worker *w) {
    ssize_t n = read(w->fd, w->in + w->length, ROOM - 1 - w->length);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) die("read", n ? strerror(errno) : "the connection ended");
    w->length += (size_t)n;
    w->in[w->length] = 0;
    char *content = NULL;
    size_t size = is_redis ? whole_redis(w) : whole_http(w, &content);
    if (size) answered(w, size, content);
    else if (w->length == ROOM - 1) die("answer", "too long");
}

static int compare(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static double at(double share) {
    return count ? latencies_us[(size_t)((double)(count - 1) * share)] / 1000.0 : 0.0;
}

static double variation(struct worker *workers, int n) {
    double mean = 0, sum = 0;
    for (int i = 0; i < n; i++) mean += (double)workers[i].jobs / n;
    for (int i = 0; i < n; i++) sum += pow((double)workers[i].jobs - mean, 2) / n;
    return mean > 0 ? sqrt(sum) / mean : 0;
}

int main(int argc, char **argv) {
    if (argc != 7) die("usage", "queue_worker http|redis PORT QUEUE WORKERS CLAIM JOBS");
    is_redis = !strcmp(argv[1], "redis");
    queue = argv[3];
    claim = atoi(argv[5]);
    int number = atoi(argv[4]), poll = epoll_create1(0), one = 1;
    wanted = strtoull(argv[6], NULL, 10);
    if (claim < 1 || claim > CLAIM_MAX) die("CLAIM", "1 to 1000");
    room = wanted + 1024;
    latencies_us = malloc(room * sizeof *latencies_us);
    struct worker *workers = calloc((size_t)number, sizeof *workers);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[2]))};
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    for (int i = 0; i < number; i++) {
        struct worker *w = &workers[i];
        w->number = i;
        w->ids = calloc(CLAIM_MAX, ID_BYTES);
        w->fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(w->fd, (struct sockaddr *)&to, sizeof to)) die("connect", strerror(errno));
        setsockopt(w->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        fcntl(w->fd, F_SETFL, O_NONBLOCK);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = w};
        epoll_ctl(poll, EPOLL_CTL_ADD, w->fd, &event);
    }
    uint64_t begin_ns = now_ns();
    for (int i = 0; i < number; i++) ask_claim(&workers[i]);
    struct epoll_event ready[EVENTS];
    while (acked + skipped < wanted) {
        if (now_ns() - begin_ns > GIVE_UP_NS) die("time", "not all jobs were acknowledged");
        int n = epoll_wait(poll, ready, EVENTS, 1000);
        for (int i = 0; i < n; i++) readable(ready[i].data.ptr);
    }
    double took_s = (double)(now_ns() - begin_ns) / 1e9;
    qsort(latencies_us, count, sizeof *latencies_us, compare);
    printf("{\"jobs\":%llu,\"skipped\":%llu,\"empty\":%llu,\"seconds\":%.4f,\"jobs_per_s\":%.0f,"
           "\"claims\":%zu,\"p50_ms\":%.3f,\"p99_ms\":%.3f,\"variation\":%.4f}\n",
           (unsigned long long)acked, (unsigned long long)skipped, (unsigned long long)empty,
           took_s, (double)acked / took_s, count, at(0.5), at(0.99), variation(workers, number));
    return skipped != 0;
}
