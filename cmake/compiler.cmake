# SPDX-License-Identifier: Apache-2.0
# How everything here is compiled: language level, target machine, sanitizers, coverage, compiler cache.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

# Programs look for shared libraries in ../lib first, also for what those need in turn (hence the old tag): so it is
# in the build folder and in a bundle.
set(CMAKE_BUILD_RPATH "$ORIGIN/../lib")
set(CMAKE_BUILD_RPATH_USE_ORIGIN ON)
add_link_options(-Wl,--disable-new-dtags)

# The compiler cache answers for any clone of this tree, wherever it lies: paths below the tree reach the compiler as
# relative ones, the working folder is no part of the hash, and objects name no folder (prefix maps). Precompiled headers
# need the relaxed checks; the headers themselves stay part of the hash. What it may not relax: the content of a header.
find_program(PEERLANE_CCACHE ccache)
if(PEERLANE_CCACHE)
  set(PEERLANE_LAUNCHER env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime,gcno_cwd ${PEERLANE_CCACHE})
  foreach(language C CXX CUDA)
    if(NOT CMAKE_${language}_COMPILER_LAUNCHER)
      set(CMAKE_${language}_COMPILER_LAUNCHER ${PEERLANE_LAUNCHER})
    endif()
  endforeach()
endif()
# ${PROJECT_SOURCE_DIR}/x/y.cc is ../x/y.cc for a debugger that was started in the build folder.
set(PEERLANE_PREFIX_MAP -ffile-prefix-map=${PROJECT_SOURCE_DIR}=..)
add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:${PEERLANE_PREFIX_MAP}>")

# A hundred test programs, four times: GNU ld takes four times as long as mold.
find_program(PEERLANE_MOLD mold)
if(PEERLANE_MOLD)
  add_link_options($<$<LINK_LANGUAGE:C,CXX>:-fuse-ld=mold>)
endif()

