#include "backend/experts/experts.h"
#include "backend/experts/model_experts.h"

#include <cerrno>
#include <exception>
#include <utility>

#include <sys/mman.h>

namespace spac {
namespace {
thread_local LoadScope * open_scope = nullptr;

// Tells what llama.cpp asks for when it maps a model's file.
bool is_weights(const void * address, int protection, int flags, int fd, off_t offset) {
    return address == nullptr && protection == PROT_READ && (flags & MAP_SHARED) != 0 && fd >= 0 && offset == 0;
}

// The file's copy on huge pages, which is unmapped as the file would be. Null where there is none; MAP_FAILED where the
// user has stopped it.
void * copy_of_file(HugeCopies & copies, int fd, size_t length) {
    try {
        Region region = copies.copy(fd, length);
        if (region.data() == nullptr && copies.report().stopped) {
            errno = ECANCELED;
            return MAP_FAILED;
        }
        return region.release();
    } catch (const std::exception &) { // no memory for threads or text; no exception crosses C
        return nullptr;
    }
}
} // namespace

LoadScope::LoadScope(bool paged, std::shared_ptr<HugeCopies> copies) : copies_(std::move(copies)), outer_(open_scope) {
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
// when it maps it: of a file that is larger than memory, the beginning has gone again when the end is there. Where a
// copy on huge pages is wanted, it takes the mapping's place, and whatever prevents it leaves the mapping.
extern "C" void * __real_mmap(void * address, size_t length, int protection, int flags, int fd, off_t offset);
extern "C" void * __wrap_mmap(void * address, size_t length, int protection, int flags, int fd, off_t offset);

void * __wrap_mmap(void * address, size_t length, int protection, int flags, int fd, off_t offset) {
    spac::LoadScope * const scope = spac::open_scope;
    if (scope != nullptr && scope->copies() != nullptr && spac::is_weights(address, protection, flags, fd, offset)) {
        if (void * copy = spac::copy_of_file(*scope->copies(), fd, length); copy != nullptr) {
            return copy;
        }
    }
    const bool paged = scope != nullptr && spac::experts_for_load()->paged();
    return __real_mmap(address, length, protection, paged ? flags & ~MAP_POPULATE : flags, fd, offset);
}
