#include "kernels.h"

#include "../ptx/lanes.h"
#include "counts.h"
#include "memory.h"
#include "settings.h"

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <string_view>
#include <vector>

#include <dlfcn.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

namespace pretend {
namespace {

namespace fs = std::filesystem;

struct Compiled {
    const ptx::Kernel * kernel             = nullptr;
    int (*run)(const ptx::Launch * launch) = nullptr;
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

std::string hash_of(std::string_view text) {
    uint64_t hash = 14695981039346656037U;
    for (const char c : text) {
        hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
    }
    char hex[17];
    std::snprintf(hex, sizeof(hex), "%016llx", static_cast<unsigned long long>(hash));
    return hex;
}

fs::file_time_type newest_source() {
    fs::file_time_type newest = fs::file_time_type::min();
    for (const auto & entry : fs::directory_iterator(fs::path(PRETEND_ROOT) / "tools/cuda_host/ptx")) {
        newest = entry.is_regular_file() ? std::max(newest, entry.last_write_time()) : newest;
    }
    return newest;
}

// Runs python -m tools.cuda_host.ptx in the repository's root, without this library and without what loaded it.
bool build(const fs::path & module, const std::string & kernel, const fs::path & out) {
    const std::string command = std::string("cd '") + PRETEND_ROOT + "' && exec python3 -m tools.cuda_host.ptx '" +
                                module.string() + "' '" + kernel + "' '" + out.string() + "' >&2";
    const char *        arguments[] = {"sh", "-c", command.c_str(), nullptr};
    std::vector<char *> environment;
    for (char ** variable = environ; *variable != nullptr; ++variable) {
        const std::string_view text = *variable;
        if (text.rfind("LD_", 0) != 0 && text.rfind("PYTHONPATH=", 0) != 0) {
            environment.push_back(*variable);
        }
    }
    environment.push_back(nullptr);
    pid_t child  = 0;
    int   status = 0;
    return posix_spawn(&child, "/bin/sh", nullptr, nullptr, const_cast<char **>(arguments), environment.data()) == 0 &&
           waitpid(child, &status, 0) == child && status == 0;
}

Compiled load(const void * fatbin, const std::string & mangled) {
    static auto * hashes = new std::map<const void *, std::string>;
    std::string & hash   = (*hashes)[fatbin];
    const auto    text   = ptx_of(fatbin);
    if (text.empty()) {
        misuse("%s: its fat binary has no PTX, or only a compressed one", mangled.c_str());
        return {};
    }
    const fs::path folder = settings().execute;
    if (hash.empty()) {
        hash = hash_of(text);
        fs::create_directories(folder);
        const fs::path module = folder / (hash + ".ptx"), part = module.string() + "." + std::to_string(getpid());
        if (!fs::exists(module)) { // another process may be reading or writing it
            std::ofstream(part, std::ios::binary) << text;
            fs::rename(part, module);
        }
    }
    const fs::path library = folder / (hash + "-" + hash_of(mangled) + ".so");
    if ((!fs::exists(library) || fs::last_write_time(library) < newest_source()) &&
        !build(folder / (hash + ".ptx"), mangled, library)) {
        misuse("%s: cannot be translated", mangled.c_str());
        return {};
    }
    void * const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
        misuse("%s: %s", mangled.c_str(), dlerror());
        return {};
    }
    Compiled   compiled;
    const auto kernel = reinterpret_cast<const ptx::Kernel * (*)()>(dlsym(handle, "ptx_kernel"));
    compiled.kernel   = kernel();
    compiled.run      = reinterpret_cast<decltype(compiled.run)>(dlsym(handle, "ptx_run"));
    return compiled;
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
    const ptx::Kernel & kernel = *compiled.kernel;
    size_t              size   = 0;
    if (kernel.n_params > 0) {
        size = kernel.param_offsets[kernel.n_params - 1] + kernel.param_sizes[kernel.n_params - 1];
    }
    std::vector<char> params(size + sizeof(uint64_t));
    for (uint32_t i = 0; i < kernel.n_params; ++i) {
        std::memcpy(params.data() + kernel.param_offsets[i], arguments[i], kernel.param_sizes[i]);
    }
    return [=, &compiled] {
        ptx::Launch launch;
        launch.grid          = {grid.x, grid.y, grid.z};
        launch.block         = {block.x, block.y, block.z};
        launch.params        = params.data();
        launch.shared        = shared;
        launch.window        = reinterpret_cast<uint64_t>(device_window().base);
        launch.window_size   = device_window().size;
        launch.window_offset = device_window().offset;
        launch.complain      = [](const char * message) { misuse("%s: %s", running->c_str(), message); };
        running              = &mangled;
        compiled.run(&launch);
    };
}

} // namespace pretend
