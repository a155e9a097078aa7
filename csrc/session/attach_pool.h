// A thread pool for the graphs that a llama context computes on the CPU.
#pragma once

namespace spac {

class ThreadPool;

// Makes a llama_context compute with a pool, which then has to live as long as the context. Contexts that compute in
// turns share one pool: the threads of a second one would still look for work while those of the first compute.
void attach_pool(void * ctx, const ThreadPool & pool);

} // namespace spac
