// SPDX-License-Identifier: Apache-2.0
#include "data/csv.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/charconv.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/mapped_bytes.h"
#include "common/printable.h"
#include "common/status.h"
#include "common/utf8.h"
#include "data/array_dataset.h"
#include "data/idx.h"

namespace lockstep::data {
namespace {

constexpr size_t kMaxColumns = 1 << 24;
// As many as a model can tell apart.
constexpr int32_t kMaxClasses = 1 << 24;
// Of a field that is shown in a message.
constexpr size_t kMostShown = 40;

// Returns whether all of `text` is a number. One that is too small for `value` is 0, one that is
// too large an infinity, whose name is no number.
bool ParseNumber(std::string_view text, double* value) {
  if (!text.empty() && text[0] == '+') text.remove_prefix(1);
  const char* const begin = text.data();
  const char* const end = begin + text.size();
  const auto [parsed, error] = std::from_chars(begin, end, *value);
  if (parsed != end) return false;
  if (error == std::errc()) return std::isfinite(*value);
  if (error != std::errc::result_out_of_range) return false;
  absl::from_chars(begin, end, *value);  // which tells the two apart
  *value = std::abs(*value) < 1 ? 0 : std::copysign(HUGE_VAL, *value);
  return true;
}

// The text of one field without its blanks and quotes.
std::string_view Strip(std::string_view field) {
  while (!field.empty() && absl::ascii_isspace(static_cast<unsigned char>(field.front()))) {
    field.remove_prefix(1);
  }
  while (!field.empty() && absl::ascii_isspace(static_cast<unsigned char>(field.back()))) {
    field.remove_suffix(1);
  }
  if (field.size() >= 2 && field.front() == '"' && field.back() == '"') {
    field = field.substr(1, field.size() - 2);
  }
  return field;
}

// Returns whether a CR stands in `line` where old Macintosh programs end a line: outside quotes,
// and before a field. One at the end of a field is a blank, as tables that are joined side by side
// have it.
bool HasLineEnd(std::string_view line) {
  line = line.substr(0, line.find_last_not_of(" \t\r") + 1);
  if (line.find('\r') == std::string_view::npos) return false;
  bool quoted = false, ended = false;  // `ended`: by a CR with no more than blanks behind it
  for (const char c : line) {
    if (c == ' ' || c == '\t' || c == '\r') {
      if (c == '\r' && !quoted) ended = true;
      continue;
    }
    if (ended && c != ',') return true;
    ended = false;
    if (c == '"') quoted = !quoted;
  }
  return false;
}

// A quote in a quoted name is written twice.
std::string OneQuoteEach(std::string_view name) {
  return absl::StrReplaceAll(std::string(name), {{"\"\"", "\""}});
}

// Splits at commas outside quotes.
void SplitLine(std::string_view line, std::vector<std::string_view>* fields) {
  fields->clear();
  bool quoted = false;
  size_t begin = 0;
  for (size_t i = 0; i <= line.size(); ++i) {
    if (i < line.size() && line[i] == '"') quoted = !quoted;
    if (i < line.size() && (line[i] != ',' || quoted)) continue;
    fields->push_back(Strip(line.substr(begin, i - begin)));
    begin = i + 1;
  }
}

class Parser {
 public:
  Parser(const std::string& label, const std::string& header) : label_(label), header_(header) {}

