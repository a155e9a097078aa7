// Attaches a thread pool to a llama context, for the graphs that the context computes on the CPU.
#pragma once

namespace spac {

class ThreadPool;

// Makes a llama_context compute with a pool, which has to live as long as the context. Contexts that compute in turns
// share one pool, because the threads of a second pool would still look for work while those of the first compute.
void attach_pool(void * ctx, const ThreadPool & pool);

} // namespace spac
