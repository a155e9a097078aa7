#include "backend/device/kernel_memory.h"
#include "backend/experts/experts.h"
#include "backend/experts/model_experts.h"
#include "core/error.h"
#include "ggml.h"

#include <cstdio>
#include <utility>

#include <sys/mman.h>

namespace spac {
namespace {
thread_local LoadScope * open_scope = nullptr;
thread_local int         guards     = 0;

void on_abort(const char * message) {
    unwind_if_full();
    if (guards > 0) {
        throw DeviceError(message);
    }
    fprintf(stderr, "%s\n", message); // ggml ends the process when this returns
}
} // namespace

LoadScope::LoadScope(bool paged) : outer_(open_scope) {
    auto experts = std::make_shared<ModelExperts>();
    if (paged) {
        experts->set_paged();
    }
    experts_   = std::move(experts);
    open_scope = this;
}

LoadScope::~LoadScope() { open_scope = outer_; }

std::shared_ptr<Experts> LoadScope::experts() const { return experts_; }

std::shared_ptr<ModelExperts> experts_for_load() {
    return open_scope ? std::static_pointer_cast<ModelExperts>(open_scope->experts())
                      : std::make_shared<ModelExperts>();
}

AbortGuard::AbortGuard() {
    ggml_set_abort_callback(on_abort); // never removed: an abort of a thread without a guard ends the process as before
    ++guards;
}

AbortGuard::~AbortGuard() { --guards; }

bool AbortGuard::here() { return guards > 0; }

AbortGuard::Pause::Pause() : before_(std::exchange(guards, 0)) {}

AbortGuard::Pause::~Pause() { guards = before_; }

} // namespace spac

// The linker sends calls of mmap here (--wrap), and calls of the __real_ name to the system's function. llama.cpp reads
// the whole file when it maps it (MAP_POPULATE). With a file that exceeds the memory, the beginning is dropped again
// before the end is read, so a paged file is mapped without it.
extern "C" void * __real_mmap(void * address, size_t length, int protection, int flags, int fd, off_t offset);
extern "C" void * __wrap_mmap(void * address, size_t length, int protection, int flags, int fd, off_t offset);

void * __wrap_mmap(void * address, size_t length, int protection, int flags, int fd, off_t offset) {
    spac::LoadScope * const scope = spac::open_scope;
    const bool              paged = scope != nullptr && spac::experts_for_load()->paged();
    return __real_mmap(address, length, protection, paged ? flags & ~MAP_POPULATE : flags, fd, offset);
}
