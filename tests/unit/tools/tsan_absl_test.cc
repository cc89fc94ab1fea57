// SPDX-License-Identifier: Apache-2.0
// Waits on conditions from two threads, in every way that Abseil offers: ThreadSanitizer must find
// nothing here, and must find the race that is really there (see CMakeLists.txt).
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
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

// Threads that wait are told one after the other, each at the place in memory of the one before.
int Told() {
  constexpr int kTimes = 200;
  absl::Mutex mu;
  absl::Notification* waiting = nullptr;  // under mu
  std::thread teller([&] {
    for (int i = 0; i < kTimes; ++i) {
      const auto asked = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return waiting != nullptr; };
      mu.LockWhen(absl::Condition(&asked));
      absl::Notification* const notification = std::exchange(waiting, nullptr);
      mu.Unlock();
      // Time for the other one to be asleep, so that its condition is evaluated here.
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      notification->Notify();
    }
  });
  for (int i = 0; i < kTimes; ++i) {
    absl::Notification told;
    {
      absl::MutexLock lock(&mu);
      waiting = &told;
    }
    told.WaitForNotification();
    if (!told.HasBeenNotified()) return 1;
  }
  teller.join();
  return 0;
}

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
  if (argc > 1 && std::strcmp(argv[1], "race") == 0) return Racing();
  if (argc > 1 && std::strcmp(argv[1], "told") == 0) return Told();
  return Guarded();
}