# Our own targets link this; it never reaches whoever links the installed library.
add_library(peerlane_strict INTERFACE)
target_compile_options(peerlane_strict INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-march=x86-64-v2;-Wall;-Wextra;-Wshadow;-Werror>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 sees these in its own std::string once it is inlined; the address sanitizer finds the real ones.
  target_compile_options(peerlane_strict INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Wno-array-bounds;-Wno-restrict;-Wno-stringop-overflow;-Wno-stringop-overread>
    $<$<BOOL:${PEERLANE_SANITIZE}>:-Wno-maybe-uninitialized>)
endif()

if(PEERLANE_SANITIZE STREQUAL "address")
  # Left out: what the address sanitizer finds as well, at half the time to compile (null, object-size,
  # pointer-overflow), and casts between classes, of which there are none (vptr). GCC spends another quarter on
  # alignment, which the fuzzers, built by clang, watch where bytes come from outside.
  add_compile_options(-fsanitize=address,undefined -fno-sanitize=null,object-size,pointer-overflow,vptr
                      $<$<CXX_COMPILER_ID:GNU>:-fno-sanitize=alignment>
                      -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
elseif(PEERLANE_SANITIZE STREQUAL "thread")
  # GCC warns about std::atomic_thread_fence under this sanitizer; the tests decide, not the warning.
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(peerlane_strict INTERFACE -Wno-tsan)
  endif()
elseif(PEERLANE_SANITIZE)
  message(FATAL_ERROR "PEERLANE_SANITIZE is '${PEERLANE_SANITIZE}'; accepted: address, thread, or empty")
endif()

if(PEERLANE_COVERAGE)
  # The library is what is counted; for the rest linking suffices. Counting is atomic because of -pthread: the
  # compiler cache does not know -fprofile-update=atomic and would keep nothing. Nor may the build folder stand in the
  # objects, so counts go to the root given by GCOV_PREFIX (scripts/test.sh).
  set(PEERLANE_COVERAGE_OPTIONS --coverage -pthread -fprofile-dir=/counts)
  add_link_options(--coverage)
endif()

if(PEERLANE_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES Clang)
    message(FATAL_ERROR "PEERLANE_FUZZ needs clang (libFuzzer); the compiler is ${CMAKE_CXX_COMPILER_ID}")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

# Half of the time to compile a file goes into the standard library's headers. Where this is on, a file that lacks
# an include still compiles; the tsan build, where it is off, finds it.
option(PEERLANE_PRECOMPILE "Parse the standard headers once for each library" OFF)
function(peerlane_precompile TARGET)
  # clang's precompiled headers name the folder they were made in: no other clone could take them from the cache.
  if(PEERLANE_PRECOMPILE AND NOT CMAKE_CXX_COMPILER_ID MATCHES Clang)
    target_precompile_headers(${TARGET} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:<cmake/standard_headers.h$<ANGLE-R>>)
  endif()
endfunction()

# Two thirds of the time to compile a file goes into headers, at -O3 as well. So the release, asan and fuzz presets compile
# the files of a folder as one, and names that are a file's own must differ within a folder. Our own lists instead of CMake's, which
# know no CUDA and name the clone that they lie in, so that no other could take the objects from the cache. The tsan and
# dev presets compile each file alone and without precompiled headers: there a missing include is found.
option(PEERLANE_UNITY "Compile the files of a folder as one" OFF)
if(PEERLANE_UNITY)
  add_link_options(LINKER:--gc-sections)
endif()
# For the folder that made TARGET, once all its sources are known. -O3 costs a quarter more than -O2 to compile, and buys
# something in loops over blocks and bytes only: folders ON_THE_PATH get it. Those OFF_THE_PATH set up, or wait for the kernel
# anyway; they get -O1, which takes half of the time. WHOLE: all folders in one file, and no code of it has to be fast.
function(peerlane_unite TARGET)
  if(NOT PEERLANE_UNITY)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 1 unite "WHOLE" "" "ON_THE_PATH;OFF_THE_PATH")
  # Together files shall become what they are alone: GCC inlines less in a large unit, and linkers take whole objects
  # out of a library, also for one function. Nobody replaces functions of ours by others of the same name, so they may be
  # inlined in a shared library, too.
  target_compile_options(${TARGET} PRIVATE
    $<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=large-unit-insns=200000;-ffunction-sections;-fdata-sections;-fno-semantic-interposition>)
  set(most 16)  # files in one
  set(units)
  get_target_property(sources ${TARGET} SOURCES)
  foreach(source IN LISTS sources)
    cmake_path(ABSOLUTE_PATH source)
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE name)
    if(NOT name MATCHES "^[^.].*\\.(cc|cu)$")
      continue()  # a header, objects
    endif()
    cmake_path(GET name EXTENSION LAST_ONLY language)
    cmake_path(GET name PARENT_PATH folder)
    set(level -O2)
    if(folder IN_LIST unite_ON_THE_PATH)
      set(level -O3)
    elseif(folder IN_LIST unite_OFF_THE_PATH)
      set(level -O1)
    endif()
    if(unite_WHOLE)
      set(folder whole)
      set(level -O0)
    endif()
    string(MAKE_C_IDENTIFIER ${folder} folder)
    list(APPEND files_${folder}_${language} ${name})
    list(LENGTH files_${folder}_${language} count)
    math(EXPR part "(${count} - 1) / ${most}")
    set(unit ${folder}_${part}${language})
    set(level_${unit} ${level})
    list(APPEND units ${unit})
    # clang sees a header's own names hide those of the files before it; in the tsan build each file stands alone.
    if(CMAKE_CXX_COMPILER_ID MATCHES Clang AND NOT DEFINED content_${unit})
      set(content_${unit} "#pragma GCC diagnostic ignored \"-Wshadow\"\n")
    endif()
    string(APPEND content_${unit} "#include \"${name}\"\n")
    set_source_files_properties(${source} PROPERTIES HEADER_FILE_ONLY ON)
  endforeach()
  list(REMOVE_DUPLICATES units)
  foreach(unit IN LISTS units)
    set(file ${PROJECT_BINARY_DIR}/units/${TARGET}/${unit})
    file(CONFIGURE OUTPUT ${file} CONTENT "${content_${unit}}" @ONLY)
    target_sources(${TARGET} PRIVATE ${file})
    if(unit MATCHES "cc$" AND CMAKE_BUILD_TYPE STREQUAL "Release")
      set_source_files_properties(${file} TARGET_DIRECTORY ${TARGET} PROPERTIES COMPILE_OPTIONS ${level_${unit}})
    endif()
  endforeach()
endfunction()