  absl::Status Line(int64_t number, std::string_view line) {
    if (HasLineEnd(line)) {
      return absl::DataLossError(absl::StrCat(
          "line ", number, " has a CR in its middle: lines end in LF or CR LF, not in CR alone"));
    }
    SplitLine(line, &fields_);
    if (columns_ == 0) {
      LS_RETURN_IF_ERROR(First(number));
      if (is_header_) return absl::OkStatus();
    }
    if (fields_.size() != columns_) {
      return absl::DataLossError(absl::StrCat("line ", number, " has ", fields_.size(),
                                              " columns, the first one has ", columns_));
    }
    for (size_t column = 0; column < columns_; ++column) {
      double value = 0;
      const bool parsed = ParseNumber(fields_[column], &value);
      if (column != label_column_) {
        const auto narrow = static_cast<float>(value);
        if (!parsed) return Wrong(number, column, "expected a number");
        if (!std::isfinite(narrow)) return Wrong(number, column, "too large for fp32");
        table_.values.push_back(narrow);
        continue;
      }
      if (!parsed || value < 0 || value != std::floor(value) || value >= kMaxClasses) {
        return Wrong(number, column,
                     absl::StrCat("a label must be a whole number from 0 to ", kMaxClasses - 1));
      }
      table_.labels.push_back(static_cast<int32_t>(value));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<CsvTable> Finish() {
    if (table_.labels.empty()) return absl::DataLossError("the table has no sample");
    table_.label = label_column_;
    return std::move(table_);
  }

 private:
  // The first line: whether it is a header, and which column the label is.
  absl::Status First(int64_t number) {
    columns_ = fields_.size();
    if (columns_ < 2 || columns_ > kMaxColumns) {
      return absl::DataLossError(absl::StrCat("the first line has ", columns_,
                                              columns_ == 1 ? " column" : " columns",
                                              "; at least 2 are needed, with commas between them"));
    }
    double ignored;
    const int64_t numbers = std::count_if(fields_.begin(), fields_.end(), [&](std::string_view f) {
      return ParseNumber(f, &ignored);
    });
    is_header_ = header_ == "yes" || (header_ != "no" && numbers == 0);
    if (!is_header_ && header_ != "no" && numbers < std::ssize(fields_)) {
      return absl::DataLossError(absl::StrCat("line ", number,
                                              " is neither all names nor all numbers: say in "
                                              "data.csv.header whether it is a header, yes or no"));
    }
    if (!is_header_ && header_ != "no" && CountsColumns()) {
      return absl::DataLossError(absl::StrCat("line ", number,
                                              " counts its columns from 0, as a header or a sample "
                                              "may: say in data.csv.header whether it is a "
                                              "header, yes or no"));
    }
    if (is_header_) TakeNames();
    table_.features = static_cast<int64_t>(columns_) - 1;
    return FindLabel();
  }

  // A model keeps the names, as text.
  void TakeNames() {
    for (size_t column = 0; column < columns_; ++column) {
      std::string name = OneQuoteEach(fields_[column]);
      table_.names.push_back(ToUtf8(name) == name ? std::move(name) : Printable(name));
    }
  }

  // Returns whether the fields are 0, 1, 2 and so on: the header that pandas gives an array.
  bool CountsColumns() const {
    for (size_t column = 0; column < columns_; ++column) {
      if (fields_[column] != absl::StrCat(column)) return false;
    }
    return true;
  }

  absl::Status Wrong(int64_t number, size_t column, const std::string& what) const {
    return absl::DataLossError(absl::StrCat("line ", number, ", column ", column + 1, " is '",
                                            Printable(fields_[column].substr(0, kMostShown)),
                                            "': ", what));
  }

  absl::Status FindLabel() {
    auto named = std::find(table_.names.begin(), table_.names.end(), label_);
    if (named == table_.names.end()) {  // as it stands in the file
      named = std::find(table_.names.begin(), table_.names.end(), OneQuoteEach(label_));
    }
    if (named != table_.names.end()) {
      const auto again = std::find(named + 1, table_.names.end(), *named);
      if (again != table_.names.end()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "the label's name '", label_, "' stands twice in the header, over the columns ",
            named - table_.names.begin(), " and ", again - table_.names.begin(),
            " (from 0): give the label's number"));
      }
      label_column_ = static_cast<size_t>(named - table_.names.begin());
      return absl::OkStatus();
    }
    int64_t number = 0;
    const auto columns = static_cast<int64_t>(columns_);
    if (absl::SimpleAtoi(label_, &number) && number < columns && number >= -columns) {
      label_column_ = static_cast<size_t>(number < 0 ? number + columns : number);
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "no column '", label_, "' for the label: name one of the header, or a number from 0 to ",
        columns - 1));
  }

