# One target per folder, explicit sources.
#
#   lockstep_library(NAME common HDRS a.h SRCS a.cc DEPS absl::status)   -> target lockstep_common, alias lockstep::common
#   lockstep_program(NAME worker SRCS main.cc DEPS lockstep::worker)    -> bin/worker
#   lockstep_test(NAME common_clock_test SRCS clock_test.cc DEPS lockstep::common LABELS unit [TIMEOUT 30])
#
# Sanitizer presets build what is run there and nothing else: tests with one of these labels. Under
# ThreadSanitizer, which is for the libraries, no program either.
set(LOCKSTEP_SANITIZED_LABELS "unit|conformance|scenarios|sanitize")

# `programs` builds what a user runs, without tests; `lockstep_generated` the headers that tools which
# only read the sources need.
add_custom_target(programs)
add_custom_target(lockstep_generated)

# Precompiled headers (LOCKSTEP_PCH) shorten a build from nothing: what most sources include, made once
# and used by all targets. Each source still includes what it uses. Sources with flags that change the
# code's target (the SIMD variants) leave it out: their folder sets SKIP_PRECOMPILE_HEADERS.
if(LOCKSTEP_PCH)
  file(WRITE ${CMAKE_BINARY_DIR}/pch/pch.cc "")
  add_library(lockstep_pch OBJECT ${CMAKE_BINARY_DIR}/pch/pch.cc)
  target_link_libraries(lockstep_pch PRIVATE absl::statusor absl::str_format absl::time absl::span)
  target_precompile_headers(lockstep_pch PRIVATE
    <algorithm> <atomic> <cerrno> <cmath> <cstddef> <cstdint> <cstdlib> <cstring> <functional> <limits> <map>
    <memory> <optional> <string> <string_view> <utility> <variant> <vector>
    absl/status/status.h absl/status/statusor.h absl/strings/str_cat.h absl/strings/str_format.h
    absl/strings/str_join.h absl/time/time.h absl/types/span.h)
endif()

function(lockstep_precompiled target)
  if(LOCKSTEP_PCH)
    target_precompile_headers(${target} REUSE_FROM lockstep_pch)
  endif()
endfunction()

function(lockstep_library)
  cmake_parse_arguments(ARG "" "NAME" "HDRS;SRCS;DEPS;PRIVATE_DEPS" ${ARGN})
  set(target lockstep_${ARG_NAME})
  if(ARG_SRCS)
    add_library(${target} STATIC ${ARG_SRCS} ${ARG_HDRS})
    target_include_directories(${target} PUBLIC ${CMAKE_SOURCE_DIR})
    target_link_libraries(${target} PUBLIC ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS})
    lockstep_precompiled(${target})
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
  lockstep_precompiled(lockstep_bin_${ARG_NAME})
  set_target_properties(lockstep_bin_${ARG_NAME} PROPERTIES OUTPUT_NAME ${ARG_NAME})
  target_link_libraries(lockstep_bin_${ARG_NAME} PRIVATE ${ARG_DEPS})
  add_dependencies(programs lockstep_bin_${ARG_NAME})
  if(LOCKSTEP_SANITIZE STREQUAL "thread")
    set_target_properties(lockstep_bin_${ARG_NAME} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
endfunction()

function(lockstep_test)
  cmake_parse_arguments(ARG "" "NAME;TIMEOUT" "SRCS;DEPS;LABELS" ${ARGN})
  if(NOT LOCKSTEP_TESTS OR (LOCKSTEP_SANITIZE AND NOT "${ARG_LABELS}" MATCHES "${LOCKSTEP_SANITIZED_LABELS}"))
    return()
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 60)
  endif()
  add_executable(${ARG_NAME} ${ARG_SRCS})
  lockstep_precompiled(${ARG_NAME})
  set_target_properties(${ARG_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  add_test(NAME ${ARG_NAME} COMMAND ${ARG_NAME})
  set_tests_properties(${ARG_NAME} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
endfunction()
