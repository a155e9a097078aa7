# Decides whether ggml's CUDA backend is built. Sets SPAC_WITH_CUDA, and defines spac_link_cuda().
#
# The library must load on machines without a GPU. So the CUDA runtime is linked statically, and the driver is not
# linked: the runtime opens it. cuBLAS is too large to carry. It stays a shared library, which spac/_library.py finds
# when spac is loaded.

set(SPAC_CUDA auto CACHE STRING "build the CUDA backend: auto (when the toolkit and cuBLAS are found), on, off")
set_property(CACHE SPAC_CUDA PROPERTY STRINGS auto on off)
set(SPAC_CUDA_ARCHITECTURES "" CACHE STRING
    "CUDA architectures, as CMAKE_CUDA_ARCHITECTURES takes them (default: this machine's GPUs)")
set(SPAC_CUBLAS_ROOT "" CACHE PATH "folder with cuBLAS's include/ and lib/, when the toolkit comes without it")
set(SPAC_CUDA_OBJECTS "" CACHE PATH
    "folder of ggml-cuda's objects, compiled elsewhere from the same source (bench/gpu_suite/README.md); needs no nvcc")

# Sets `result` to a folder with cuBLAS in it, or to an empty string if there is none. The folder is the option's, or
# that of PyPI's nvidia-cublas beside this Python.
function(spac_find_cublas_root result)
    file(GLOB candidates "${Python_SITEARCH}/nvidia/cu*")
    foreach(root IN LISTS SPAC_CUBLAS_ROOT candidates)
        file(GLOB libraries "${root}/lib*/libcublas.so*")
        if(libraries AND EXISTS "${root}/include/cublas_v2.h")
            set(${result} "${root}" PARENT_SCOPE)
            return()
        endif()
    endforeach()
    set(${result} "" PARENT_SCOPE)
endfunction()

# Sets `result` to the reason why CUDA cannot be built, or to an empty string if it can.
macro(spac_find_cuda result)
    set(${result} "")
    spac_find_cublas_root(_cublas_root)
    if(_cublas_root)
        foreach(_library cublas cublasLt)
            file(GLOB _found "${_cublas_root}/lib*/lib${_library}.so*")
            list(GET _found 0 _found)
            set(CUDA_${_library}_LIBRARY "${_found}" CACHE FILEPATH "" FORCE) # FindCUDAToolkit's variable
        endforeach()
    endif()
    find_package(CUDAToolkit QUIET)
    if(NOT CUDAToolkit_FOUND OR NOT CUDAToolkit_NVCC_EXECUTABLE)
        set(${result} "no CUDA toolkit with nvcc was found")
    elseif(NOT TARGET CUDA::cublas)
        set(${result} "the CUDA toolkit ${CUDAToolkit_VERSION} comes without cuBLAS (-DSPAC_CUBLAS_ROOT=FOLDER names one)")
    endif()
endmacro()

# Sets `result` to the compute capabilities of this machine's GPUs. If it has none, the result is intermediate code for
# all GPUs from Turing on.
function(spac_cuda_architectures result)
    execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
        RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(status EQUAL 0 AND output MATCHES "^[0-9.\n]+$")
        string(REPLACE "." "" output "${output}")
        string(REPLACE "\n" ";" output "${output}")
        list(REMOVE_DUPLICATES output)
        list(TRANSFORM output APPEND "-real")
        set(${result} "${output}" PARENT_SCOPE)
    else()
        set(${result} "75-virtual;80-virtual;90-virtual" PARENT_SCOPE)
    endif()
endfunction()

