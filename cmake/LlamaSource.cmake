# Sets SPAC_LLAMA_SOURCE (patched) and SPAC_LLAMA_PRISTINE (as published), which are both in the build folder. Sets
# SPAC_PATCHED_FILES, relative to them. llama_source.py fetches the source.

set(SPAC_LLAMA_CPP_DIR "" CACHE PATH "a llama.cpp source tree to use in place of the pinned sdist")

set(_build "${CMAKE_CURRENT_BINARY_DIR}/llama.cpp")
set(_command "${Python_EXECUTABLE}" "${CMAKE_CURRENT_LIST_DIR}/llama_source.py"
    --pin "${CMAKE_CURRENT_SOURCE_DIR}/LLAMA_CPP_VERSION"
    --patches "${CMAKE_CURRENT_SOURCE_DIR}/patches"
    --build "${_build}")
if(SPAC_LLAMA_CPP_DIR)
    list(APPEND _command --local "${SPAC_LLAMA_CPP_DIR}")
endif()
execute_process(COMMAND ${_command}
    RESULT_VARIABLE _result OUTPUT_VARIABLE _files ERROR_VARIABLE _error
    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_STRIP_TRAILING_WHITESPACE)
if(NOT _result EQUAL 0)
    message(FATAL_ERROR "${_error}")
endif()
string(REPLACE "\n" ";" SPAC_PATCHED_FILES "${_files}")
set(SPAC_LLAMA_SOURCE "${_build}/patched")
set(SPAC_LLAMA_PRISTINE "${_build}/pristine")

# CMake configures anew when a patch is edited or added, or when the pin moves.
file(GLOB _patches CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/patches/*.patch")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
    ${_patches} LLAMA_CPP_VERSION cmake/llama_source.py cmake/unified_diff.py)

file(STRINGS LLAMA_CPP_VERSION _pin REGEX "^version ")
string(REPLACE "version " "" SPAC_LLAMA_CPP_PYTHON_VERSION "${_pin}")
list(LENGTH SPAC_PATCHED_FILES _count)
message(STATUS "spac: llama.cpp of llama-cpp-python ${SPAC_LLAMA_CPP_PYTHON_VERSION}, ${_count} files patched")
