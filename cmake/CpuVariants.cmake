# Decides for which CPUs the library is compiled. Sets SPAC_VARIANTS, the names of the library's variants, or nothing if
# there is one library. Defines spac_cpu_variant().
#
# Only ggml-cpu and csrc/kernels depend on the CPU's instruction sets. Everything else is compiled once, for every
# x86-64 CPU. spac/_library.py loads the best variant that the CPU can run.

set(SPAC_CPU_VARIANTS OFF CACHE STRING
    "build one library per kind of x86-64 CPU, for wheels: ON (all), OFF, or a list of baseline, avx2, avx512")

# Each variant has the instruction sets that ggml's own options of these names stand for. _library.py repeats them.
set(_flags_baseline -msse4.2)
set(_flags_avx2 ${_flags_baseline} -mf16c -mfma -mbmi2 -mavx -mavx2)
set(_flags_avx512 ${_flags_avx2} -mavx512f -mavx512cd -mavx512vl -mavx512dq -mavx512bw -mavx512vnni)

set(SPAC_VARIANTS "")
string(TOLOWER "${SPAC_CPU_VARIANTS}" _variants)
if(_variants STREQUAL "on")
    set(_variants baseline avx2 avx512)
endif()
if(_variants)
    foreach(_variant IN LISTS _variants)
        if(NOT DEFINED _flags_${_variant})
            message(FATAL_ERROR "SPAC_CPU_VARIANTS=${SPAC_CPU_VARIANTS}: it must be ON, OFF, or a list of baseline, avx2, avx512")
        endif()
        list(APPEND SPAC_VARIANTS ${_variant})
    endforeach()
    if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
        message(FATAL_ERROR "SPAC_CPU_VARIANTS needs an x86-64 CPU; leave it OFF")
    elseif(SPAC_BUILD_REFERENCE OR SPAC_INPLACE)
        message(FATAL_ERROR "SPAC_CPU_VARIANTS is for wheels: leave out SPAC_BUILD_REFERENCE and SPAC_INPLACE")
    endif()
    set(GGML_NATIVE OFF)
    foreach(_set SSE42 AVX AVX2 AVX_VNNI BMI2 FMA F16C AVX512 AVX512_VBMI AVX512_VNNI AVX512_BF16 AMX_TILE AMX_INT8
            AMX_BF16)
        set(GGML_${_set} OFF)
    endforeach()
endif()

# Sets `result` to a target with ggml-cpu's objects for a variant. The last variant has ggml-cpu itself. The others have
# a copy with its sources and its settings.
function(spac_cpu_variant variant result)
    list(GET SPAC_VARIANTS -1 last)
    if(variant STREQUAL last)
        target_compile_options(ggml-cpu PRIVATE ${_flags_${variant}})
        set(${result} ggml-cpu PARENT_SCOPE)
        return()
    endif()
    get_target_property(folder ggml-cpu SOURCE_DIR)
    get_target_property(sources ggml-cpu SOURCES)
    set(paths "")
    foreach(source IN LISTS sources)
        cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY "${folder}" NORMALIZE)
        list(APPEND paths "${source}")
    endforeach()
    set(target ggml-cpu-${variant})
    add_library(${target} OBJECT ${paths})
    foreach(property INCLUDE_DIRECTORIES COMPILE_OPTIONS COMPILE_DEFINITIONS COMPILE_FEATURES C_STANDARD CXX_STANDARD
            LINK_LIBRARIES)
        get_target_property(value ggml-cpu ${property})
        if(value)
            set_property(TARGET ${target} PROPERTY ${property} "${value}")
        endif()
    endforeach()
    get_directory_property(definitions DIRECTORY "${folder}" COMPILE_DEFINITIONS)
    get_directory_property(options DIRECTORY "${folder}" COMPILE_OPTIONS)
    target_compile_features(${target} PRIVATE c_std_11 cxx_std_17)
    target_compile_definitions(${target} PRIVATE ${definitions})
    target_compile_options(${target} PRIVATE ${options} ${_flags_${variant}})
    set(${result} ${target} PARENT_SCOPE)
endfunction()
