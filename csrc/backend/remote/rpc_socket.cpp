// The sockets below ggml's RPC code, in place of its own transport.cpp. They have deadlines, and a connection that is
// lost does not end the process.
#include "backend/remote/rpc_socket.h"

#include "backend/device/ggml_internals.h"
#include "backend/remote/rpc.h"
#include "core/error.h"
#include "ggml-rpc/transport.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace spac {
namespace {

std::atomic<double> timeout_s{60};

// The servers that are known, by address.
struct Losses {
    std::mutex                         mutex;
    std::map<std::string, std::string> reasons;
};

Losses & losses() {
    static auto * known = new Losses;
    return *known;
}

void set_option(int fd, int level, int option, int value) { setsockopt(fd, level, option, &value, sizeof(value)); }

// Makes the system notice a peer whose machine or network is gone, also while nothing is sent.
void watch_peer(int fd) {
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 30);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 10);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 6);
}

void set_deadline(int fd, int option, double seconds) {
    timeval time{};
    time.tv_sec  = static_cast<time_t>(seconds);
    time.tv_usec = static_cast<suseconds_t>((seconds - std::floor(seconds)) * 1e6);
    setsockopt(fd, SOL_SOCKET, option, &time, sizeof(time));
}

std::string seconds_of(double seconds) {
    std::ostringstream text;
    text << seconds << " s";
    return text.str();
}

// Connects to one of a host's addresses. Returns 0, or the error's number.
int connect_to(int fd, const addrinfo & to, double seconds) {
    const timeval none{};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &none, sizeof(none));
    set_deadline(fd, SO_SNDTIMEO, seconds); // Linux applies it to connect() too
    if (::connect(fd, to.ai_addr, to.ai_addrlen) == 0) {
        return 0;
    }
    if (errno != EINTR) {
        return errno == EINPROGRESS ? ETIMEDOUT : errno;
    }
    pollfd    wait{fd, POLLOUT, 0}; // a signal came; the system still connects
    int       error = ETIMEDOUT;
    auto      size  = static_cast<socklen_t>(sizeof(error));
    const int left  = seconds > 0 ? static_cast<int>(seconds * 1000) : -1;
    return poll(&wait, 1, left) == 1 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : ETIMEDOUT;
}

} // namespace

double rpc_timeout() { return timeout_s; }

void set_rpc_timeout(double seconds) { timeout_s = seconds; }

std::string loss_of(const std::string & address) {
    const std::lock_guard lock(losses().mutex);
    const auto            found = losses().reasons.find(address);
    return found == losses().reasons.end() ? "" : found->second;
}

void forget_loss(const std::string & address) {
    const std::lock_guard lock(losses().mutex);
    losses().reasons.erase(address);
}

} // namespace spac

// A connected socket. A client's follows the messages, so that it knows which answer is expected.
struct socket_t::impl {
    explicit impl(int connected) : fd(connected) {}
    ~impl() { close(fd); }

    bool send_all(const void * data, size_t size) const;
    bool receive_all(void * data, size_t size) const;
    void client_send(const void * data, size_t size);
    void client_receive(void * data, size_t size);
    void lose(const std::string & why);
    void check_version(const void * answer) const;

    // The part of a message that comes next. ggml's client makes one call for each.
    enum class Next { command, length, request, answer_length, answer };

    int         fd;
    std::string address; // of a client's server; empty in a server
    double      timeout   = 0;
    bool        is_lost   = false;
    Next        next      = Next::command;
    uint8_t     command   = 0;
    size_t      n_answers = 0; // bytes of the expected answer
};

// Returns false with errno if the peer did not take all; 0 stands for a closed connection.
bool socket_t::impl::send_all(const void * data, size_t size) const {
    const auto * from = static_cast<const char *>(data);
    while (size > 0) {
        const ssize_t n = ::send(fd, from, std::min(size, MAX_CHUNK_SIZE), MSG_NOSIGNAL);
        if (n < 0 && errno != EINTR) {
            return false;
        }
        from += std::max<ssize_t>(n, 0);
        size -= static_cast<size_t>(std::max<ssize_t>(n, 0));
    }
    return true;
}

bool socket_t::impl::receive_all(void * data, size_t size) const {
    auto * to = static_cast<char *>(data);
    while (size > 0) {
        const ssize_t n = ::recv(fd, to, std::min(size, MAX_CHUNK_SIZE), 0);
        if (n == 0) {
            errno = 0;
            return false;
        }
        if (n < 0 && errno != EINTR) {
            return false;
        }
        to += std::max<ssize_t>(n, 0);
        size -= static_cast<size_t>(std::max<ssize_t>(n, 0));
    }
    return true;
}

