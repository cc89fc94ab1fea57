// SPDX-License-Identifier: Apache-2.0
#include "data/loader.h"

#include <atomic>
#include <chrono>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/check.h"
#include "common/mapped_bytes.h"
#include "common/philox.h"
#include "common/round_up.h"
#include "common/status.h"
#include "common/thread.h"

namespace lockstep::data {
namespace {

constexpr int64_t kCacheLine = 64;
// Batches that Next returned and that are still valid.
constexpr int64_t kHeld = 2;

int64_t Nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// A batch's place in the ring. Batches are numbered 0, 1, 2, ... over the loader's life; number q
// lies in slot q modulo the ring's length.
struct Slot {
  std::vector<void*> fields;
  std::vector<const void*> read_only;  // the same
  Batch batch;
  absl::Status status;
  // The batch's number + 1, stored last by who made it; 0: not ready.
  alignas(kCacheLine) std::atomic<int64_t> ready{0};
};

class RingLoader : public Loader {
 public:
  RingLoader(const Dataset* dataset, const DistributedSampler* sampler, const Options& options)
      : dataset_(*dataset),
        sampler_(*sampler),
        options_(options),
        // Without threads nothing is made ahead: a ring as short as can be stays in the caches.
        slots_(static_cast<size_t>(options.threads == 0 ? kHeld : options.prefetch + kHeld)),
        indices_(static_cast<size_t>(options.threads + 1)) {}

  // Allocates and starts the threads.
  absl::Status Start();
  ~RingLoader() override;

  void Restart(int64_t step, int shard_begin, int shard_end) override;
  absl::StatusOr<Batch> Next() override;
  absl::Span<uint8_t> memory() override { return memory_.writable(); }
  double wait_seconds() const override { return wait_seconds_; }

 private:
  Slot& SlotOf(int64_t number) { return slots_[static_cast<size_t>(number) % slots_.size()]; }
  bool IsReady(int64_t number) {
    return SlotOf(number).ready.load(std::memory_order_acquire) == number + 1;
  }
  // Returns whether there is a batch to make now.
  bool CanClaim() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !restarting_ && claimed_ < end_ &&
           claimed_ < taken_.load(std::memory_order_acquire) + options_.prefetch;
  }
  // Takes the next batch to be made. The caller makes it and calls Finish.
  Slot* Claim() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Make(Slot* slot, std::vector<int64_t>* indices);
  void Finish(Slot* slot);
  void Work(std::vector<int64_t>* indices);
  void MakeUntilReady(int64_t number);

  const Dataset& dataset_;
  const DistributedSampler& sampler_;
  const Options options_;
  MappedBytes memory_;
  std::vector<Slot> slots_;
  std::vector<std::vector<int64_t>> indices_;  // one for each thread, the last for the consumer

  absl::Mutex mutex_;
  absl::CondVar work_;  // for threads: CanClaim may have become true, or the end
  absl::CondVar done_;  // for the consumer: a batch was finished
  int64_t claimed_ ABSL_GUARDED_BY(mutex_) = 0;  // the next number to be made
  int64_t end_ ABSL_GUARDED_BY(mutex_) = 0;      // no numbers from here on
  int in_work_ ABSL_GUARDED_BY(mutex_) = 0;
  int idle_ ABSL_GUARDED_BY(mutex_) = 0;  // threads that wait for work
  bool consumer_waits_ ABSL_GUARDED_BY(mutex_) = false;
  bool restarting_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  // Number `base_` is shard `shard_begin_` at `step_`.
  int64_t base_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t step_ ABSL_GUARDED_BY(mutex_) = 0;
  int shard_begin_ ABSL_GUARDED_BY(mutex_) = 0;
  int shard_count_ ABSL_GUARDED_BY(mutex_) = 0;

  // The next number that Next returns; written by the consumer alone, released after its reads of
  // the batches that it holds no longer: who sees it may write over those.
  std::atomic<int64_t> taken_{0};
  int64_t consumer_end_ = -1;  // the consumer's copy of end_; -1 before the first Restart
  double wait_seconds_ = 0;

