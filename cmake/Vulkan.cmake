# Decides whether ggml's Vulkan backend is built. Sets SPAC_WITH_VULKAN, and defines spac_compile_vulkan() and
# spac_link_vulkan().
#
# The backend is off by default, because its build compiles some hundred shaders, and because it has only run on Mesa's
# software device. libvulkan, which finds the drivers, stays a shared library. So such a build runs only on machines
# that have libvulkan.

set(SPAC_VULKAN off CACHE STRING
    "build the Vulkan backend: off, on, auto (when its headers, libvulkan, glslc and SPIR-V's headers are found)")
set_property(CACHE SPAC_VULKAN PROPERTY STRINGS auto on off)

# Sets `result` to the reason why Vulkan cannot be built, or to an empty string if it can.
macro(spac_find_vulkan result)
    set(${result} "")
    find_package(Vulkan QUIET COMPONENTS glslc)
    find_package(SPIRV-Headers CONFIG QUIET)
    if(NOT Vulkan_FOUND)
        set(${result} "Vulkan's headers, libvulkan or glslc were not found (Debian: libvulkan-dev, glslc)")
    elseif(Vulkan_VERSION VERSION_LESS 1.3.239)
        set(${result} "these are Vulkan's headers ${Vulkan_VERSION}, and spac needs 1.3.239 or newer")
    elseif(NOT SPIRV-Headers_FOUND)
        set(${result} "SPIR-V's headers were not found (Debian: spirv-headers)")
    endif()
endmacro()

string(TOLOWER "${SPAC_VULKAN}" _vulkan)
set(SPAC_WITH_VULKAN OFF)
if(NOT _vulkan MATCHES "^(auto|on|off)$")
    message(FATAL_ERROR "SPAC_VULKAN=${SPAC_VULKAN}: it must be auto, on or off")
elseif(NOT _vulkan STREQUAL "off")
    spac_find_vulkan(_missing)
    if(NOT _missing)
        set(SPAC_WITH_VULKAN ON)
        message(STATUS "spac: with Vulkan ${Vulkan_VERSION}")
    elseif(_vulkan STREQUAL "on")
        message(FATAL_ERROR "SPAC_VULKAN=on, but ${_missing}")
    else()
        message(STATUS "spac: without Vulkan: ${_missing}")
    endif()
endif()

# Compiles llama.cpp's backend with what headers before 1.3.272 lack.
function(spac_compile_vulkan)
    target_compile_options(ggml-vulkan PRIVATE "SHELL:-include ${PROJECT_SOURCE_DIR}/cmake/old_vulkan.h")
endfunction()

function(spac_link_vulkan target)
    target_link_libraries(${target} PRIVATE Vulkan::Vulkan)
endfunction()
