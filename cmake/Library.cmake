# The one shared library: llama.cpp's objects and our rooms core, backend and session.
#
# Everything that is ELF-only is in this file and in exports.map. The file is called libllama.so because that is the
# name llama-cpp-python looks for; its SONAME is libspac-llama.so, so that the dynamic loader never takes another
# libllama for it; -Bsymbolic binds every call inside to the library itself, whatever else is loaded globally.

function(spac_room name)
    file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/csrc/${name}/*.cpp")
    if(NOT sources)
        return()
    endif()
    add_library(spac-${name} OBJECT ${sources})
    target_include_directories(spac-${name} PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}/csrc")
    target_include_directories(spac-${name} SYSTEM PRIVATE ${ARGN})
    target_compile_features(spac-${name} PRIVATE cxx_std_17)
    spac_warnings(spac-${name})
endfunction()

function(spac_warnings target)
    target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow)
    if(SPAC_WERROR)
        target_compile_options(${target} PRIVATE -Werror)
    endif()
endfunction()

spac_room(core)
spac_room(backend ${SPAC_GGML_INCLUDES})
spac_room(session ${SPAC_LLAMA_INCLUDES})
if(TARGET spac-session)
    # common's headers depend on how common itself was compiled.
    target_compile_definitions(spac-session PRIVATE $<TARGET_PROPERTY:llama-common,INTERFACE_COMPILE_DEFINITIONS>)
endif()

# Makes a shared library one that llama-cpp-python finds in `folder`, under a SONAME of its own.
function(spac_llama_library target soname folder)
    target_link_libraries(${target} PRIVATE Threads::Threads ${CMAKE_DL_LIBS} m)
    target_link_options(${target} PRIVATE "LINKER:-soname,${soname}" "LINKER:-Bsymbolic" "LINKER:--no-undefined"
        "LINKER:--exclude-libs,ALL" "LINKER:--version-script=${CMAKE_CURRENT_SOURCE_DIR}/cmake/exports.map")
    set_target_properties(${target} PROPERTIES OUTPUT_NAME llama NO_SONAME ON LINKER_LANGUAGE CXX
        LINK_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/cmake/exports.map" LIBRARY_OUTPUT_DIRECTORY "${folder}")
endfunction()

if(SPAC_INPLACE)
    set(SPAC_PACKAGE_OUTPUT "${CMAKE_CURRENT_SOURCE_DIR}/python/spac")
else()
    set(SPAC_PACKAGE_OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/spac")
endif()

add_library(spac-llama SHARED)
foreach(_target IN LISTS SPAC_LLAMA_TARGETS)
    target_sources(spac-llama PRIVATE $<TARGET_OBJECTS:${_target}>)
endforeach()
foreach(_room core backend session)
    if(TARGET spac-${_room})
        target_sources(spac-llama PRIVATE $<TARGET_OBJECTS:spac-${_room}>)
    endif()
endforeach()
spac_llama_library(spac-llama libspac-llama.so "${SPAC_PACKAGE_OUTPUT}/lib")
target_link_libraries(spac-llama PRIVATE cpp-httplib)
if(SPAC_WITH_CUDA)
    spac_link_cuda(spac-llama)
endif()
install(TARGETS spac-llama LIBRARY DESTINATION spac/lib COMPONENT spac)

# The bindings: they see spac's headers and pybind11, neither llama.cpp nor ggml.
file(GLOB _bindings CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/csrc/bindings/*.cpp")
if(_bindings)
    pybind11_add_module(_core MODULE NO_EXTRAS ${_bindings})
    target_include_directories(_core PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}/csrc")
    target_compile_features(_core PRIVATE cxx_std_17)
    target_compile_definitions(_core PRIVATE
        SPAC_VERSION="${SPAC_VERSION}" SPAC_LLAMA_CPP_PYTHON_VERSION="${SPAC_LLAMA_CPP_PYTHON_VERSION}")
    target_link_libraries(_core PRIVATE spac-llama)
    spac_warnings(_core)
    # No RPATH: spac/_library.py has loaded the library by the time the loader looks for libspac-llama.so.
    set_target_properties(_core PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${SPAC_PACKAGE_OUTPUT}" SKIP_BUILD_RPATH ON
        INSTALL_RPATH "")
    install(TARGETS _core LIBRARY DESTINATION spac COMPONENT spac)
endif()
