#include "session/attach_pool.h"

#include "backend/split/thread_pool.h"
#include "llama.h"

namespace spac {

void attach_pool(void * ctx, const ThreadPool & pool) {
    llama_attach_threadpool(static_cast<llama_context *>(ctx), pool.get(), pool.get());
}

} // namespace spac
