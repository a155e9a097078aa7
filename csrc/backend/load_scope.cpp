#include "backend/experts.h"
#include "backend/model_experts.h"

#include <sys/mman.h>

namespace spac {
namespace {
thread_local LoadScope * open_scope = nullptr;
}

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

} // namespace spac

// The linker sends calls of mmap here (--wrap), and the second name to the system's. llama.cpp has the whole file read
// when it maps it: of a file that is larger than memory, the beginning has gone again when the end is there.
extern "C" void * __real_mmap(void * address, size_t length, int protection, int flags, int fd, off_t offset);
extern "C" void * __wrap_mmap(void * address, size_t length, int protection, int flags, int fd, off_t offset);

void * __wrap_mmap(void * address, size_t length, int protection, int flags, int fd, off_t offset) {
    const bool paged = spac::open_scope != nullptr && spac::experts_for_load()->paged();
    return __real_mmap(address, length, protection, paged ? flags & ~MAP_POPULATE : flags, fd, offset);
}
