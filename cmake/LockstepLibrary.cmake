# One target per folder, explicit sources.
#
#   lockstep_library(NAME common HDRS a.h SRCS a.cc DEPS absl::status)   -> target lockstep_common, alias lockstep::common
#     LIGHT: what it does takes no time (it asks, answers, prints); compiled with -O1, a quarter sooner
#     LIGHT_SRCS c.cc: more of its sources, those of which that holds; sanitizers do not optimise them, half the time
#   lockstep_program(NAME worker SRCS main.cc DEPS lockstep::worker)    -> bin/worker
#   lockstep_test(NAME common_clock_test SRCS clock_test.cc DEPS lockstep::common LABELS unit [TIMEOUT 30])
#
# Sanitizer presets build what is run there and nothing else: tests with one of these labels and the
# libraries that they use. ThreadSanitizer is for tests of what has threads, and for no program.
if(LOCKSTEP_SANITIZE STREQUAL "thread")
  set(LOCKSTEP_SANITIZED_LABELS "threads")
else()
  set(LOCKSTEP_SANITIZED_LABELS "unit|conformance|scenarios|sanitize")
endif()

# `programs` builds what a user runs, without tests; `benchmarks` what ./dev bench runs beside it;
# `lockstep_generated` the headers that tools which only read the sources need.
add_custom_target(programs)
add_custom_target(benchmarks)
add_custom_target(lockstep_generated)

# Precompiled headers (LOCKSTEP_PCH) shorten a build from nothing, because reading headers is most of what
# compiling a file costs. lockstep_precompile(TARGET SET) gives a target one of seven sets: base, light (as base, with the
# flags of light sources), proto (base and the protocol), grpc (that and gRPC, which has flags of its own), test (base
# and GoogleTest), test_proto (that and the protocol) or conformance (as test, with the flags of those tests).
# Each source still includes what it uses. Sources with flags of their own (SIMD variants, -O3) leave it out,
# or gcc 12 crashes: their folder sets SKIP_PRECOMPILE_HEADERS.
set(LOCKSTEP_PRECOMPILED_base <algorithm> <atomic> <cmath> <cstdint> <cstring> <functional> <limits> <map>
    <memory> <optional> <string> <string_view> <utility> <variant> <vector> <absl/status/status.h>
    <absl/status/statusor.h> <absl/strings/str_cat.h> <absl/synchronization/mutex.h> <absl/time/time.h>
    <absl/types/span.h>)
set(LOCKSTEP_PRECOMPILED_light ${LOCKSTEP_PRECOMPILED_base})
set(LOCKSTEP_PRECOMPILED_proto ${LOCKSTEP_PRECOMPILED_base} <proto/job.pb.h> <proto/coordinator.pb.h>)
set(LOCKSTEP_PRECOMPILED_grpc ${LOCKSTEP_PRECOMPILED_proto} <proto/coordinator.grpc.pb.h> <grpcpp/grpcpp.h>)
set(LOCKSTEP_PRECOMPILED_test ${LOCKSTEP_PRECOMPILED_base} <gmock/gmock.h> <gtest/gtest.h>)
set(LOCKSTEP_PRECOMPILED_test_proto ${LOCKSTEP_PRECOMPILED_test} <proto/job.pb.h> <proto/coordinator.pb.h>)
set(LOCKSTEP_PRECOMPILED_conformance ${LOCKSTEP_PRECOMPILED_test})
function(lockstep_precompile target headers)
  if(NOT LOCKSTEP_PCH OR headers STREQUAL "")
    return()
  endif()
  set(owner lockstep_precompiled_${headers})
  if(NOT TARGET ${owner})
    file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/precompiled.cc CONTENT "int main() { return 0; }\n")
    # Of the users' kind: code of programs and of libraries is generated with other flags.
    if(headers MATCHES "test|conformance")
      add_executable(${owner} EXCLUDE_FROM_ALL ${CMAKE_BINARY_DIR}/precompiled.cc)
      target_link_libraries(${owner} PRIVATE GTest::gmock)
      target_compile_options(${owner} PRIVATE ${LOCKSTEP_${headers}_OPTIONS})
      lockstep_compile_as_test(${owner})
    else()
      add_library(${owner} STATIC EXCLUDE_FROM_ALL ${CMAKE_BINARY_DIR}/precompiled.cc)
    endif()
    target_link_libraries(${owner} PRIVATE absl::statusor absl::strings absl::synchronization absl::time absl::span)
    if(headers MATCHES "proto|grpc|light")
      target_compile_options(${owner} PRIVATE ${LOCKSTEP_PROTOCOL_OPTIONS})
    endif()
    if(headers MATCHES "proto|grpc")
      target_link_libraries(${owner} PRIVATE lockstep_proto)
      add_dependencies(${owner} lockstep_proto_files)
    endif()
    if(headers STREQUAL "grpc")
      target_link_libraries(${owner} PRIVATE lockstep_proto_grpc)
    endif()
    target_precompile_headers(${owner} PRIVATE ${LOCKSTEP_PRECOMPILED_${headers}})
  endif()
  target_precompile_headers(${target} REUSE_FROM ${owner})
