#include "kernels.h"

#include "../ptx/lanes.h"
#include "counts.h"
#include "memory.h"
#include "settings.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <string_view>
#include <vector>

#include <dlfcn.h>
#include <unistd.h>

namespace pretend {
namespace {

namespace fs = std::filesystem;

struct Compiled {
    uint64_t (*pack)(void ** arguments, char * to) = nullptr;
    int (*run)(const ptx::Launch * launch)         = nullptr;
};

// The parts of a fat binary that are read here.
struct Wrapper {
    uint32_t     magic, version;
    const char * data;
};
struct Header {
    uint32_t magic;
    uint16_t version, size;
    uint64_t content;
};
struct Part {
    uint16_t kind, version;
    uint32_t header;
    uint64_t content;
};
constexpr uint16_t ptx_kind = 1;

// Returns the PTX of a fat binary, empty without readable PTX (it must be uncompressed:
// -DGGML_CUDA_COMPRESSION_MODE=none).
std::string_view ptx_of(const void * fatbin) {
    Wrapper wrapper;
    Header  header;
    std::memcpy(&wrapper, fatbin, sizeof(wrapper));
    std::memcpy(&header, wrapper.data, sizeof(header));
    const char *       at  = wrapper.data + header.size;
    const char * const end = at + header.content;
    while (at < end) {
        Part part;
        std::memcpy(&part, at, sizeof(part));
        const std::string_view text(at + part.header, part.content);
        if (part.kind == ptx_kind && text.find(".version") != std::string_view::npos) {
            return text.substr(0, text.find('\0'));
        }
        at += part.header + part.content;
    }
    return {};
}

std::string hash_of(std::string_view text) { return std::to_string(std::hash<std::string_view>()(text)); }

fs::file_time_type newest_source() {
    fs::file_time_type newest = fs::file_time_type::min();
    for (const auto & entry : fs::directory_iterator(fs::path(PRETEND_ROOT) / "tools/cuda_host/ptx")) {
        newest = entry.is_regular_file() ? std::max(newest, entry.last_write_time()) : newest;
    }
    return newest;
}

// Runs python -m tools.cuda_host.ptx in the repository's root, without this library and without what loaded it.
bool build(const fs::path & module, const std::string & kernel, const fs::path & out) {
    const std::string command =
        std::string("cd '") + PRETEND_ROOT + "' && exec env -u LD_LIBRARY_PATH -u LD_PRELOAD -u PYTHONPATH" +
        " python3 -m tools.cuda_host.ptx '" + module.string() + "' '" + kernel + "' '" + out.string() + "' >&2";
    return std::system(command.c_str()) == 0;
}

Compiled load(const void * fatbin, const std::string & mangled) {
    const auto text = ptx_of(fatbin);
    if (text.empty()) {
        misuse("%s: its fat binary has no PTX, or only a compressed one", mangled.c_str());
        return {};
    }
    const std::string hash   = hash_of(text);
    const fs::path    folder = settings().execute, module = folder / (hash + ".ptx");
    const fs::path    library = folder / (hash + "-" + hash_of(mangled) + ".so");
    fs::create_directories(folder);
    if (!fs::exists(module)) { // another process may be reading or writing it
        const fs::path part = module.string() + "." + std::to_string(getpid());
        std::ofstream(part, std::ios::binary) << text;
        fs::rename(part, module);
    }
    if ((!fs::exists(library) || fs::last_write_time(library) < newest_source()) && !build(module, mangled, library)) {
        misuse("%s: cannot be translated", mangled.c_str());
        return {};
    }
    void * const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
        misuse("%s: %s", mangled.c_str(), dlerror());
        return {};
    }
    return {reinterpret_cast<decltype(Compiled::pack)>(dlsym(handle, "ptx_pack")),
            reinterpret_cast<decltype(Compiled::run)>(dlsym(handle, "ptx_run"))};
}

const Compiled & compiled_of(const void * fatbin, const std::string & mangled) {
    static std::mutex     mutex;
    static auto *         all = new std::map<std::pair<const void *, std::string>, Compiled>;
    const std::lock_guard lock(mutex);
    const auto [found, is_new] = all->try_emplace({fatbin, mangled});
    if (is_new) {
        found->second = load(fatbin, mangled);
    }
    return found->second;
}

thread_local const std::string * running = nullptr; // the kernel that this thread runs

} // namespace

std::function<void()> execution(const void * fatbin, const std::string & mangled, void ** arguments, dim3 grid,
                                dim3 block, size_t shared) {
    const Compiled & compiled = compiled_of(fatbin, mangled);
    if (compiled.run == nullptr) {
        return nullptr;
    }
    std::vector<char> params(compiled.pack(arguments, nullptr) + sizeof(uint64_t));
    compiled.pack(arguments, params.data());
    return [=, &compiled] {
        const auto & window = device_window();
        running             = &mangled;

        const ptx::Launch launch = {
            {grid.x, grid.y, grid.z},
            {block.x, block.y, block.z},
            params.data(),
            shared,
            reinterpret_cast<uint64_t>(window.base),
            window.size,
            window.offset,
            [](const char * message) { misuse("%s: %s", running->c_str(), message); },
        };
        compiled.run(&launch);
    };
}

} // namespace pretend