  std::vector<Thread> threads_;  // last: joined before anything else goes
};

absl::Status RingLoader::Start() {
  const int64_t samples = sampler_.samples_per_shard();
  int64_t slot_bytes = 0;
  for (const FieldSpec& field : dataset_.fields()) {
    slot_bytes += RoundUp(samples * static_cast<int64_t>(field.bytes()), kCacheLine);
  }
  LS_ASSIGN_OR_RETURN(memory_,
                      MappedBytes::Anonymous(static_cast<size_t>(slot_bytes) * slots_.size()));
  uint8_t* next = memory_.writable().data();
  for (Slot& slot : slots_) {
    for (const FieldSpec& field : dataset_.fields()) {
      slot.fields.push_back(next);
      slot.read_only.push_back(next);
      next += RoundUp(samples * static_cast<int64_t>(field.bytes()), kCacheLine);
    }
  }
  for (std::vector<int64_t>& indices : indices_) indices.resize(static_cast<size_t>(samples));
  threads_.reserve(static_cast<size_t>(options_.threads));
  try {
    for (int i = 0; i < options_.threads; ++i) {
      std::vector<int64_t>* indices = &indices_[static_cast<size_t>(i)];
      threads_.emplace_back(absl::StrCat("loader-", i), [this, indices] { Work(indices); });
    }
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(absl::StrCat("start a loader thread: ", error.what()));
  }
  return absl::OkStatus();
}

RingLoader::~RingLoader() {
  {
    absl::MutexLock lock(&mutex_);
    ending_ = true;
  }
  work_.SignalAll();
  threads_.clear();
}

Slot* RingLoader::Claim() {
  const int64_t number = claimed_++;
  ++in_work_;
  Slot& slot = SlotOf(number);
  slot.ready.store(0, std::memory_order_relaxed);
  slot.batch.step = step_ + (number - base_) / shard_count_;
  slot.batch.shard = shard_begin_ + static_cast<int>((number - base_) % shard_count_);
  return &slot;
}

void RingLoader::Make(Slot* slot, std::vector<int64_t>* indices) {
  Batch& batch = slot->batch;
  const int64_t begin = options_.on_made ? Nanoseconds() : 0;
  sampler_.Indices(batch.step, batch.shard, absl::MakeSpan(*indices));
  slot->status = dataset_.ReadBatch({*indices, batch.step, batch.shard}, slot->fields);
  batch.samples = static_cast<int64_t>(indices->size());
  batch.fields = slot->read_only;
  batch.ids_hash = HashIds(*indices);
  if (options_.on_made) {
    options_.on_made(static_cast<int>(indices - indices_.data()), batch.step, begin, Nanoseconds());
  }
}

void RingLoader::Finish(Slot* slot) {
  absl::MutexLock lock(&mutex_);
  // The number is found again from the batch: Restart waits for batches in work before it changes
  // base_.
  const int64_t number =
      base_ + (slot->batch.step - step_) * shard_count_ + (slot->batch.shard - shard_begin_);
  slot->ready.store(number + 1, std::memory_order_release);
  --in_work_;
  if (consumer_waits_) done_.Signal();
}

void RingLoader::Work(std::vector<int64_t>* indices) {
  while (true) {
    Slot* slot;
    {
      absl::MutexLock lock(&mutex_);
      while (!ending_ && !CanClaim()) {
        ++idle_;
        work_.Wait(&mutex_);
        --idle_;
      }
      if (ending_) return;
      slot = Claim();
    }
    Make(slot, indices);
    Finish(slot);
  }
}

void RingLoader::Restart(int64_t step, int shard_begin, int shard_end) {
  LS_CHECK(step >= 0 && shard_begin >= 0 && shard_begin <= shard_end) << step;
  {
    absl::MutexLock lock(&mutex_);
    restarting_ = true;
    consumer_waits_ = true;
    while (in_work_ > 0) done_.Wait(&mutex_);
    consumer_waits_ = false;
    restarting_ = false;
    const int64_t next = taken_.load(std::memory_order_relaxed);
    for (int64_t number = next; number < claimed_; ++number) {
      SlotOf(number).ready.store(0, std::memory_order_relaxed);
    }
    claimed_ = next;
    base_ = next;
    step_ = step;
    shard_begin_ = shard_begin;
    shard_count_ = shard_end - shard_begin;
    const int64_t steps = options_.end_step > step ? options_.end_step - step : 0;
    end_ = next + steps * shard_count_;
    consumer_end_ = end_;
  }
  work_.SignalAll();
}

void RingLoader::MakeUntilReady(int64_t number) {
  const auto begin = std::chrono::steady_clock::now();
  while (!IsReady(number)) {
    Slot* slot = nullptr;
    {
      absl::MutexLock lock(&mutex_);
      if (CanClaim()) {
        slot = Claim();
      } else if (!IsReady(number)) {
        consumer_waits_ = true;
        done_.Wait(&mutex_);
        consumer_waits_ = false;
      }
    }
    if (slot == nullptr) continue;
    Make(slot, &indices_.back());
    Finish(slot);
  }
  wait_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

absl::StatusOr<Batch> RingLoader::Next() {
  LS_CHECK_GE(consumer_end_, 0) << "Next before Restart";
  const int64_t number = taken_.load(std::memory_order_relaxed);
  if (number >= consumer_end_) return absl::OutOfRangeError("no batches after the last step");
  if (!IsReady(number)) MakeUntilReady(number);
  const Slot& slot = SlotOf(number);
  if (!slot.status.ok()) return slot.status;
  const Batch batch = slot.batch;
  taken_.store(number + 1, std::memory_order_release);
  // Threads are woken when half of the ring is used up, not at every batch. Readiness of the batch
  // in the middle tells that without the lock.
  const int64_t middle = number + 1 + options_.prefetch / 2;
  if (options_.threads > 0 && middle < consumer_end_ && !IsReady(middle)) {
    bool wake;
    {
      absl::MutexLock lock(&mutex_);
      wake = idle_ > 0 && CanClaim();
    }
    if (wake) work_.SignalAll();
  }
  return batch;
}

}  // namespace

uint64_t HashIds(absl::Span<const int64_t> ids) {
  uint64_t h = ids.size();
  for (const int64_t id : ids) h = MixBits(h ^ MixBits(static_cast<uint64_t>(id)));
  return h;
}

absl::StatusOr<std::unique_ptr<Loader>> Loader::Create(const Dataset* dataset,
                                                       const DistributedSampler* sampler,
                                                       const Options& options) {
  LS_CHECK_GE(options.threads, 0);
  LS_CHECK_GE(options.prefetch, 2);
  auto loader = std::make_unique<RingLoader>(dataset, sampler, options);
  LS_RETURN_IF_ERROR(loader->Start());
  return loader;
}

}  // namespace lockstep::data