// Notes that the connection is lost. `why` is empty if errno tells. The greeting is on the thread that opens the
// server, so it throws; a later loss is on the client's own thread, which an exception would end.
void socket_t::impl::lose(const std::string & why) {
    const int   error    = errno;
    const bool  greeting = spac::is_greeting(command);
    std::string reason   = "the RPC server " + address + " ";
    if (!why.empty()) {
        reason += why;
    } else if (error == EAGAIN || error == EWOULDBLOCK || error == ETIMEDOUT) {
        reason += "did not answer for " + spac::seconds_of(timeout) + ": it hangs or cannot be reached any more, or " +
                  "needs longer (SPAC_RPC_TIMEOUT)";
    } else if (greeting) {
        reason += "closed the connection at once: it serves another client, has another version, or is no RPC server";
    } else {
        reason += "closed the connection: it has ended, or its network is down";
    }
    if (greeting) {
        throw spac::InputError(reason);
    }
    reason += "; start it again if need be, and load the model anew";
    is_lost = true;
    ::shutdown(fd, SHUT_RDWR);
    {
        const std::lock_guard lock(spac::losses().mutex);
        spac::losses().reasons.emplace(address, reason);
    }
    GGML_LOG_ERROR("spac: %s\n", reason.c_str());
}

void socket_t::impl::check_version(const void * answer) const {
    const auto theirs = spac::version_in(answer);
    const auto ours   = spac::rpc_version();
    if (theirs.major != ours.major || theirs.minor > ours.minor) {
        throw spac::InputError("the RPC server " + address + " speaks version " + theirs.text() +
                               " of the protocol, and this spac speaks " + ours.text() +
                               ": run the same version of spac on both machines");
    }
}

void socket_t::impl::client_send(const void * data, size_t size) {
    switch (next) {
    case Next::command:
        command = *static_cast<const uint8_t *>(data);
        next    = Next::length;
        break;
    case Next::length:
        next = Next::request;
        break;
    default:
        n_answers = spac::answer_size(command, data, size);
        next      = n_answers > 0 ? Next::answer_length : Next::command;
    }
    if (!is_lost && !send_all(data, size)) {
        lose("");
    }
}

void socket_t::impl::client_receive(void * data, size_t size) {
    if (next == Next::answer_length) {
        uint64_t length = 0;
        if (!is_lost && !receive_all(&length, sizeof(length))) {
            lose("");
        } else if (!is_lost && length != n_answers) {
            lose("sent an answer of " + std::to_string(length) + " bytes where " + std::to_string(n_answers) +
                 " were expected: it is no RPC server, or has another version");
        }
        length = n_answers;
        memcpy(data, &length, sizeof(length));
        next = Next::answer;
        return;
    }
    next = Next::command;
    if (!is_lost && !receive_all(data, size)) {
        lose("");
    }
    if (is_lost) {
        spac::write_empty_answer(command, data, size);
    } else if (spac::is_greeting(command)) {
        check_version(data);
    }
}

// ---- the class that ggml's RPC code uses

socket_t::socket_t(std::unique_ptr<impl> p) : pimpl(std::move(p)) {}
socket_t::~socket_t() = default;

bool socket_t::send_data(const void * data, size_t size) {
    if (pimpl->address.empty()) {
        return pimpl->send_all(data, size);
    }
    pimpl->client_send(data, size);
    return true;
}

bool socket_t::recv_data(void * data, size_t size) {
    if (pimpl->address.empty()) {
        return pimpl->receive_all(data, size);
    }
    pimpl->client_receive(data, size);
    return true;
}

bool socket_t::flush() { return true; }

// RDMA is left out: no capability is offered.
void socket_t::get_caps(uint8_t * local_caps) { memset(local_caps, 0, RPC_CONN_CAPS_SIZE); }
void socket_t::update_caps(const uint8_t *) {}

// rpc_server.cpp accepts connections, so ggml's own server never does. With a null host, `port` is the descriptor of a
// connection that a server has accepted.
socket_ptr socket_t::accept() { return nullptr; }
socket_ptr socket_t::create_server(const char * host, int port) {
    if (host != nullptr) {
        return nullptr;
    }
    spac::watch_peer(port);
    spac::set_deadline(port, SO_SNDTIMEO, spac::rpc_timeout());
    return socket_ptr(new socket_t(std::make_unique<impl>(port)));
}

// Throws InputError, so ggml's client does not see a failure.
socket_ptr socket_t::connect(const char * host, int port) {
    const std::string address = std::string(host) + ":" + std::to_string(port);
    const double      seconds = spac::rpc_timeout();
    addrinfo          hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo * found  = nullptr;
    if (const int error = getaddrinfo(host, std::to_string(port).c_str(), &hints, &found); error != 0) {
        throw spac::InputError("the RPC server " + address + ": " + gai_strerror(error) + ": check the host's name");
    }
    const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> list(found, freeaddrinfo);
    int                                                      error = EADDRNOTAVAIL;
    for (const addrinfo * each = found; each != nullptr; each = each->ai_next) {
        auto connected = std::make_unique<impl>(::socket(each->ai_family, each->ai_socktype, each->ai_protocol));
        error          = connected->fd < 0 ? errno : spac::connect_to(connected->fd, *each, seconds);
        if (error == 0) {
            connected->address = address;
            connected->timeout = seconds;
            spac::watch_peer(connected->fd);
            spac::set_deadline(connected->fd, SO_SNDTIMEO, seconds);
            spac::set_deadline(connected->fd, SO_RCVTIMEO, seconds);
            spac::forget_loss(address);
            return socket_ptr(new socket_t(std::move(connected)));
        }
    }
    throw spac::InputError("the RPC server " + address + " cannot be reached: " + strerror(error) +
                           ": start it there with `spac rpc-server`, or check the address");
}

bool rpc_transport_init() { return true; }
void rpc_transport_shutdown() {}
