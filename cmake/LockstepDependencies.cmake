# Third-party libraries, all from the distribution by package name (see ./dev setup).

find_package(Threads REQUIRED)
find_package(absl CONFIG REQUIRED)
find_package(Protobuf REQUIRED)
find_package(gRPC CONFIG REQUIRED)
find_package(yaml-cpp CONFIG REQUIRED)
find_package(ZLIB REQUIRED)
find_package(SQLite3 REQUIRED)
# Decodes whole gzip files about three times as fast as zlib; its package has no CMake file.
find_path(DEFLATE_INCLUDE_DIR libdeflate.h REQUIRED)
find_library(DEFLATE_LIBRARY deflate REQUIRED)
add_library(lockstep_deflate INTERFACE)
target_include_directories(lockstep_deflate SYSTEM INTERFACE ${DEFLATE_INCLUDE_DIR})
target_link_libraries(lockstep_deflate INTERFACE ${DEFLATE_LIBRARY})
add_library(lockstep::deflate ALIAS lockstep_deflate)
# Headers only (nlohmann-json3-dev).
find_path(JSON_INCLUDE_DIR nlohmann/json.hpp REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto SSL)
if(LOCKSTEP_TESTS)
  find_package(GTest CONFIG REQUIRED)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
endif()

# nvcc is found on PATH or in the toolkit's usual place. Without it the CUDA module is left out and
# its null object takes its place.
find_program(LOCKSTEP_NVCC nvcc HINTS /usr/local/cuda/bin $ENV{CUDA_HOME}/bin)
option(LOCKSTEP_CUDA "Build the CUDA module when nvcc is there" ON)
if(LOCKSTEP_CUDA AND NOT LOCKSTEP_NVCC)
  message(STATUS "CUDA: nvcc not found, the CUDA module is left out")
  set(LOCKSTEP_CUDA OFF CACHE BOOL "" FORCE)
endif()
