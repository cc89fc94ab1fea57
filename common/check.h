// SPDX-License-Identifier: Apache-2.0
// Checks of the program's own invariants. A failed check is a bug of ours: it prints the place and
// the expression and aborts. Causes outside the program (files, peers, users) are absl::Status.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COMMON_CHECK_H_
#define LOCKSTEP_COMMON_CHECK_H_

#include <sstream>
#include <string>

namespace lockstep {

// Prints "CHECK failed at file:line: expr message" to stderr and aborts. Async-signal-unsafe.
[[noreturn]] void CheckFailed(const char* file, int line, const char* expression,
                              const std::string& message);

namespace check_internal {
// Collects the streamed message; aborts in its destructor.
class Failure {
 public:
  Failure(const char* file, int line, const char* expression)
      : file_(file), line_(line), expression_(expression) {}
  [[noreturn]] ~Failure() { CheckFailed(file_, line_, expression_, stream_.str()); }
  std::ostream& stream() { return stream_; }

 private:
  const char* file_;
  int line_;
  const char* expression_;
  std::ostringstream stream_;
};
}  // namespace check_internal
}  // namespace lockstep

#define LS_CHECK(condition)                 \
  while (__builtin_expect(!(condition), 0)) \
  ::lockstep::check_internal::Failure(__FILE__, __LINE__, #condition).stream()
#define LS_CHECK_OP_(a, op, b) LS_CHECK((a)op(b)) << (a) << " vs " << (b) << " "
#define LS_CHECK_EQ(a, b) LS_CHECK_OP_(a, ==, b)
#define LS_CHECK_NE(a, b) LS_CHECK_OP_(a, !=, b)
#define LS_CHECK_LT(a, b) LS_CHECK_OP_(a, <, b)
#define LS_CHECK_LE(a, b) LS_CHECK_OP_(a, <=, b)
#define LS_CHECK_GT(a, b) LS_CHECK_OP_(a, >, b)
#define LS_CHECK_GE(a, b) LS_CHECK_OP_(a, >=, b)
// Checked in debug builds only; the expression must have no effect.
#ifdef NDEBUG
#define LS_DCHECK(condition) \
  while (false && (condition)) ::lockstep::check_internal::Failure("", 0, "").stream()
#else
#define LS_DCHECK(condition) LS_CHECK(condition)
#endif

#endif  // LOCKSTEP_COMMON_CHECK_H_
