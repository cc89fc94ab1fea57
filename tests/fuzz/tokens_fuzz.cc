// SPDX-License-Identifier: Apache-2.0
// Any file is tokens or an error; a file that was opened gives every sample or says what is wrong.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/check.h"
#include "common/fd.h"
#include "data/token_windows.h"

// The first byte chooses the window's length and the size of the vocabulary.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;        // NOLINT: a fuzz target is one function
  using namespace lockstep::data;  // NOLINT
  if (size < 1) return 0;
  const UniqueFd file(::memfd_create("tokens", MFD_CLOEXEC));
  LS_CHECK(file.valid());
  LS_CHECK_EQ(::write(file.get(), data + 1, size - 1), static_cast<ssize_t>(size - 1));
  TokensSource source;
  source.train = "/proc/self/fd/" + std::to_string(file.get());
  source.length = 1 + (data[0] & 15);
  source.vocab = 1 << (data[0] >> 4);
  const auto opened = OpenTokens(source, Split::kTrain);
  if (!opened.ok()) return 0;
  const auto length = static_cast<size_t>(source.length);
  std::vector<int32_t> tokens(length), labels(length);
  void* const fields[] = {tokens.data(), labels.data()};
  for (int64_t i = 0; i < (*opened)->size(); ++i) {
    ReadRequest request;
    request.indices = absl::MakeConstSpan(&i, 1);
    if (!(*opened)->ReadBatch(request, fields).ok()) continue;
    for (const int32_t label : labels) LS_CHECK(label >= 0 && label < source.vocab) << label;
    for (const int32_t token : tokens) LS_CHECK(token >= 0 && token < source.vocab) << token;
  }
  return 0;
}
