/* Reads and writes the bytes of a connection of the null broker: those of its socket, or with WITH_TLS those inside TLS.
 *
 * A program that is compiled with WITH_TLS uses TLS 1.3 with AES-256-GCM for all connections. It needs libssl.
 */
#ifndef CYPRODUCER_BENCH_NULL_STREAM_H
#define CYPRODUCER_BENCH_NULL_STREAM_H

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#ifdef WITH_TLS
#include <openssl/err.h>
#include <openssl/ssl.h>

enum { READ_AHEAD = 128 << 10 };

static SSL_CTX *tls_context;

/* `drained`: the last read has taken all that has arrived. `complete`: the handshake is over. */
struct stream {
    int fd, drained, complete;
    SSL *tls;
};

/* `keystore`: a file in PEM with the private key and the certificate of the broker. */
static void stream_prepare(const char *keystore)
{
    signal(SIGPIPE, SIG_IGN); /* SSL_write() cannot tell the kernel MSG_NOSIGNAL */
    tls_context = SSL_CTX_new(TLS_server_method());
    if (!keystore || !tls_context || !SSL_CTX_set_min_proto_version(tls_context, TLS1_3_VERSION) ||
        !SSL_CTX_set_ciphersuites(tls_context, "TLS_AES_256_GCM_SHA384") ||
        SSL_CTX_use_PrivateKey_file(tls_context, keystore, SSL_FILETYPE_PEM) != 1 ||
        SSL_CTX_use_certificate_chain_file(tls_context, keystore) != 1) {
        fprintf(stderr, "null broker: the keystore cannot be used: %s\n", keystore ? keystore : "it is not given");
        ERR_print_errors_fp(stderr);
        exit(1);
    }
    /* Several TLS records with each read(). Without it, each record takes two. */
    SSL_CTX_set_read_ahead(tls_context, 1);
    SSL_CTX_set_default_read_buffer_len(tls_context, READ_AHEAD);
    SSL_CTX_set_mode(tls_context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
}

/* False: there is no memory. */
static int stream_open(struct stream *s, int fd)
{
    s->fd = fd;
    s->tls = SSL_new(tls_context);
    if (!s->tls || !SSL_set_fd(s->tls, fd) || fcntl(fd, F_SETFL, O_NONBLOCK))
        return 0;
    SSL_set_accept_state(s->tls);
    return 1;
}

static void stream_close(struct stream *s)
{
    SSL_free(s->tls);
    close(s->fd);
}

/* As recv(). It reads several TLS records, as far as there is room for them. */
static ssize_t stream_read(struct stream *s, uint8_t *into, size_t size)
{
    size_t done = 0, part;
    s->drained = 0;
    while (done < size) {
        ERR_clear_error();
        if (SSL_read_ex(s->tls, into + done, size - done, &part) == 1) {
            done += part;
            continue;
        }
        s->drained = SSL_get_error(s->tls, 0) == SSL_ERROR_WANT_READ;
        if (done)
            break;
        errno = EAGAIN;
        return s->drained ? -1 : 0;
    }
    return (ssize_t)done;
}

/* Whether bytes are waiting that epoll does not know of. */
static int stream_holds_more(const struct stream *s) { return !s->drained && SSL_has_pending(s->tls); }

/* True once, after the handshake. */
static int stream_is_new(struct stream *s)
{
    int is_new = !s->complete && SSL_is_init_finished(s->tls);
    s->complete |= is_new;
    return is_new;
}

static ssize_t stream_write(struct stream *s, const uint8_t *data, size_t size)
{
    size_t part;
    ERR_clear_error();
    if (SSL_write_ex(s->tls, data, size, &part) == 1)
        return (ssize_t)part;
    errno = SSL_get_error(s->tls, 0) == SSL_ERROR_WANT_WRITE ? EAGAIN : EPIPE;
    return -1;
}

#else

struct stream {
    int fd;
};

static void stream_prepare(const char *keystore) { (void)keystore; }

static int stream_open(struct stream *s, int fd)
{
    s->fd = fd;
    return 1;
}

static void stream_close(struct stream *s) { close(s->fd); }

static ssize_t stream_read(struct stream *s, uint8_t *into, size_t size) { return recv(s->fd, into, size, MSG_DONTWAIT); }

static int stream_holds_more(const struct stream *s)
{
    (void)s;
    return 0;
}

static int stream_is_new(struct stream *s)
{
    (void)s;
    return 0;
}

static ssize_t stream_write(struct stream *s, const uint8_t *data, size_t size)
{
    return send(s->fd, data, size, MSG_NOSIGNAL);
}

#endif

/* False: the client has closed the connection. */
static int stream_write_all(struct stream *s, const uint8_t *data, size_t size)
{
    for (size_t done = 0; done < size;) {
        ssize_t sent = stream_write(s, data + done, size - done);
        if (sent >= 0) {
            done += (size_t)sent;
        } else if (errno == EAGAIN) {
            struct pollfd writable = {.fd = s->fd, .events = POLLOUT};
            poll(&writable, 1, 1000);
        } else if (errno != EINTR) {
            return 0;
        }
    }
    return 1;
}

#endif
