// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/natural_order.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstring>

namespace lockstep::coordinator {
namespace {

bool IsDigit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

// The digits at `at` without leading zeros, and past them.
std::string TakeNumber(const std::string& text, size_t& at) {
  while (at < text.size() && text[at] == '0') ++at;
  const size_t begin = at;
  while (at < text.size() && IsDigit(text[at])) ++at;
  return text.substr(begin, at - begin);
}

}  // namespace

bool NaturalLess(const std::string& a, const std::string& b) {
  size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (!IsDigit(a[i]) || !IsDigit(b[j])) {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i, ++j;
      continue;
    }
    const std::string x = TakeNumber(a, i), y = TakeNumber(b, j);
    if (x.size() != y.size()) return x.size() < y.size();
    if (x != y) return x < y;
  }
  if (i < a.size() || j < b.size()) return j < b.size();
  return a < b;  // they differ in leading zeros alone
}

NaturalName::NaturalName(const std::string* name) : name_(name) {
  constexpr size_t kMostDigits = 18;
  size_t at = 0;
  while (at < name->size() && !IsDigit((*name)[at])) ++at;
  prefix_ = at;
  std::memcpy(&head_, name->data(), std::min(prefix_, sizeof(head_)));
  int64_t number = 0;
  while (at < name->size() && IsDigit((*name)[at])) number = 10 * number + ((*name)[at++] - '0');
  if (at > prefix_ && at - prefix_ <= kMostDigits) number_ = number;
}

int NaturalName::Compare(const NaturalName& other) const {
  const bool alike =
      number_ >= 0 && other.number_ >= 0 && prefix_ == other.prefix_ && head_ == other.head_ &&
      number_ != other.number_ &&
      (prefix_ <= sizeof(head_) || name_->compare(0, prefix_, *other.name_, 0, prefix_) == 0);
  if (alike) return number_ < other.number_ ? -1 : 1;
  if (*name_ == *other.name_) return 0;
  return NaturalLess(*name_, *other.name_) ? -1 : 1;
}

}  // namespace lockstep::coordinator
