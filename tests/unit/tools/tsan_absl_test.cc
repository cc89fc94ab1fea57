// SPDX-License-Identifier: Apache-2.0
// Waits on conditions from two threads, in every way that Abseil offers: ThreadSanitizer must find
// nothing here, and must find the race that is really there (see CMakeLists.txt).
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

namespace {

struct Shared {
  absl::Mutex mu;
  absl::CondVar cv;
  std::vector<int> values ABSL_GUARDED_BY(mu);
};

void Produce(Shared* shared, absl::Notification* done, std::string* result) {
  for (int i = 0; i < 200; ++i) {
    absl::MutexLock lock(&shared->mu);
    shared->values.push_back(i);
    shared->cv.SignalAll();
  }
  *result = "produced";
  done->Notify();
}

bool Full(Shared* shared) ABSL_NO_THREAD_SAFETY_ANALYSIS { return shared->values.size() >= 150; }

int Guarded() {
  Shared shared;
  absl::Notification done;
  std::string result;
  std::thread producer(Produce, &shared, &done, &result);
  {
    absl::MutexLock lock(&shared.mu);
    while (shared.values.size() < 50) shared.cv.WaitWithTimeout(&shared.mu, absl::Seconds(1));
    while (!shared.mu.AwaitWithTimeout(absl::Condition(Full, &shared), absl::Seconds(1))) {
    }
    shared.values.push_back(-1);
  }
  done.WaitForNotification();
  const int size = static_cast<int>(result.size());
  producer.join();
  absl::ReaderMutexLock lock(&shared.mu);
  return size == 8 && shared.values.size() == 201 ? 0 : 1;
}

int Racing() {
  int value = 0;
  absl::Mutex mu;
  std::thread other([&] {
    for (int i = 0; i < 1000; ++i) ++value;
  });
  for (int i = 0; i < 1000; ++i) {
    absl::MutexLock lock(&mu);
    ++value;
  }
  other.join();
  std::printf("%d\n", value);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return argc > 1 && std::strcmp(argv[1], "race") == 0 ? Racing() : Guarded();
}
