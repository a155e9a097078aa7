// Copies of files in anonymous memory on huge pages (2 MB). A processor reads these faster than the 4 KB pages of a
// file's mapping: hardware prefetchers stop where a page ends, and a virtual machine translates every page twice.
//
// The system looks for a huge page when a page is touched for the first time, and may compact memory for it. These
// stalls are measured. When their budget is spent, the rest of the copy goes to small pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace spac {

constexpr size_t huge_page_bytes = size_t{2} << 20;

// Anonymous memory that begins at a multiple of 2 MB. The object owns it.
class Region {
  public:
    Region() = default;
    // Takes whole small pages for `bytes`: on huge pages as far as the system has them, or with `huge` false on small
    // pages alone. Stays empty if the system refuses, with the reason in errno.
    Region(size_t bytes, bool huge);
    Region(Region && other) noexcept;
    Region & operator=(Region && other) noexcept;
    Region(const Region &)             = delete;
    Region & operator=(const Region &) = delete;
    ~Region();

    char * data() const { return data_; }
    size_t size() const { return size_; }
    // Returns the bytes that are on huge pages now, as the system tells.
    size_t huge_bytes() const;
    // Places pages that nobody has touched yet in these NUMA nodes by turns. Returns false if the system refuses.
    bool interleave(const std::vector<int> & nodes) const;
    // Returns the memory. The caller owns it from then on, and gives it back with munmap.
    char * release();

  private:
    char * data_ = nullptr;
    size_t size_ = 0;
};

// Limits of the time for which the system may look for huge pages.
struct StallBudget {
    // The time that the first touch of a page may take: the page is cleared, and a hypervisor may have to find its
    // memory.
    int64_t page_ns = 2'000'000;
    // The time that first touches may take beyond that, in all threads together.
    int64_t total_ns = 2'000'000'000;
    // The budget is spent only if the system has compacted memory so many times meanwhile, for any process. Otherwise
    // something else is slow (a hypervisor that finds memory of its own), and small pages are no faster.
    int64_t compactions = 1;
};

struct CopySettings {
    int         n_threads  = 1;
    bool        drop_cache = false; // drops the system's cache of what has been copied
    StallBudget stalls     = {};
    // A copy that would take longer is given up. The processor time of its threads so far tells that: waiting for a
    // disk does not count, because a mapping waits too. 0 is no limit.
    double most_seconds = 0;
    // NUMA nodes in whose memories the pages of a copy lie by turns. With none, they lie in the memory of the thread
    // that copies.
    std::vector<int> nodes = {};
};

// The report on the copies of all files together.
struct CopyReport {
    size_t      bytes      = 0;
    size_t      huge_bytes = 0;
    double      seconds    = 0;
    bool        stalled    = false; // the budget was spent
    bool        stopped    = false; // the progress function stopped a copy
    std::string failure;            // why the first file that failed was not copied
};

// Copies the files of one model, one after another. One thread uses it; the threads that copy are its own.
class HugeCopies {
  public:
    // Called on the thread that calls copy(), some 20 times a second, with the bytes copied so far, of all files.
    // Returning false stops the copy. It must not throw.
    using Progress = std::function<bool(size_t)>;

    explicit HugeCopies(const CopySettings & settings, Progress progress = {})
        : settings_(settings), progress_(std::move(progress)) {}

    // Returns the first `bytes` of the file, read-only, and zeros up to the end of the last page. Returns an empty
    // region if memory, threads or the file are not as they have to be, or if progress says stop: the report tells
    // which.
    Region             copy(int fd, size_t bytes);
    const CopyReport & report() const { return report_; }

  private:
    CopySettings settings_;
    Progress     progress_;
    CopyReport   report_;
};

} // namespace spac
