# Options and flags that hold for every target.

option(LOCKSTEP_TESTS "Build the tests" ON)
option(LOCKSTEP_BENCH "Build the benchmarks" ON)
option(LOCKSTEP_FAULTS "Register the fault suite as a test" OFF)
option(LOCKSTEP_DEPLOY "Register the tests of deploy/ that need root and minutes" OFF)
set(LOCKSTEP_PYTORCH "" CACHE STRING "A Python with PyTorch, accelerate and transformers: registers their scripts as a test")
set(LOCKSTEP_KUBERNETES "" CACHE STRING "A Python with kubernetes-validate and kubeflow-trainer-api: registers the schemas as a test")
option(LOCKSTEP_FUZZ "Build the libFuzzer targets (clang only)" OFF)
option(LOCKSTEP_READ_ONLY "Nothing is built here: clang-tidy reads the sources" OFF)
option(LOCKSTEP_WERROR "Treat warnings as errors" OFF)
option(LOCKSTEP_STATIC_GRPC "Link gRPC, protobuf and Abseil statically: programs start faster" OFF)
set(LOCKSTEP_SANITIZE "" CACHE STRING "Sanitizers: empty, address (with undefined) or thread")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set_property(GLOBAL PROPERTY GLOBAL_DEPENDS_NO_CYCLES ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")

# The same source gives the same bits: no contraction of a*b+c that the source does not ask for
# (kernels that want an FMA call it by name), no value-changing float optimisation.
add_compile_options(-ffp-contract=off -fno-math-errno -Wall -Wextra -Wno-unused-parameter)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  add_compile_options(-Wthread-safety)
elseif(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC looks for garbage of its own so often that it takes a tenth of its time; it may keep 400 MB first.
  add_compile_options(--param=ggc-min-expand=200 --param=ggc-min-heapsize=400000)
endif()
if(LOCKSTEP_WERROR)
  add_compile_options(-Werror)
endif()

# Tests that leave out cases under a sanitizer ask for these: only GCC says it with macros of its own.
if(LOCKSTEP_SANITIZE STREQUAL "address")
  add_compile_definitions(LOCKSTEP_SANITIZE_ADDRESS)
  # Left out are the checks of every pointer that is followed: they double the time to compile, and
  # AddressSanitizer stops at a bad pointer by itself.
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g1
                      -fno-sanitize=null,alignment,vptr,object-size,pointer-overflow
                      -fno-sanitize=nonnull-attribute,returns-nonnull-attribute)
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")  # libraries that are loaded at run time have types of their own
    add_compile_options(-fno-sanitize=function)
  endif()
  add_link_options(-fsanitize=address,undefined)
elseif(LOCKSTEP_SANITIZE STREQUAL "thread")
  add_compile_definitions(LOCKSTEP_SANITIZE_THREAD)
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=thread)
endif()

if(LOCKSTEP_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "LOCKSTEP_FUZZ needs clang: -DCMAKE_CXX_COMPILER=clang++")
  endif()
  # libFuzzer is led by the branches that it sees taken, in the libraries first of all.
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined
                      -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=address,undefined)
endif()

# A fast linker and a compiler cache are used when they are there and never needed.
find_program(LOCKSTEP_CCACHE ccache)
if(LOCKSTEP_CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER ${LOCKSTEP_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${LOCKSTEP_CCACHE})
  set(from_nothing OFF)  # a cache shared by several clones is worth more, and does not go with it
else()
  set(LOCKSTEP_CCACHE "")  # it stands before commands of our own, too
  set(from_nothing ON)
endif()
option(LOCKSTEP_PCH "Precompile the headers that most sources include" ${from_nothing})
option(LOCKSTEP_UNITY "Compile several sources at a time, tests of a folder as one program" ${from_nothing})
# Tests are compiled with clang where there is one and nothing else is asked for: lockstep_compile_as_test.
set(LOCKSTEP_TEST_COMPILER)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT LOCKSTEP_CCACHE AND NOT LOCKSTEP_SANITIZE AND NOT CMAKE_CROSSCOMPILING)
  find_program(LOCKSTEP_CLANG clang++)
  if(LOCKSTEP_CLANG)
    set(LOCKSTEP_TEST_COMPILER ${LOCKSTEP_CLANG})
  endif()
endif()
find_program(LOCKSTEP_LLD ld.lld)
if(LOCKSTEP_LLD)
  add_link_options(-fuse-ld=lld)
endif()
add_link_options(-Wl,--as-needed)
