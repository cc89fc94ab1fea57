// SPDX-License-Identifier: Apache-2.0
// Tables of numbers as text: one sample a line, fields between commas, one column the label. Fields
// may stand in double quotes; blanks around them are ignored; lines end with LF or CRLF; empty
// lines are skipped. The whole table is read into memory as fp32.
// Thread-safety: pure functions; the data sets are immutable.
#ifndef LOCKSTEP_DATA_CSV_H_
#define LOCKSTEP_DATA_CSV_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "data/dataset.h"

namespace lockstep::data {

struct CsvTable {
  std::vector<std::string> names;  // of all columns; empty without a header
  size_t label = 0;                // the label's column
  int64_t features = 0;            // columns but the label's
  std::vector<float> values;       // [samples, features]
  std::vector<int32_t> labels;     // [samples]
};

// Reads a table. `label` is a column's name or its number from 0 (negative: from the end); `header`
// is "auto" (yes when the first line has no number; an error when it has some, but not only
// numbers), "yes" or "no". Errors: DataLoss with line and column (the caller adds the file's name),
// InvalidArgument when there is no such label column.
absl::StatusOr<CsvTable> ParseCsv(std::string_view text, const std::string& label,
                                  const std::string& header);

// The training labels say how many classes there are, for both splits. Errors: as Open (dataset.h).
absl::StatusOr<std::unique_ptr<Dataset>> OpenCsv(const CsvSource& source, Split split);

}  // namespace lockstep::data

#endif  // LOCKSTEP_DATA_CSV_H_
