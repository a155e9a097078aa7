# Links the libraries so that they run on an older glibc than this machine's. Defines spac_old_glibc().
#
# The linker takes the newest version of each symbol that the C library at hand has. So old_glibc.py makes libraries
# that have the versions of an older glibc, for the linker only. old_glibc.c has the functions that an older glibc
# lacks. The C++ library is linked statically, because an older system's is older too.

set(SPAC_GLIBC OFF CACHE STRING "oldest glibc that the libraries have to run on, such as 2.28, for wheels (OFF: this machine's)")

if(SPAC_GLIBC)
    set(_stubs "${CMAKE_CURRENT_BINARY_DIR}/glibc-${SPAC_GLIBC}")
    execute_process(COMMAND "${Python_EXECUTABLE}" "${CMAKE_CURRENT_LIST_DIR}/old_glibc.py" "${SPAC_GLIBC}" "${_stubs}"
        --cc "${CMAKE_C_COMPILER}" --nm "${CMAKE_NM}"
        RESULT_VARIABLE _result ERROR_VARIABLE _error ERROR_STRIP_TRAILING_WHITESPACE)
    if(NOT _result EQUAL 0)
        message(FATAL_ERROR "SPAC_GLIBC=${SPAC_GLIBC}: ${_error}")
    endif()
    add_library(spac-old-glibc OBJECT "${CMAKE_CURRENT_LIST_DIR}/old_glibc.c")
    set_target_properties(spac-old-glibc PROPERTIES POSITION_INDEPENDENT_CODE ON C_VISIBILITY_PRESET hidden)
endif()

# Links a shared library for the glibc of SPAC_GLIBC. Before 2.34, threads and dlopen were libraries of their own.
function(spac_old_glibc target)
    if(SPAC_GLIBC)
        target_sources(${target} PRIVATE $<TARGET_OBJECTS:spac-old-glibc>)
        target_link_options(${target} PRIVATE -static-libstdc++ "-L${CMAKE_BINARY_DIR}/glibc-${SPAC_GLIBC}"
            LINKER:--push-state,--no-as-needed -lpthread -ldl -lrt LINKER:--pop-state)
    endif()
endfunction()
