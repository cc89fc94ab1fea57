// SPDX-License-Identifier: Apache-2.0
// Streams, events, memory and graphs, as the table names them.
#include "engine/cuda/kernels/runtime.h"

#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>

namespace lockstep::engine::cuda {
namespace {

Code CodeOf(cudaError_t error) {
  if (error != cudaSuccess) cudaGetLastError();  // or the next call would tell it again
  return static_cast<Code>(error);
}
cudaStream_t StreamOf(Stream stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t EventOf(Event event) { return static_cast<cudaEvent_t>(event); }

const char* ErrorText(Code code) { return cudaGetErrorString(static_cast<cudaError_t>(code)); }

Code DeviceCount(int* count) { return CodeOf(cudaGetDeviceCount(count)); }

// "GPU-01234567-89ab-...", as nvidia-smi writes it. The UUID of an instance of a GPU is the
// instance's, and the runtime tells it from a GPU by the name alone: "NVIDIA H200 MIG 1g.18gb".
void WriteUuid(const cudaUUID_t& uuid, const char* name, char (&text)[64]) {
  const bool instance = std::strstr(name, " MIG ") != nullptr;
  char* at = text + std::snprintf(text, sizeof(text), "%s", instance ? "MIG" : "GPU");
  for (int i = 0; i < 16; ++i) {
    const bool dash = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
    at += std::snprintf(at, 8, "%s%02x", dash ? "-" : "",
                        static_cast<unsigned>(static_cast<unsigned char>(uuid.bytes[i])));
  }
}

Code Properties(int device, DeviceProperties* properties) {
  cudaDeviceProp from;
  cudaError_t error = cudaGetDeviceProperties(&from, device);
  if (error != cudaSuccess) return CodeOf(error);
  DeviceProperties to;
  std::snprintf(to.name, sizeof(to.name), "%s", from.name);
  WriteUuid(from.uuid, from.name, to.uuid);
  to.compute_major = from.major;
  to.compute_minor = from.minor;
  to.multiprocessors = from.multiProcessorCount;
  to.total_bytes = from.totalGlobalMem;
  error = cudaRuntimeGetVersion(&to.runtime_version);
  if (error == cudaSuccess) error = cudaDriverGetVersion(&to.driver_version);
  if (error != cudaSuccess) return CodeOf(error);
  *properties = to;
  return 0;
}

Code SetDevice(int device) { return CodeOf(cudaSetDevice(device)); }
Code MemoryInfo(size_t* free_bytes, size_t* total_bytes) {
  return CodeOf(cudaMemGetInfo(free_bytes, total_bytes));
}
Code Allocate(size_t bytes, void** pointer) { return CodeOf(cudaMalloc(pointer, bytes)); }
Code Release(void* pointer) { return CodeOf(cudaFree(pointer)); }
Code AllocatePinned(size_t bytes, void** pointer) {
  return CodeOf(cudaHostAlloc(pointer, bytes, cudaHostAllocDefault));
}
Code ReleasePinned(void* pointer) { return CodeOf(cudaFreeHost(pointer)); }
Code Pin(void* pointer, size_t bytes) {
  return CodeOf(cudaHostRegister(pointer, bytes, cudaHostRegisterDefault));
}
Code Unpin(void* pointer) { return CodeOf(cudaHostUnregister(pointer)); }

Code CreateStream(Stream* stream) {
  cudaStream_t made = nullptr;
  const Code code = CodeOf(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
  if (code == 0) *stream = made;
  return code;
}
Code DestroyStream(Stream stream) { return CodeOf(cudaStreamDestroy(StreamOf(stream))); }
Code WaitStream(Stream stream) { return CodeOf(cudaStreamSynchronize(StreamOf(stream))); }
Code CreateEvent(Event* event) {
  cudaEvent_t made = nullptr;
  const Code code = CodeOf(cudaEventCreateWithFlags(&made, cudaEventDisableTiming));
  if (code == 0) *event = made;
  return code;
}
Code CreateTimer(Event* event) {
  cudaEvent_t made = nullptr;
  const Code code = CodeOf(cudaEventCreateWithFlags(&made, cudaEventDefault));
  if (code == 0) *event = made;
  return code;
}
Code Elapsed(Event begin, Event end, float* milliseconds) {
  return CodeOf(cudaEventElapsedTime(milliseconds, EventOf(begin), EventOf(end)));
}
Code DestroyEvent(Event event) { return CodeOf(cudaEventDestroy(EventOf(event))); }
Code RecordEvent(Event event, Stream stream) {
  return CodeOf(cudaEventRecord(EventOf(event), StreamOf(stream)));
}
Code StreamWaits(Stream stream, Event event) {
  return CodeOf(cudaStreamWaitEvent(StreamOf(stream), EventOf(event), 0));
}
Code WaitEvent(Event event) { return CodeOf(cudaEventSynchronize(EventOf(event))); }
int EventReached(Event event) {
  const cudaError_t error = cudaEventQuery(EventOf(event));
  if (error == cudaSuccess) return 1;
  return error == cudaErrorNotReady ? 0 : -CodeOf(error);
}

Code Copy(void* to, const void* from, size_t bytes, Stream stream) {
  return CodeOf(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, StreamOf(stream)));
}
Code Clear(void* pointer, size_t bytes, Stream stream) {
  return CodeOf(cudaMemsetAsync(pointer, 0, bytes, StreamOf(stream)));
}

// Thread-local: other threads may call CUDA meanwhile.
Code BeginCapture(Stream stream) {
  return CodeOf(cudaStreamBeginCapture(StreamOf(stream), cudaStreamCaptureModeThreadLocal));
}
Code EndCapture(Stream stream, Recording* recording) {
  cudaGraph_t recorded = nullptr;
  Code code = CodeOf(cudaStreamEndCapture(StreamOf(stream), &recorded));
  if (code != 0) return code;
  cudaGraphExec_t made = nullptr;
  code = CodeOf(cudaGraphInstantiate(&made, recorded, 0));
  cudaGraphDestroy(recorded);
  if (code == 0) *recording = made;
  return code;
}
Code LaunchGraph(Recording recording, Stream stream) {
  return CodeOf(cudaGraphLaunch(static_cast<cudaGraphExec_t>(recording), StreamOf(stream)));
}
Code DestroyGraph(Recording recording) {
  return CodeOf(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(recording)));
}

}  // namespace

const Runtime kRuntime = {
    .error_text = ErrorText,
    .device_count = DeviceCount,
    .properties = Properties,
    .set_device = SetDevice,
    .memory = MemoryInfo,
    .allocate = Allocate,
    .release = Release,
    .allocate_pinned = AllocatePinned,
    .release_pinned = ReleasePinned,
    .pin = Pin,
    .unpin = Unpin,
    .create_stream = CreateStream,
    .destroy_stream = DestroyStream,
    .wait_stream = WaitStream,
    .create_event = CreateEvent,
    .destroy_event = DestroyEvent,
    .record_event = RecordEvent,
    .stream_waits = StreamWaits,
    .wait_event = WaitEvent,
    .create_timer = CreateTimer,
    .elapsed = Elapsed,
    .event_reached = EventReached,
    .copy = Copy,
    .clear = Clear,
    .begin_capture = BeginCapture,
    .end_capture = EndCapture,
    .launch_graph = LaunchGraph,
    .destroy_graph = DestroyGraph,
};

}  // namespace lockstep::engine::cuda
