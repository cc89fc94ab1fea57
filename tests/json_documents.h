// SPDX-License-Identifier: Apache-2.0
// Compares JSON that the product writes with the tables of docs/json_output.md: every key is there,
// its value has the type that stands there, and no key stands there that is never written.
#ifndef LOCKSTEP_TESTS_JSON_DOCUMENTS_H_
#define LOCKSTEP_TESTS_JSON_DOCUMENTS_H_

#include <map>
#include <set>
#include <string>

namespace lockstep {

class JsonDocuments {
 public:
  // Reads the tables: section -> key -> type.
  explicit JsonDocuments(const std::string& path);

  // That `text` is one object as `section` has it.
  void Check(const std::string& section, const std::string& text);
  // That the sections that Check came to have no key that it never met.
  void ExpectAllWritten() const;

 private:
  friend class JsonCheck;
  std::map<std::string, std::map<std::string, std::string>> types_;
  std::map<std::string, std::set<std::string>> written_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_TESTS_JSON_DOCUMENTS_H_
