#include "session/big_stack.h"

#include <exception>

#include <csignal>
#include <pthread.h>
#include <sys/mman.h>

namespace spac {

namespace {

struct Work {
    const std::function<void()> & call;
    std::exception_ptr            error;
};

void * run(void * given) {
    auto & work = *static_cast<Work *>(given);
    try {
        work.call();
    } catch (...) {
        work.error = std::current_exception();
    }
    return nullptr;
}

// Starts the thread without signals, which belong to the threads that wait for them.
bool start(pthread_t & thread, const pthread_attr_t & attributes, Work & work) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool started = pthread_create(&thread, &attributes, run, &work) == 0;
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return started;
}

} // namespace

bool on_stack(size_t bytes, const std::function<void()> & call) {
    constexpr size_t guard = 64 << 10; // beyond the stack's end
    const size_t     size  = (bytes + guard + 0xFFFF) & ~size_t(0xFFFF);
    void * const     stack =
        mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (stack == MAP_FAILED) {
        return false;
    }
    mprotect(stack, guard, PROT_NONE);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, static_cast<char *>(stack) + guard, size - guard);
    Work       work{call, nullptr};
    pthread_t  thread;
    const bool started = start(thread, attributes, work);
    pthread_attr_destroy(&attributes);
    if (started) {
        pthread_join(thread, nullptr);
    }
    munmap(stack, size);
    if (work.error != nullptr) {
        std::rethrow_exception(work.error);
    }
    return started;
}

} // namespace spac
