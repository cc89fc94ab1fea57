// SPDX-License-Identifier: Apache-2.0
// What most sources include, precompiled (LOCKSTEP_PCH). Each source still includes what it uses: it
// must build without this.
#ifndef LOCKSTEP_CMAKE_PRECOMPILED_H_
#define LOCKSTEP_CMAKE_PRECOMPILED_H_

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#endif  // LOCKSTEP_CMAKE_PRECOMPILED_H_
