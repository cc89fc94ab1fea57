// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/ops/made_case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/half.h"
#include "common/philox.h"
#include "engine/ops/ops.h"

namespace lockstep::engine {
namespace {

// The unit of the last place of 1.
double Unit(DType type) { return type == DType::kBF16 ? 0x1p-7 : 0x1p-10; }

}  // namespace

Doubles MakeValues(const TensorType& type, uint64_t site, int64_t classes) {
  Doubles values;
  for (int64_t i = 0; i < type.elements(); ++i) {
    const uint64_t bits = MixBits(site * 1000003 + static_cast<uint64_t>(i));
    if (type.dtype == DType::kI32) {
      values.push_back(static_cast<double>(bits % static_cast<uint64_t>(classes + 1)) - 1);
    } else {
      const float x = UniformFloat(static_cast<uint32_t>(bits)) * 2 - 1;
      values.push_back(static_cast<double>(x + (x < 0 ? -0.01f : 0.01f)));
    }
  }
  return values;
}

Doubles SpecialValues(int64_t count) {
  const double infinity = std::numeric_limits<double>::infinity();
  const Doubles some = {0, -0.0, 1, -3.25, infinity, -infinity, std::nan(""), 1e-30, 0x1p-126, 0.3};
  Doubles values;
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    values.push_back(some[i % some.size()] * (i < some.size() ? 1 : 1 / 3.0));
  }
  return values;
}

void PutUnusual(Doubles* values) {
  for (size_t i = 0; i < values->size(); ++i) {
    if (i % 7 == 1) (*values)[i] = std::numeric_limits<double>::infinity();
    if (i % 3 == 0) (*values)[i] = std::numeric_limits<double>::quiet_NaN();
  }
}

Prepared Prepare(const OpDef& op, const OpCase& test) {
  Prepared p;
  for (size_t i = 0; i < test.inputs.size(); ++i) {
    p.leaves.push_back(p.graph.AddLeaf(ops::kInput, test.inputs[i], absl::StrCat("input", i)));
    p.inputs.push_back(MakeValues(test.inputs[i], i + 1, test.classes));
  }
  p.made = p.graph.Add(op, p.leaves, test.attrs);
  LS_CHECK(p.graph.status().ok()) << p.graph.status();
  return p;
}

std::string Describe(const OpDef& op, const OpCase& test) {
  std::string text = op.name;
  for (const TensorType& type : test.inputs) text += " " + ToString(type);
  return text + " " + test.attrs.ToString();
}

double Tolerance(const OpCase& test) {
  int64_t most = 16;
  for (const TensorType& type : test.inputs) {
    for (const int64_t extent : type.shape) most = std::max(most, extent);
    if (type.shape.size() < 4) continue;
    // Images and filters are summed over several extents.
    for (const int64_t kept : {type.shape[0], type.shape[3]}) {
      most = std::max(most, std::min<int64_t>(type.elements() / kept, 1000));
    }
  }
  return 4e-7 * std::sqrt(static_cast<double>(most));
}

Doubles Rounded(DType type, Doubles values) {
  for (double& value : values) {
    const auto x = static_cast<float>(value);
    if (type == DType::kBF16) value = static_cast<double>(BFloat16::FromFloat(x).ToFloat());
    if (type == DType::kF16) value = static_cast<double>(Float16::FromFloat(x).ToFloat());
  }
  return values;
}

OpCase HalfCase(const OpCase& test, DType type, size_t every) {
  OpCase half = test;
  half.attrs.Set(kDTypeAttr, std::string(Name(type)));
  for (size_t i = 0; i < half.inputs.size(); i += every) {
    if (half.inputs[i].dtype == DType::kF32) half.inputs[i].dtype = type;
  }
  return half;
}

void ExpectRoundedOnce(const Node& node, const std::vector<Doubles>& is,
                       const std::vector<Doubles>& expected, double tolerance,
                       const std::vector<Doubles>& more) {
  ASSERT_EQ(is.size(), expected.size());
  for (size_t o = 0; o < is.size(); ++o) {
    const DType type = node.outputs[o].dtype;
    const double relative = IsHalf(type) ? Unit(type) / 2 : 0;
    const double absolute = type == DType::kF16 ? 0x1p-25 : 0;
    for (size_t i = 0; i < is[o].size(); ++i) {
      const double want = expected[o][i], own = more.empty() ? 0 : more[o][i];
      ASSERT_NEAR(is[o][i], want,
                  (relative + tolerance) * std::fabs(want) + tolerance + absolute + own)
          << "output " << o << " element " << i;
    }
  }
}

}  // namespace lockstep::engine
