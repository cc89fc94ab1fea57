// SPDX-License-Identifier: Apache-2.0
// Tells ThreadSanitizer about Abseil's locks. Debian builds Abseil without ThreadSanitizer, and its
// Mutex is made of atomics inside the library, so that everything a Mutex guards would look like a
// race. The linker's --wrap leads our calls of Abseil's functions here (see CMakeLists.txt for the
// list); each calls the real one between the annotations that an instrumented Abseil would make.
//
// Only in the tsan preset. Thread-safety: that of the wrapped functions.
#include <sanitizer/tsan_interface.h>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

extern "C" {
// The runtime's older interface: accesses in between are not recorded.
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
}

namespace {

using absl::Condition;
using absl::CondVar;
using absl::Duration;
using absl::Mutex;
using absl::Notification;
using absl::Time;

constexpr unsigned kTry = __tsan_mutex_try_lock;
constexpr unsigned kFailed = __tsan_mutex_try_lock_failed;
constexpr unsigned kRead = __tsan_mutex_read_lock;

// Abseil evaluates the conditions of waiters inside its calls, under a lock that ThreadSanitizer
// takes for released there.
class IgnoreReads {
 public:
  IgnoreReads() { AnnotateIgnoreReadsBegin(__FILE__, __LINE__); }
  ~IgnoreReads() { AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
};

// The real call gives the lock up and takes it again, as waiting does.
template <typename Call>
auto Reacquired(Mutex* mu, Call call) {
  struct Guard {
    explicit Guard(Mutex* mu) : mu(mu) {
      __tsan_mutex_pre_unlock(mu, 0);
      __tsan_mutex_post_unlock(mu, 0);
    }
    ~Guard() {
      __tsan_mutex_pre_lock(mu, 0);
      __tsan_mutex_post_lock(mu, 0, 0);
    }
    Mutex* mu;
  } guard(mu);
  IgnoreReads ignore;
  return call();
}

// The real call takes the lock, whatever it returns.
template <typename Call>
auto Acquired(Mutex* mu, unsigned flags, Call call) {
  struct Guard {
    Guard(Mutex* mu, unsigned flags) : mu(mu), flags(flags) { __tsan_mutex_pre_lock(mu, flags); }
    ~Guard() { __tsan_mutex_post_lock(mu, flags, 0); }
    Mutex* mu;
    unsigned flags;
  } guard(mu, flags);
  IgnoreReads ignore;
  return call();
}

}  // namespace

// NAME is the mangled name after the namespace; REAL and WRAP become the linker's two names for it.
#define LS_ABSL_(name) "_ZN4absl7debian3" name
#define LS_ABSL_CONST_(name) "_ZNK4absl7debian3" name
#define LS_REAL(result, function, mangled, ...) \
  result function(__VA_ARGS__) __asm__("__real_" mangled)
#define LS_WRAP(result, function, mangled, ...)            \
  result function(__VA_ARGS__) __asm__("__wrap_" mangled); \
  result function(__VA_ARGS__)

LS_REAL(void, RealLock, LS_ABSL_("5Mutex4LockEv"), Mutex*);
LS_WRAP(void, WrapLock, LS_ABSL_("5Mutex4LockEv"), Mutex* mu) {
  Acquired(mu, 0, [&] { RealLock(mu); });
}

LS_REAL(void, RealUnlock, LS_ABSL_("5Mutex6UnlockEv"), Mutex*);
LS_WRAP(void, WrapUnlock, LS_ABSL_("5Mutex6UnlockEv"), Mutex* mu) {
  __tsan_mutex_pre_unlock(mu, 0);
  {
    IgnoreReads ignore;
    RealUnlock(mu);
  }
  __tsan_mutex_post_unlock(mu, 0);
}

LS_REAL(bool, RealTryLock, LS_ABSL_("5Mutex7TryLockEv"), Mutex*);
LS_WRAP(bool, WrapTryLock, LS_ABSL_("5Mutex7TryLockEv"), Mutex* mu) {
  __tsan_mutex_pre_lock(mu, kTry);
  const bool locked = RealTryLock(mu);
  __tsan_mutex_post_lock(mu, locked ? kTry : (kTry | kFailed), 0);
  return locked;
}

LS_REAL(void, RealReaderLock, LS_ABSL_("5Mutex10ReaderLockEv"), Mutex*);
LS_WRAP(void, WrapReaderLock, LS_ABSL_("5Mutex10ReaderLockEv"), Mutex* mu) {
  Acquired(mu, kRead, [&] { RealReaderLock(mu); });
}

LS_REAL(void, RealReaderUnlock, LS_ABSL_("5Mutex12ReaderUnlockEv"), Mutex*);
LS_WRAP(void, WrapReaderUnlock, LS_ABSL_("5Mutex12ReaderUnlockEv"), Mutex* mu) {
  __tsan_mutex_pre_unlock(mu, kRead);
  {
    IgnoreReads ignore;
    RealReaderUnlock(mu);
  }
  __tsan_mutex_post_unlock(mu, kRead);
}

LS_REAL(void, RealAwait, LS_ABSL_("5Mutex5AwaitERKNS0_9ConditionE"), Mutex*, const Condition&);
LS_WRAP(void, WrapAwait, LS_ABSL_("5Mutex5AwaitERKNS0_9ConditionE"), Mutex* mu,
        const Condition& condition) {
  Reacquired(mu, [&] { RealAwait(mu, condition); });
}

LS_REAL(bool, RealAwaitWithTimeout,
        LS_ABSL_("5Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE"), Mutex*,
        const Condition&, Duration);
LS_WRAP(bool, WrapAwaitWithTimeout,
        LS_ABSL_("5Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE"), Mutex* mu,
        const Condition& condition, Duration timeout) {
  return Reacquired(mu, [&] { return RealAwaitWithTimeout(mu, condition, timeout); });
}

LS_REAL(bool, RealAwaitWithDeadline,
        LS_ABSL_("5Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE"), Mutex*, const Condition&,
        Time);
LS_WRAP(bool, WrapAwaitWithDeadline,
        LS_ABSL_("5Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE"), Mutex* mu,
        const Condition& condition, Time deadline) {
  return Reacquired(mu, [&] { return RealAwaitWithDeadline(mu, condition, deadline); });
}

LS_REAL(void, RealLockWhen, LS_ABSL_("5Mutex8LockWhenERKNS0_9ConditionE"), Mutex*,
        const Condition&);
LS_WRAP(void, WrapLockWhen, LS_ABSL_("5Mutex8LockWhenERKNS0_9ConditionE"), Mutex* mu,
        const Condition& condition) {
  Acquired(mu, 0, [&] { RealLockWhen(mu, condition); });
}

LS_REAL(bool, RealLockWhenWithTimeout,
        LS_ABSL_("5Mutex19LockWhenWithTimeoutERKNS0_9ConditionENS0_8DurationE"), Mutex*,
        const Condition&, Duration);
LS_WRAP(bool, WrapLockWhenWithTimeout,
        LS_ABSL_("5Mutex19LockWhenWithTimeoutERKNS0_9ConditionENS0_8DurationE"), Mutex* mu,
        const Condition& condition, Duration timeout) {
  return Acquired(mu, 0, [&] { return RealLockWhenWithTimeout(mu, condition, timeout); });
}

LS_REAL(bool, RealLockWhenWithDeadline,
        LS_ABSL_("5Mutex20LockWhenWithDeadlineERKNS0_9ConditionENS0_4TimeE"), Mutex*,
        const Condition&, Time);
LS_WRAP(bool, WrapLockWhenWithDeadline,
        LS_ABSL_("5Mutex20LockWhenWithDeadlineERKNS0_9ConditionENS0_4TimeE"), Mutex* mu,
        const Condition& condition, Time deadline) {
  return Acquired(mu, 0, [&] { return RealLockWhenWithDeadline(mu, condition, deadline); });
}

LS_REAL(void, RealMutexEnd, LS_ABSL_("5MutexD1Ev"), Mutex*);
LS_WRAP(void, WrapMutexEnd, LS_ABSL_("5MutexD1Ev"), Mutex* mu) {
  __tsan_mutex_destroy(mu, 0);
  RealMutexEnd(mu);
}

LS_REAL(void, RealWait, LS_ABSL_("7CondVar4WaitEPNS0_5MutexE"), CondVar*, Mutex*);
LS_WRAP(void, WrapWait, LS_ABSL_("7CondVar4WaitEPNS0_5MutexE"), CondVar* cv, Mutex* mu) {
  Reacquired(mu, [&] { RealWait(cv, mu); });
}

LS_REAL(bool, RealWaitWithTimeout, LS_ABSL_("7CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE"),
        CondVar*, Mutex*, Duration);
LS_WRAP(bool, WrapWaitWithTimeout, LS_ABSL_("7CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE"),
        CondVar* cv, Mutex* mu, Duration timeout) {
  return Reacquired(mu, [&] { return RealWaitWithTimeout(cv, mu, timeout); });
}

LS_REAL(bool, RealWaitWithDeadline, LS_ABSL_("7CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE"),
        CondVar*, Mutex*, Time);
LS_WRAP(bool, WrapWaitWithDeadline, LS_ABSL_("7CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE"),
        CondVar* cv, Mutex* mu, Time deadline) {
  return Reacquired(mu, [&] { return RealWaitWithDeadline(cv, mu, deadline); });
}

LS_REAL(void, RealNotify, LS_ABSL_("12Notification6NotifyEv"), Notification*);
LS_WRAP(void, WrapNotify, LS_ABSL_("12Notification6NotifyEv"), Notification* notification) {
  __tsan_release(notification);
  IgnoreReads ignore;
  RealNotify(notification);
}

LS_REAL(void, RealWaitFor, LS_ABSL_CONST_("12Notification19WaitForNotificationEv"),
        const Notification*);
LS_WRAP(void, WrapWaitFor, LS_ABSL_CONST_("12Notification19WaitForNotificationEv"),
        const Notification* notification) {
  RealWaitFor(notification);
  __tsan_acquire(const_cast<Notification*>(notification));
}

LS_REAL(bool, RealWaitForTimeout,
        LS_ABSL_CONST_("12Notification30WaitForNotificationWithTimeoutENS0_8DurationE"),
        const Notification*, Duration);
LS_WRAP(bool, WrapWaitForTimeout,
        LS_ABSL_CONST_("12Notification30WaitForNotificationWithTimeoutENS0_8DurationE"),
        const Notification* notification, Duration timeout) {
  const bool notified = RealWaitForTimeout(notification, timeout);
  if (notified) __tsan_acquire(const_cast<Notification*>(notification));
  return notified;
}