endfunction()

# lockstep_compile_as_test(TARGET): with the compiler for tests. Clang takes half of GCC's time for code that is not
# optimised, and both follow one ABI; what is tested is compiled as users run it.
function(lockstep_compile_as_test target)
  if(LOCKSTEP_TEST_COMPILER)
    set_target_properties(${target} PROPERTIES
                          CXX_COMPILER_LAUNCHER "${CMAKE_SOURCE_DIR}/cmake/compile_with.sh;${LOCKSTEP_TEST_COMPILER}")
  endif()
endfunction()

# What speaks the protocol decides and waits; its loops are short. Sanitizers need not optimise it, which is a quarter to
# a third of the time to compile it.
set(LOCKSTEP_PROTOCOL_OPTIONS)
if(LOCKSTEP_SANITIZE)
  set(LOCKSTEP_PROTOCOL_OPTIONS -O0)
endif()

# The light sources of `target`: objects of their own kind, in the same archive.
function(lockstep_light_sources target)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  add_library(${target}_light OBJECT EXCLUDE_FROM_ALL ${ARG_SRCS})
  target_include_directories(${target}_light PRIVATE ${CMAKE_SOURCE_DIR})
  target_link_libraries(${target}_light PRIVATE ${ARG_DEPS})
  target_compile_options(${target}_light PRIVATE $<$<CONFIG:Release>:-O1> ${LOCKSTEP_PROTOCOL_OPTIONS})
  if(LOCKSTEP_SANITIZE)
    lockstep_precompile(${target}_light light)
  else()
    lockstep_precompile(${target}_light base)
  endif()
  if(LOCKSTEP_UNITY)
    cmake_language(EVAL CODE "cmake_language(DEFER CALL lockstep_unite ${target}_light)")
  endif()
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:${target}_light>)
endfunction()

function(lockstep_library)
  cmake_parse_arguments(ARG "LIGHT" "NAME" "HDRS;SRCS;LIGHT_SRCS;DEPS;PRIVATE_DEPS" ${ARGN})
  set(target lockstep_${ARG_NAME})
  if(ARG_SRCS)
    add_library(${target} STATIC ${ARG_SRCS} ${ARG_HDRS})
    target_include_directories(${target} PUBLIC ${CMAKE_SOURCE_DIR})
    target_link_libraries(${target} PUBLIC ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS})
    if(LOCKSTEP_SANITIZE)
      set_target_properties(${target} PROPERTIES EXCLUDE_FROM_ALL ON)
    endif()
    set(speaks_protocol OFF)
    if("${ARG_DEPS};${ARG_PRIVATE_DEPS}" MATCHES "lockstep::(proto|job|coordinator|launcher|worker)")
      set(speaks_protocol ON)
      target_compile_options(${target} PRIVATE ${LOCKSTEP_PROTOCOL_OPTIONS})
    endif()
    if(ARG_LIGHT)
      target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
    endif()
    if(ARG_LIGHT_SRCS)
      lockstep_light_sources(${target} SRCS ${ARG_LIGHT_SRCS} DEPS ${ARG_DEPS} ${ARG_PRIVATE_DEPS})
    endif()
    if("${ARG_DEPS};${ARG_PRIVATE_DEPS}" MATCHES "proto_grpc|coordinator_etcd")
      lockstep_precompile(${target} grpc)
    elseif(speaks_protocol)
      lockstep_precompile(${target} proto)
    else()
      lockstep_precompile(${target} base)
    endif()
    if(LOCKSTEP_UNITY)  # once the folder has given its sources their flags
      cmake_language(EVAL CODE "cmake_language(DEFER CALL lockstep_unite ${target})")
    endif()
  else()
    add_library(${target} INTERFACE)
    target_include_directories(${target} INTERFACE ${CMAKE_SOURCE_DIR})
    target_link_libraries(${target} INTERFACE ${ARG_DEPS})
  endif()
  add_library(lockstep::${ARG_NAME} ALIAS ${target})
endfunction()