# Fails if the objects in SPAC_CUDA_OBJECTS were compiled from another source than this tree's. Sets SPAC_CUBLAS to the
# library to link.
macro(spac_use_cuda_objects)
    execute_process(COMMAND "${Python_EXECUTABLE}" "${CMAKE_CURRENT_LIST_DIR}/cuda_source_id.py" "${SPAC_LLAMA_SOURCE}"
        "${SPAC_LLAMA_PRISTINE}" OUTPUT_VARIABLE _id OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
    file(STRINGS "${SPAC_CUDA_OBJECTS}/source_id" _their_id LIMIT_COUNT 1)
    if(NOT _id STREQUAL _their_id)
        message(FATAL_ERROR "SPAC_CUDA_OBJECTS: these objects are of another source than this tree's: pack them anew")
    endif()
    spac_find_cublas_root(_cublas_root)
    find_library(SPAC_CUBLAS NAMES cublas libcublas.so.13 libcublas.so.12 REQUIRED NO_CACHE
        HINTS "${_cublas_root}" "${SPAC_CUBLAS_ROOT}" /usr/local/cuda PATH_SUFFIXES lib lib64)
    message(STATUS "spac: with ggml-cuda's objects from ${SPAC_CUDA_OBJECTS} and ${SPAC_CUBLAS}")
endmacro()

string(TOLOWER "${SPAC_CUDA}" _cuda)
set(SPAC_WITH_CUDA OFF)
if(NOT _cuda MATCHES "^(auto|on|off)$")
    message(FATAL_ERROR "SPAC_CUDA=${SPAC_CUDA}: it must be auto, on or off")
elseif(SPAC_CUDA_OBJECTS)
    spac_use_cuda_objects()
    set(SPAC_WITH_CUDA ON)
elseif(NOT _cuda STREQUAL "off")
    spac_find_cuda(_missing)
    if(NOT _missing)
        set(SPAC_WITH_CUDA ON)
    elseif(_cuda STREQUAL "on")
        message(FATAL_ERROR "SPAC_CUDA=on, but ${_missing}")
    else()
        message(STATUS "spac: without CUDA: ${_missing}")
    endif()
endif()

if(SPAC_WITH_CUDA AND NOT SPAC_CUDA_OBJECTS)
    if(SPAC_CUDA_ARCHITECTURES)
        set(CMAKE_CUDA_ARCHITECTURES "${SPAC_CUDA_ARCHITECTURES}")
    else()
        spac_cuda_architectures(CMAKE_CUDA_ARCHITECTURES)
    endif()
    if(NOT CMAKE_CUDA_COMPILER)
        set(CMAKE_CUDA_COMPILER "${CUDAToolkit_NVCC_EXECUTABLE}")
    endif()
    if(_cublas_root)
        include_directories(SYSTEM "${_cublas_root}/include")
    endif()
    # ggml-cuda would link the driver for its pool of virtual memory. So it is configured without this pool, and the one
    # file that has it is compiled with it (spac_cuda_pool). csrc/backend/device/cuda_memory.cpp calls the driver.
    set(GGML_CUDA_NO_VMM ON)
    set(GGML_CUDA_NCCL OFF)
    enable_language(CUDA) # in the top folder, because cmake/Reference.cmake compiles CUDA files too
    message(STATUS "spac: with CUDA ${CUDAToolkit_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}")
endif()

# Compiles a ggml-cuda.cu with the pool of virtual memory. CUDA graphs keep the addresses of the pool's memory. The other
# pool frees its memory when the device is full, and graphs of before would run on freed memory. What follows the
# source says whose folder it belongs to, as set_source_files_properties takes it.
function(spac_cuda_pool source)
    set_source_files_properties("${source}" ${ARGN} PROPERTIES COMPILE_OPTIONS -UGGML_CUDA_NO_VMM)
endfunction()

# Links CUDA into a library. `kind` is "patched", or "published" for ggml-cuda as upstream wrote it.
function(spac_link_cuda target kind)
    if(NOT SPAC_CUDA_OBJECTS)
        target_link_libraries(${target} PRIVATE CUDA::cudart_static CUDA::cublas)
        return()
    endif()
    file(GLOB objects "${SPAC_CUDA_OBJECTS}/common/*.o" "${SPAC_CUDA_OBJECTS}/${kind}/*.o")
    set_source_files_properties(${objects} PROPERTIES EXTERNAL_OBJECT ON)
    target_sources(${target} PRIVATE ${objects})
    target_link_libraries(${target} PRIVATE "${SPAC_CUDA_OBJECTS}/libcudart_static.a" "${SPAC_CUBLAS}" rt)
endfunction()
