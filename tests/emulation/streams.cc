// SPDX-License-Identifier: Apache-2.0
// Streams, events and graphs of the emulated GPU. A stream is a queue of work; nothing runs beside
// anything else, but when queues are emptied is as a test wants it.
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "common/check.h"
#include "tests/emulation/emulation.h"
#include "tests/emulation/include/cuda_runtime.h"

using Work = std::function<void()>;

struct CUstream_st {
  std::deque<Work> work;
  int64_t given = 0;
  int64_t done = 0;
  bool running = false;
};
struct CUevent_st {
  double reached = 0;
  CUstream_st* stream = nullptr;  // that it was recorded in, after so much work
  int64_t after = 0;
};
struct CUgraph_st {
  std::vector<Work> work;
};
struct CUgraphExec_st {
  std::vector<Work> work;
};

namespace emulation {
namespace {

struct Queues {
  Streams streams = Streams::kEager;
  double milliseconds = 0;  // of the emulated time
  std::vector<Work>* capturing = nullptr;
  int64_t captures = 0;
  int64_t graph_launches = 0;
  int64_t submissions = 0;
  std::atomic<int64_t> waits = 0;  // loaders' threads read it
  int64_t given = 0;               // work of all streams
  int64_t fail_after = 0;          // 0: never
  std::string failure_file;
  bool failed = false;
};

Queues& queues() {
  static Queues& all = []() -> Queues& {
    static Queues made;
    if (const char* failure = std::getenv("LOCKSTEP_EMULATED_FAILURE"); failure != nullptr) {
      char* path = nullptr;
      made.fail_after = std::strtoll(failure, &path, 10);
      made.failure_file = *path == ' ' ? path + 1 : path;
    }
    return made;
  }();
  return all;
}

bool Fails() {
  Queues& all = queues();
  if (all.failed) return true;
  if (all.fail_after == 0 || ++all.given < all.fail_after) return false;
  all.fail_after = 0;
  all.failed = all.failure_file.empty() || ::unlink(all.failure_file.c_str()) == 0;
  return all.failed;
}

// Runs what is given to `stream` before `until` is done.
void RunUntil(CUstream_st* stream, int64_t until) {
  LS_CHECK(!stream->running || stream->done >= until) << "two streams wait for each other";
  stream->running = true;
  while (stream->done < until) {
    const Work work = std::move(stream->work.front());
    stream->work.pop_front();
    work();
    ++stream->done;
  }
  stream->running = false;
}

void Give(CUstream_st* stream, Work work) {
  if (stream == nullptr) return work();  // the default stream, of tests of single kernels
  stream->work.push_back(std::move(work));
  ++stream->given;
  if (queues().streams == Streams::kEager) RunUntil(stream, stream->given);
}

cudaError_t Result() { return queues().failed ? cudaErrorLaunchFailure : cudaSuccess; }

}  // namespace

cudaError_t Do(cudaStream_t stream, Work work) {
  if (Fails()) return cudaErrorLaunchFailure;
  if (queues().capturing != nullptr) {
    queues().capturing->push_back(std::move(work));
  } else {
    ++queues().submissions;
    Give(stream, std::move(work));
  }
  return cudaSuccess;
}

int64_t Captures() { return queues().captures; }
int64_t GraphLaunches() { return queues().graph_launches; }
int64_t Submissions() { return queues().submissions; }
int64_t Waits() { return queues().waits; }
void SetStreams(Streams streams) { queues().streams = streams; }
void FailAfter(int64_t count) {
  queues().given = 0;
  queues().fail_after = count;
}
void Repair() {
  queues().failed = false;
  queues().fail_after = 0;
}
void Spend(double milliseconds) { queues().milliseconds += milliseconds; }

}  // namespace emulation

using emulation::queues;

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (stream == nullptr) return emulation::Result();
  if (stream->done < stream->given) ++queues().waits;
  emulation::RunUntil(stream, stream->given);
  return emulation::Result();
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  // What was recorded before this call; an event that was not recorded is reached.
  CUstream_st* const other = event->stream;
  const int64_t after = event->after;
  if (other != nullptr && other != stream) {
    emulation::Give(stream, [=] { emulation::RunUntil(other, after); });
  }
  return emulation::Result();
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  emulation::Give(stream, [event] { event->reached = queues().milliseconds; });
  event->stream = stream;
  event->after = stream == nullptr ? 0 : stream->given;
  return emulation::Result();
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  *milliseconds = static_cast<float>(end->reached - begin->reached);
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) { return cudaEventQuery(event); }
// Whoever asks again and again waits.
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (event->stream == nullptr) return emulation::Result();
  if (event->stream->done < event->after) ++queues().waits;
  emulation::RunUntil(event->stream, event->after);
  return emulation::Result();
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  if (!emulation::CanCopy(to, bytes) || !emulation::CanCopy(from, bytes)) {
    return cudaErrorInvalidValue;
  }
  return emulation::Do(stream, [=] { std::memmove(to, from, bytes); });
}
cudaError_t cudaMemsetAsync(void* pointer, int value, size_t bytes, cudaStream_t stream) {
  return emulation::Do(stream, [=] { std::memset(pointer, value, bytes); });
}
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  LS_CHECK(queues().capturing == nullptr);
  queues().capturing = new std::vector<Work>;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  LS_CHECK(queues().capturing != nullptr);
  *graph = new CUgraph_st{std::move(*queues().capturing)};
  delete queues().capturing;
  queues().capturing = nullptr;
  ++queues().captures;
  return emulation::Result();
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = new CUgraphExec_st{graph->work};
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  ++queues().graph_launches;
  return emulation::Do(stream, [work = exec->work] {
    for (const Work& one : work) one();
  });
}