function(lockstep_program)
  cmake_parse_arguments(ARG "" "NAME" "SRCS;DEPS" ${ARGN})
  add_executable(lockstep_bin_${ARG_NAME} ${ARG_SRCS})
  target_compile_options(lockstep_bin_${ARG_NAME} PRIVATE -fPIC)  # as the headers were precompiled
  if("${ARG_DEPS}" MATCHES "lockstep::(proto|job|coordinator|launcher|worker)")
    target_compile_options(lockstep_bin_${ARG_NAME} PRIVATE ${LOCKSTEP_PROTOCOL_OPTIONS})
    if("${ARG_DEPS}" MATCHES "proto_grpc|coordinator_daemon")
      lockstep_precompile(lockstep_bin_${ARG_NAME} grpc)
    else()
      lockstep_precompile(lockstep_bin_${ARG_NAME} proto)
    endif()
  else()
    lockstep_precompile(lockstep_bin_${ARG_NAME} base)
  endif()
  set_target_properties(lockstep_bin_${ARG_NAME} PROPERTIES OUTPUT_NAME ${ARG_NAME})
  target_link_libraries(lockstep_bin_${ARG_NAME} PRIVATE ${ARG_DEPS})
  if(CMAKE_CURRENT_SOURCE_DIR STREQUAL "${CMAKE_SOURCE_DIR}/bench")
    add_dependencies(benchmarks lockstep_bin_${ARG_NAME})
  else()
    add_dependencies(programs lockstep_bin_${ARG_NAME})
  endif()
  if(LOCKSTEP_SANITIZE STREQUAL "thread")
    set_target_properties(lockstep_bin_${ARG_NAME} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
endfunction()

# Tests run for moments and are compiled by everybody: they are not optimised, what they test is. Conformance tests
# compute (but for the coordinator's): without optimisation their references take five times as long.
set(LOCKSTEP_conformance_OPTIONS $<$<CONFIG:Release>:-O1>)
set(LOCKSTEP_test_OPTIONS $<$<CONFIG:Release>:-O0>)
if(LOCKSTEP_SANITIZE)
  set(LOCKSTEP_test_OPTIONS -O0)
endif()
set(LOCKSTEP_test_proto_OPTIONS ${LOCKSTEP_test_OPTIONS})

function(lockstep_test)
  cmake_parse_arguments(ARG "LONG;HALVES" "NAME;TIMEOUT" "SRCS;DEPS;LABELS" ${ARGN})
  if(NOT LOCKSTEP_TESTS)
    return()
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(LOCKSTEP_SANITIZE)  # several times as slow, and several at a time
    math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * 3")
  endif()
  add_executable(${ARG_NAME} ${ARG_SRCS})
  set(kind test)
  if("${ARG_LABELS}" MATCHES "conformance" AND NOT "${ARG_DEPS}" MATCHES "coordinator")
    set(kind conformance)
  endif()
  target_compile_options(${ARG_NAME} PRIVATE ${LOCKSTEP_${kind}_OPTIONS})
  lockstep_compile_as_test(${ARG_NAME})
  if("${ARG_DEPS}" MATCHES "proto_grpc|coordinator_etcd")
    set(kind)  # gRPC's flags are not those that the headers were precompiled with
  elseif(kind STREQUAL "test" AND "${ARG_DEPS}" MATCHES "lockstep::(proto|job|coordinator|launcher|worker|checkpoint)")
    set(kind test_proto)
  endif()
  set_target_properties(${ARG_NAME} PROPERTIES LOCKSTEP_KIND "${kind}")
  lockstep_precompile(${ARG_NAME} "${kind}")
  set_target_properties(${ARG_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  if(LOCKSTEP_SANITIZE AND NOT "${ARG_LABELS}" MATCHES "${LOCKSTEP_SANITIZED_LABELS}")
    set_target_properties(${ARG_NAME} PROPERTIES EXCLUDE_FROM_ALL ON)
    return()
  endif()
  # What it is run by may be decided at the end of the folder: see LockstepUnity.cmake.
  set_target_properties(${ARG_NAME} PROPERTIES LOCKSTEP_RUNS_IN ${ARG_NAME} LOCKSTEP_FILTER "")
  set(runs ${ARG_NAME})
  if(ARG_HALVES)  # GoogleTest deals its tests over two runs, for two processors
    list(APPEND runs ${ARG_NAME}_half)
  endif()
  foreach(run IN LISTS runs)
    add_test(NAME ${run}
             COMMAND $<TARGET_FILE:$<TARGET_PROPERTY:${ARG_NAME},LOCKSTEP_RUNS_IN>>
                     "$<TARGET_PROPERTY:${ARG_NAME},LOCKSTEP_FILTER>" COMMAND_EXPAND_LISTS)
  endforeach()
  if(LOCKSTEP_UNITY)
    set_target_properties(${ARG_NAME} PROPERTIES EXCLUDE_FROM_ALL ON)
    get_property(tests DIRECTORY PROPERTY LOCKSTEP_TESTS_HERE)
    if(NOT tests)
      cmake_language(DEFER CALL lockstep_group_tests)
    endif()
    set_property(DIRECTORY APPEND PROPERTY LOCKSTEP_TESTS_HERE ${ARG_NAME})
  endif()
  set_tests_properties(${runs} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
  if("${ARG_DEPS}" MATCHES "lockstep::engine")  # they take and give back megabytes all the time: not to the kernel
    set(memory "MALLOC_MMAP_THRESHOLD_=1000000000;MALLOC_TRIM_THRESHOLD_=4000000000")
    set_tests_properties(${runs} PROPERTIES ENVIRONMENT "${memory}")
  endif()
  if(ARG_LONG)  # begins before the others, so that nobody waits for it at the end
    set_tests_properties(${runs} PROPERTIES COST 900)
  endif()
  if(ARG_HALVES)
    set_property(TEST ${ARG_NAME} APPEND PROPERTY ENVIRONMENT "GTEST_TOTAL_SHARDS=2" "GTEST_SHARD_INDEX=0")
    set_property(TEST ${ARG_NAME}_half APPEND PROPERTY ENVIRONMENT "GTEST_TOTAL_SHARDS=2" "GTEST_SHARD_INDEX=1")
  endif()
endfunction()