  const std::string& label_;
  const std::string& header_;
  std::vector<std::string_view> fields_;
  size_t columns_ = 0;
  size_t label_column_ = 0;
  bool is_header_ = false;
  CsvTable table_;
};

absl::StatusOr<CsvTable> ReadTable(const std::string& path, const CsvSource& source) {
  LS_ASSIGN_OR_RETURN(const MappedBytes file, MappedBytes::OpenFile(path));
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  const absl::Status packed = RefuseGzip(path, file.span());
  LS_RETURN_IF_ERROR(file.Check());
  LS_RETURN_IF_ERROR(packed);
  absl::StatusOr<CsvTable> table = ParseCsv(text, source.label, source.header);
  LS_RETURN_IF_ERROR(file.Check());
  if (!table.ok()) return Annotate(table.status(), path);
  return table;
}

// The names of the columns but the label's.
std::vector<std::string> FeatureNames(const CsvTable& table) {
  std::vector<std::string> names = table.names;
  names.erase(names.begin() + static_cast<std::ptrdiff_t>(table.label));
  return names;
}

int64_t ClassesOf(const CsvTable& table) {
  return int64_t{*std::max_element(table.labels.begin(), table.labels.end())} + 1;
}

}  // namespace

absl::StatusOr<CsvTable> ParseCsv(std::string_view text, const std::string& label,
                                  const std::string& header) {
  Parser parser(label, header);
  int64_t number = 0;
  // Spreadsheets begin with a byte order mark.
  if (text.substr(0, 3) == "\xEF\xBB\xBF") text.remove_prefix(3);
  if (text.substr(0, 2) == "\xFF\xFE" || text.substr(0, 2) == "\xFE\xFF") {
    return absl::DataLossError("the table is UTF-16, by its byte order mark: save it as UTF-8");
  }
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    LS_RETURN_IF_ERROR(parser.Line(number, line));
  }
  return parser.Finish();
}

absl::StatusOr<std::unique_ptr<Dataset>> OpenCsv(const CsvSource& source, Split split) {
  const bool train = split == Split::kTrain;
  const std::string& path = train ? source.train : source.test;
  if (path.empty()) {
    return absl::NotFoundError(absl::StrCat("data.csv names no ", train ? "train" : "test"));
  }
  LS_ASSIGN_OR_RETURN(CsvTable read, ReadTable(path, source));
  const auto table = std::make_shared<CsvTable>(std::move(read));
  ArraySamples samples;
  samples.classes = source.classes > 0 ? source.classes : ClassesOf(*table);
  if (!train && source.classes == 0 && !source.train.empty()) {
    LS_ASSIGN_OR_RETURN(const CsvTable trained, ReadTable(source.train, source));
    if (trained.features != table->features) {
      return absl::DataLossError(absl::StrCat(path, " has ", table->features, " features, but ",
                                              source.train, " has ", trained.features));
    }
    if (!trained.names.empty() && !table->names.empty() &&
        FeatureNames(trained) != FeatureNames(*table)) {
      return absl::DataLossError(absl::StrCat("the columns of ", path,
                                              " are not named as those of ", source.train,
                                              ", or come in another order"));
    }
    samples.classes = ClassesOf(trained);
  }
  samples.type = NpyType::kFloat32;
  if (!table->names.empty()) samples.columns = FeatureNames(*table);
  samples.shape = {table->features};
  samples.labels = table->labels;
  samples.stretches = {{reinterpret_cast<const uint8_t*>(table->values.data()),
                        static_cast<size_t>(table->features) * sizeof(float),
                        static_cast<int64_t>(table->labels.size())}};
  samples.owner = table;
  samples.own_bytes = table->values.size() * sizeof(float) + table->labels.size() * sizeof(int32_t);
  absl::StatusOr<std::unique_ptr<Dataset>> dataset = MakeArrayDataset(std::move(samples));
  if (!dataset.ok()) return Annotate(dataset.status(), path);
  return dataset;
}

}  // namespace lockstep::data
