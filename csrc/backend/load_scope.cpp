#include "backend/experts.h"
#include "backend/model_experts.h"

namespace spac {
namespace {
thread_local LoadScope * open_scope = nullptr;
}

LoadScope::LoadScope() : experts_(std::make_shared<ModelExperts>()), outer_(open_scope) { open_scope = this; }

LoadScope::~LoadScope() { open_scope = outer_; }

std::shared_ptr<Experts> LoadScope::experts() const { return experts_; }

std::shared_ptr<ModelExperts> experts_for_load() {
    return open_scope ? std::static_pointer_cast<ModelExperts>(open_scope->experts())
                      : std::make_shared<ModelExperts>();
}

} // namespace spac
