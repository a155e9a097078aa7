# Compiles llama.cpp as static, position-independent libraries. csrc links their objects into one shared library.
# Options that change results stay at upstream's defaults.

set(BUILD_SHARED_LIBS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_POLICY_DEFAULT_CMP0077 NEW) # plain variables below override upstream's options without entering the cache
set(LLAMA_BUILD_COMMON ON)
foreach(_part TESTS TOOLS EXAMPLES SERVER APP UI)
    set(LLAMA_BUILD_${_part} OFF)
endforeach()
set(LLAMA_BUILD_MTMD ON) # images
set(MTMD_VIDEO OFF)      # it would start ffmpeg
set(LLAMA_OPENSSL OFF)
set(GGML_CCACHE OFF)  # a compiler launcher is the user's choice
set(GGML_OPENMP OFF)  # its threads spin, and a second OpenMP runtime (PyTorch's) may live in the process
set(GGML_CUDA ${SPAC_WITH_CUDA})
set(GGML_VULKAN ${SPAC_WITH_VULKAN})
if(SPAC_CUDA_OBJECTS)
    set(GGML_CUDA OFF) # its objects are compiled already
endif()
option(GGML_NATIVE "compile for this machine's CPU (OFF: for the instruction sets that the GGML_… options name)" ON)

# Some virtual machines report AMX, grant it, and end a program that uses it. Their build leaves it out.
if(GGML_NATIVE AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64" AND NOT CMAKE_CROSSCOMPILING)
    include(CheckCXXSourceRuns)
    set(CMAKE_REQUIRED_FLAGS -march=native)
    set(CMAKE_REQUIRED_QUIET ON)
    check_cxx_source_runs("
#ifdef __AMX_TILE__
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
int main() {
    if (syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* tiles */) == 0) {
        _tile_zero(0);
        _tile_release();
    }
    return 0;
}
#else
int main() { return 0; }
#endif
" SPAC_AMX_WORKS)
    unset(CMAKE_REQUIRED_FLAGS)
    unset(CMAKE_REQUIRED_QUIET)
    if(NOT SPAC_AMX_WORKS)
        message(STATUS "this machine reports AMX, and its instructions fail: compiled without it")
        add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-U__AMX_INT8__>) # ggml's condition for its AMX code
    endif()
endif()

# Upstream asks git for its version. In our build folder, git would give another project's, so upstream finds no git.
set(LLAMA_BUILD_NUMBER 0)
set(LLAMA_BUILD_COMMIT "llama-cpp-python-${SPAC_LLAMA_CPP_PYTHON_VERSION}")
set(CMAKE_DISABLE_FIND_PACKAGE_Git ON)
find_program(SPAC_TRUE true)
mark_as_advanced(SPAC_TRUE)
set(GIT_EXECUTABLE "${SPAC_TRUE}")

# Upstream's compiler warnings and CMake messages are hidden, because they do not concern this project.
set(LLAMA_ALL_WARNINGS OFF)
set(_log_level "${CMAKE_MESSAGE_LOG_LEVEL}")
if(NOT _log_level)
    set(CMAKE_MESSAGE_LOG_LEVEL ERROR)
endif()
add_subdirectory("${SPAC_LLAMA_SOURCE}" "${CMAKE_CURRENT_BINARY_DIR}/llama" EXCLUDE_FROM_ALL)
set(CMAKE_MESSAGE_LOG_LEVEL "${_log_level}")

# All objects of these static libraries go into the shared one. cpp-httplib, common's downloader, stays an archive. The
# linker takes from it only the objects that common refers to.
# csrc adds ggml-cpu, which may have variants.
set(SPAC_LLAMA_VENDOR "")
if(TARGET vendor-hash)
    set(SPAC_LLAMA_VENDOR vendor-hash) # mtmd's; llama.cpp of llama-cpp-python 0.3.35 and before has none
endif()
set(SPAC_LLAMA_TARGETS llama mtmd ${SPAC_LLAMA_VENDOR} llama-common llama-common-base ggml ggml-base)
if(TARGET ggml-cuda)
    list(APPEND SPAC_LLAMA_TARGETS ggml-cuda)
    spac_cuda_pool("${SPAC_LLAMA_SOURCE}/ggml/src/ggml-cuda/ggml-cuda.cu" TARGET_DIRECTORY ggml-cuda)
elseif(SPAC_CUDA_OBJECTS)
    target_compile_definitions(ggml PUBLIC GGML_USE_CUDA) # as upstream's CMake does for a backend that it builds
endif()
if(SPAC_WITH_VULKAN)
    list(APPEND SPAC_LLAMA_TARGETS ggml-vulkan)
    spac_compile_vulkan()
endif()


# llama.cpp's speculative loop and its handlers of requests, without HTTP, its page and its tools.
set(_server "")
foreach(_part chat common context queue schema stream task)
    list(APPEND _server "${SPAC_LLAMA_SOURCE}/tools/server/server-${_part}.cpp")
endforeach()
add_library(spac-server-context OBJECT ${_server})
target_link_libraries(spac-server-context PRIVATE llama-common mtmd)
target_include_directories(spac-server-context PRIVATE "${SPAC_LLAMA_SOURCE}" "${SPAC_LLAMA_SOURCE}/tools/mtmd"
    "${SPAC_LLAMA_SOURCE}/tools/server" "${PROJECT_SOURCE_DIR}/csrc") # hooks/answer_stops.h, hooks/full_memory.h
target_compile_options(spac-server-context PRIVATE -w)
list(APPEND SPAC_LLAMA_TARGETS spac-server-context)

set(SPAC_GGML_INCLUDES "${SPAC_LLAMA_SOURCE}/ggml/include" "${SPAC_LLAMA_SOURCE}/ggml/src")
set(SPAC_LLAMA_INCLUDES "${SPAC_LLAMA_SOURCE}/include" "${SPAC_LLAMA_SOURCE}/ggml/include" "${SPAC_LLAMA_SOURCE}/common"
    "${SPAC_LLAMA_SOURCE}/vendor" "${SPAC_LLAMA_SOURCE}/tools/mtmd" "${SPAC_LLAMA_SOURCE}/tools/server")
