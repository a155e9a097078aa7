// Copies of files in anonymous memory on huge pages (2 MB). Some processors read these faster than the 4 KB pages of a
// file's mapping: hardware prefetchers stop where a page ends, and a virtual machine translates every page twice.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace spac {

// The report on the copies of all files together.
struct CopyReport {
    size_t      bytes      = 0;
    size_t      huge_bytes = 0; // those that are on huge pages, as the system tells
    double      seconds    = 0;
    bool        stopped    = false; // the progress function stopped a copy
    std::string failure;            // why the first file that failed was not copied
};

// Copies the files of one model, one after another. One thread uses it; the threads that copy are its own.
class HugeCopies {
  public:
    // Called on the thread that calls copy(), some 20 times a second, with the bytes copied so far, of all files.
    // Returning false stops the copy. It must not throw.
    using Progress = std::function<bool(size_t)>;

    // The pages of a copy lie in the memories of these NUMA nodes by turns. Without nodes, they lie in the memory of
    // the thread that copies.
    HugeCopies(int n_threads, std::vector<int> nodes, Progress progress = {})
        : n_threads_(n_threads), nodes_(std::move(nodes)), progress_(std::move(progress)) {}

    // Returns the first `bytes` of the file, read-only, in memory that the caller gives back with munmap. Returns null
    // if memory, threads or the file are not as they have to be, or if progress says stop: the report tells which.
    void *             copy(int fd, size_t bytes);
    const CopyReport & report() const { return report_; }

  private:
    int              n_threads_;
    std::vector<int> nodes_;
    Progress         progress_;
    CopyReport       report_;
};

} // namespace spac
